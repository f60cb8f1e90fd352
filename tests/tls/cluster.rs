//! A cluster used over TLS, with and without TLS between its nodes.

use std::{
    collections::{HashMap, HashSet},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Locks, Nodes, Pool, acquire_lock_with_timeout, redis, release_lock};
use redis::Client;

use crate::{
    LIMIT, TlsServer,
    common::{
        Server,
        server::{Port, free_cluster_port},
    },
};

/// Three masters, each with a TLS port and a plain one, and certificates for `localhost` alone.
pub(crate) struct TlsCluster {
    pub(crate) nodes: Vec<(Server, Port)>,
    pub(crate) files: TlsServer,
}

impl TlsCluster {
    /// `speaks`: the nodes use TLS among themselves, and report their TLS ports to TLS clients.
    fn start(speaks: bool) -> Option<Self> {
        Self::start_by(speaks, "no")
    }

    /// `asks`: `yes` if the nodes require client certificates, else `no`.
    pub(crate) fn start_by(speaks: bool, asks: &str) -> Option<Self> {
        let files = TlsServer::start()?;
        let at = |name: &str| files.file(name);
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
            let tls = ["--tls-port", &port_text, "--tls-auth-clients", asks];
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
        Some(cluster)
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
                "the nodes do not form a cluster"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The first node's TLS client.
    fn seed(&self) -> Client {
        self.files
            .client_of(&format!("rediss://localhost:{}/", self.nodes[0].1))
    }
}

/// A lock of each master, by `Locks` and by a plain function.
pub(crate) fn locks_everywhere(nodes: &Nodes) {
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

/// The certificate is for `localhost`, but the nodes report their addresses.
pub(crate) fn to_localhost(host: &str, port: u16) -> (String, u16) {
    assert_eq!(host, "127.0.0.1");
    (String::from("localhost"), port)
}

#[test]
fn a_tls_cluster_is_used_under_its_certificates_names() {
    let Some(cluster) = TlsCluster::start(true) else {
        return;
    };
    let builder = || Pool::builder().get_timeout(LIMIT / 5);
    let nodes = builder()
        .address_map(to_localhost)
        .build_on_nodes(&[cluster.seed()])
        .unwrap();
    locks_everywhere(&nodes);
    // Without the mapped names the certificates are refused; with a URL too, because the system
    // does not know the CA.
    let url = format!("rediss+cluster://localhost:{}", cluster.nodes[0].1);
    let unnamed = builder().build_on_nodes(&[cluster.seed()]).unwrap();
    for nodes in [unnamed, builder().connect_nodes(&url).unwrap()] {
        let refused = format!("{:#}", anyhow::Error::from(nodes.get_for("a").unwrap_err()));
        assert!(refused.contains("certificate"), "{refused}");
    }
    // A client without TLS gets the plain ports.
    let plain = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[0].0.port());
    locks_everywhere(&builder().connect_nodes(&plain).unwrap());
}

/// It reports the plain ports to all clients.
#[test]
fn a_cluster_without_internal_tls_is_used_through_mapped_ports() {
    let Some(cluster) = TlsCluster::start(false) else {
        return;
    };
    let builder = || {
        Pool::builder()
            .get_timeout(LIMIT / 5)
            .connect_timeout(LIMIT / 10)
    };
    let asked = Instant::now();
    let error = builder()
        .address_map(to_localhost)
        .build_on_nodes(&[cluster.seed()])
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
            .build_on_nodes(&[cluster.seed()])
            .unwrap(),
    );
}
