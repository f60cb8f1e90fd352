//! `rediss://` to a server whose certificate is of the test's own making: `cargo test --features tls-rustls --test tls`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{
    Server,
    server::{Port, find_binary, free_cluster_port, free_port},
    wait::comes_true,
};
use leasehold::{Error, Locks, Nodes, Pool, acquire_lock_with_timeout, redis, release_lock};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use redis::{Client, TlsCertificates};
use tempfile::TempDir;

/// What takes longer than this has hung.
const LIMIT: Duration = Duration::from_secs(10);

/// A server with a port for TLS, and the CA that vouches for it under the name `localhost`.
struct TlsServer {
    _server: Server,
    directory: TempDir,
    port: Port,
    ca: String,
}

impl TlsServer {
    fn start() -> Self {
        let ca = certificate_authority();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".into()])
            .unwrap()
            .signed_by(&key, &ca)
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let certificate = write("certificate.pem", certificate.pem());
        let key = write("key.pem", key.serialize_pem());
        let (server, port) = start_server(&certificate, &key);
        Self {
            _server: server,
            directory,
            port,
            ca: ca.pem(),
        }
    }

    fn url(&self, host: &str) -> String {
        format!("rediss://{host}:{}/", self.port)
    }

    /// A client that trusts the CA and nobody else.
    fn client(&self, host: &str) -> Client {
        self.client_of(&self.url(host))
    }

    fn client_of(&self, url: &str) -> Client {
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: Some(self.ca.clone().into_bytes()),
        };
        Client::build_with_tls(url, certificates).unwrap()
    }
}

fn certificate_authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "the test's own");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The spawner chooses the plain port; that for TLS is chosen here, and may be taken by somebody else meanwhile.
fn start_server(certificate: &str, key: &str) -> (Server, Port) {
    let start = || {
        let port = free_port()?;
        let port_text = port.to_string();
        let tls_port = ["--tls-port", &port_text, "--tls-auth-clients", "no"];
        let files = ["--tls-cert-file", certificate, "--tls-key-file", key];
        let server = Server::start_with(&[tls_port, files].concat())?;
        anyhow::Ok((server, port))
    };
    start().or_else(|_| start()).unwrap()
}

fn why_not(pool: &Pool) -> String {
    let asked = Instant::now();
    let error = pool.get().unwrap_err();
    assert!(asked.elapsed() < LIMIT);
    format!("{:#}", anyhow::Error::from(error))
}

/// Gives up soon.
fn hasty_pool(url: &str) -> Pool {
    Pool::builder()
        .connect_timeout(Duration::from_millis(200))
        .build(&Client::open(url).unwrap())
        .unwrap()
}

#[test]
fn a_server_with_a_certificate_of_a_private_ca_is_used() {
    let server = TlsServer::start();
    let pool = Pool::new(&server.client("localhost")).unwrap();
    for _ in 0..2 {
        let mut conn = pool.get().unwrap();
        let lease = Duration::from_secs(10);
        let token = acquire_lock_with_timeout(&mut conn, "a", Duration::ZERO, lease).unwrap();
        assert!(release_lock(&mut conn, "a", &token.unwrap()).unwrap());
    }
}

#[test]
fn a_certificate_of_an_unknown_ca_is_refused() {
    let server = TlsServer::start();
    let pool = Pool::connect(&server.url("localhost")).unwrap();
    let why = why_not(&pool);
    let server = format!("could not connect to localhost:{}", server.port);
    assert!(why.contains(&server), "{why}");
    assert!(
        why.contains("invalid peer certificate: UnknownIssuer"),
        "{why}"
    );
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let server = TlsServer::start();
    let pool = Pool::new(&server.client("127.0.0.1")).unwrap();
    let why = why_not(&pool);
    assert!(
        why.contains("invalid peer certificate: certificate not valid for name"),
        "{why}"
    );
}

#[test]
fn a_server_without_tls_is_said_and_not_waited_for() {
    let plain = Server::start().unwrap();
    let url = format!("rediss://127.0.0.1:{}/", plain.port());
    let why = why_not(&hasty_pool(&url));
    assert!(why.starts_with("no connection from the pool: "), "{why}");
}

#[test]
fn a_wait_for_a_handshake_that_does_not_come_ends() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = silent.local_addr().unwrap();
    let why = why_not(&hasty_pool(&format!("rediss://{address}/")));
    assert!(why.contains(&format!("no answer from {address}")), "{why}");
}

/// One that watches the server, speaks TLS alone and names hosts, since certificates do.
struct TlsSentinel {
    process: Child,
    port: Port,
}

impl TlsSentinel {
    fn watching(server: &TlsServer) -> Self {
        let (directory, port) = (server.directory.path(), free_port().unwrap());
        let at = |name: &str| directory.join(name).display().to_string();
        fs::write(at("ca.pem"), &server.ca).unwrap();
        let settings = [
            format!(
                "port 0\ntls-port {port}\nbind 127.0.0.1\ndir {}",
                directory.display()
            ),
            format!(
                "tls-cert-file {}\ntls-key-file {}",
                at("certificate.pem"),
                at("key.pem")
            ),
            format!(
                "tls-ca-cert-file {}\ntls-auth-clients no\ntls-replication yes",
                at("ca.pem")
            ),
            "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes".to_owned(),
            format!("sentinel monitor mymaster localhost {} 1\n", server.port),
        ];
        let file = at("sentinel.conf");
        fs::write(&file, settings.join("\n")).unwrap();
        let process = Command::new(find_binary().unwrap())
            .args([&file, "--sentinel"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, port }
    }
}

impl Drop for TlsSentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn sentinels_and_the_master_with_certificates_of_a_private_ca_are_used() {
    let server = TlsServer::start();
    let sentinel = TlsSentinel::watching(&server);
    let url = format!("rediss://localhost:{}/", sentinel.port);
    // Of the client for the master everything counts but the address.
    let master = server.client("nowhere.invalid");
    let pool = Pool::builder()
        .build_on_sentinels(&[server.client_of(&url)], "mymaster", &master)
        .unwrap();
    assert!(comes_true(|| pool.get().is_ok()));
    let mut conn = pool.get().unwrap();
    let token = acquire_lock_with_timeout(&mut conn, "a", Duration::ZERO, LIMIT).unwrap();
    assert!(release_lock(&mut conn, "a", &token.unwrap()).unwrap());
    // By a URL the system's certificates are asked, and they do not know this CA.
    let unknown = format!("rediss+sentinel://localhost:{}/mymaster", sentinel.port);
    let refused = why_not(&Pool::connect(&unknown).unwrap());
    assert!(
        refused.contains("no sentinel of 1") && refused.contains("certificate"),
        "{refused}"
    );
}

/// Three masters of a cluster, each with a port for TLS and one without, and certificates for `localhost` alone.
struct TlsCluster {
    nodes: Vec<(Server, Port)>,
    files: TlsServer,
}

impl TlsCluster {
    /// `speaks`: the nodes talk to each other by TLS, and name the ports for it to whoever asks by TLS.
    fn start(speaks: bool) -> Self {
        let files = TlsServer::start();
        let at = |name: &str| files.directory.path().join(name).display().to_string();
        fs::write(at("ca.pem"), &files.ca).unwrap();
        let (certificate, key, ca) = (at("certificate.pem"), at("key.pem"), at("ca.pem"));
        let certificates = [
            "--tls-cert-file",
            &certificate,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
        ];
        let start = || {
            let port = free_cluster_port()?;
            let port_text = port.to_string();
            let cluster = [
                "--cluster-enabled",
                "yes",
                "--tls-cluster",
                if speaks { "yes" } else { "no" },
            ];
            let tls = ["--tls-port", &port_text, "--tls-auth-clients", "no"];
            let server = Server::start_on(
                free_cluster_port,
                &[&cluster[..], &tls, &certificates].concat(),
            )?;
            anyhow::Ok((server, port))
        };
        let nodes: Vec<_> = (0..3)
            .map(|_| start().or_else(|_| start()).unwrap())
            .collect();
        let cluster = Self { nodes, files };
        cluster.put_together(speaks);
        cluster
    }

    fn put_together(&self, speaks: bool) {
        let mut conns: Vec<_> = (self.nodes.iter())
            .map(|(node, _)| node.connection().unwrap())
            .collect();
        let ask = |conn: &mut redis::Connection, words: &[String]| {
            redis::cmd("CLUSTER")
                .arg(words)
                .query::<redis::Value>(conn)
                .unwrap()
        };
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let ranges = ["0 5460", "5461 10922", "10923 16383"];
        for (at, (conn, range)) in conns.iter_mut().zip(ranges).enumerate() {
            ask(conn, &words(format!("SET-CONFIG-EPOCH {}", at + 1)));
            ask(conn, &words(format!("ADDSLOTSRANGE {range}")));
        }
        for (node, tls_port) in &self.nodes[1..] {
            let port = if speaks {
                tls_port.number()
            } else {
                node.port()
            };
            ask(&mut conns[0], &words(format!("MEET 127.0.0.1 {port}")));
        }
        let mut is_whole = || {
            conns.iter_mut().all(|conn| {
                let info = redis::cmd("CLUSTER")
                    .arg("INFO")
                    .query::<String>(conn)
                    .unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
        };
        let asked = Instant::now();
        while !is_whole() {
            assert!(
                asked.elapsed() < 3 * LIMIT,
                "the nodes do not come together"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The first node by TLS.
    fn seed(&self) -> Client {
        self.files
            .client_of(&format!("rediss://localhost:{}/", self.nodes[0].1))
    }
}

/// A lock of each master, by `Locks` and by a plain function.
fn locks_everywhere(nodes: &Nodes) {
    let locks = Locks::on_nodes(nodes);
    let mut ports = HashSet::new();
    for n in 0..20 {
        let name = format!("name-{n}");
        locks.lock(&name).acquire(LIMIT).unwrap().release().unwrap();
        let lease = Duration::from_secs(10);
        let take = |conn: &mut redis::Connection| {
            acquire_lock_with_timeout(conn, &name, Duration::ZERO, lease)
        };
        let token = nodes.run(&name, take).unwrap().unwrap();
        let mut conn = nodes.get_for(&name).unwrap();
        let info: String = redis::cmd("CONFIG")
            .arg(&["GET", "port"])
            .query::<Vec<String>>(&mut conn)
            .unwrap()
            .pop()
            .unwrap();
        ports.insert(info);
        assert!(release_lock(&mut conn, &name, &token).unwrap());
    }
    assert_eq!(ports.len(), 3);
}

/// The certificate is for `localhost`, and the nodes name their addresses.
fn to_localhost(host: &str, port: u16) -> (String, u16) {
    assert_eq!(host, "127.0.0.1");
    (String::from("localhost"), port)
}

#[test]
fn a_cluster_that_speaks_tls_is_used_by_tls_under_the_names_of_its_certificates() {
    let cluster = TlsCluster::start(true);
    let builder = || Nodes::builder().get_timeout(LIMIT / 5);
    let nodes = builder()
        .address_map(to_localhost)
        .build(&[cluster.seed()])
        .unwrap();
    locks_everywhere(&nodes);
    // Without the names the certificates are refused, and so they are by a URL, since the system does not know the CA.
    let url = format!("rediss+cluster://localhost:{}", cluster.nodes[0].1);
    let unnamed = builder().build(&[cluster.seed()]).unwrap();
    for nodes in [unnamed, builder().connect(&url).unwrap()] {
        let refused = format!("{:#}", anyhow::Error::from(nodes.get_for("a").unwrap_err()));
        assert!(refused.contains("certificate"), "{refused}");
    }
    // Who asks without TLS is told the other ports.
    let plain = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[0].0.port());
    locks_everywhere(&builder().connect(&plain).unwrap());
}

/// It names the ports without TLS to everybody.
#[test]
fn a_cluster_that_speaks_no_tls_within_is_used_by_tls_where_the_ports_are_mapped() {
    let cluster = TlsCluster::start(false);
    let builder = || {
        Nodes::builder()
            .get_timeout(LIMIT / 5)
            .connect_timeout(LIMIT / 10)
    };
    let asked = Instant::now();
    let error = builder()
        .address_map(to_localhost)
        .build(&[cluster.seed()])
        .unwrap()
        .get_for("a")
        .unwrap_err();
    assert!(asked.elapsed() < LIMIT, "{error:?}");
    assert!(matches!(error, Error::Pool { .. }), "{error:?}");
    let ports: HashMap<_, _> = (cluster.nodes.iter())
        .map(|(node, tls)| (node.port(), tls.number()))
        .collect();
    let mapped = move |host: &str, port: u16| (to_localhost(host, port).0, ports[&port]);
    locks_everywhere(
        &builder()
            .address_map(mapped)
            .build(&[cluster.seed()])
            .unwrap(),
    );
}
