//! `rediss://` to servers with certificates made by the test: `cargo test --all-features --test
//! tls`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod certificates;
mod cluster;
#[cfg(unix)]
mod lockrun;

use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{
    Server,
    server::{Port, find_binary, free_port, has_tls},
    wait::{comes_true, unless_halted},
};
use leasehold::{Locks, Pool, acquire_lock_with_timeout, redis, release_lock};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use redis::{Client, TlsCertificates};
use tempfile::TempDir;

/// A wait over this has hung.
const LIMIT: Duration = Duration::from_secs(10);

/// A server with a TLS port, and the CA that signed its certificate for `localhost`.
struct TlsServer {
    _server: Server,
    directory: TempDir,
    port: Port,
    ca: String,
}

impl TlsServer {
    /// `None` if the server was built without TLS; then the test is skipped.
    fn start() -> Option<Self> {
        Self::start_by("no")
    }

    /// `asks`: `yes` if it requires client certificates, else `no`.
    fn start_by(asks: &str) -> Option<Self> {
        Self::start_speaking("TLSv1.2 TLSv1.3", asks)
    }

    fn start_speaking(versions: &str, asks: &str) -> Option<Self> {
        if !has_tls() {
            return None;
        }
        let ca = certificate_authority();
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            fs::write(directory.path().join(name), text).unwrap();
        };
        let certify = |name: &str, (certificate, key): (&str, &str)| {
            let pair = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.into()]).unwrap();
            write(certificate, params.signed_by(&pair, &ca).unwrap().pem());
            write(key, pair.serialize_pem());
        };
        certify("localhost", ("certificate.pem", "key.pem"));
        certify("client", ("client.pem", "client.key"));
        write("ca.pem", ca.pem());
        let (server, port) = start_server(directory.path(), versions, asks);
        Some(Self {
            _server: server,
            directory,
            port,
            ca: ca.pem(),
        })
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn url(&self, host: &str) -> String {
        format!("rediss://{host}:{}/", self.port)
    }

    /// A client that trusts this CA only.
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

/// `Server` chooses the plain port. This function chooses the TLS port, which another process may
/// take meanwhile.
fn start_server(directory: &Path, versions: &str, asks: &str) -> (Server, Port) {
    let at = |name: &str| directory.join(name).display().to_string();
    let (certificate, key, ca) = (at("certificate.pem"), at("key.pem"), at("ca.pem"));
    let start = || {
        let port = free_port()?;
        let port_text = port.to_string();
        let tls_port = ["--tls-port", &port_text, "--tls-auth-clients", asks];
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let ca = ["--tls-ca-cert-file", &ca, "--tls-protocols", versions];
        let server = Server::start_with(&[&tls_port[..], &files, &ca].concat())?;
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

/// A pool with short time-outs.
fn hasty_pool(url: &str) -> Pool {
    Pool::builder()
        .connect_timeout(Duration::from_millis(200))
        .build(&Client::open(url).unwrap())
        .unwrap()
}

#[test]
fn a_server_with_a_private_cas_certificate_works() {
    unless_halted(|| {
        for version in ["TLSv1.3", "TLSv1.2"] {
            let Some(server) = TlsServer::start_speaking(version, "no") else {
                return;
            };
            let pool = Pool::new(&server.client("localhost")).unwrap();
            for _ in 0..2 {
                let mut conn = pool.get().unwrap();
                let token =
                    acquire_lock_with_timeout(&mut conn, "a", Duration::ZERO, LIMIT).unwrap();
                assert!(release_lock(&mut conn, "a", &token.unwrap()).unwrap());
            }
        }
    });
}

#[test]
fn a_certificate_of_an_unknown_ca_is_refused() {
    unless_halted(|| {
        let Some(server) = TlsServer::start() else {
            return;
        };
        let pool = Pool::connect(&server.url("localhost")).unwrap();
        let why = why_not(&pool);
        let server = format!("cannot reach redis at localhost:{} (TLS)", server.port);
        assert!(why.contains(&server), "{why}");
        assert!(
            why.contains("invalid peer certificate: UnknownIssuer"),
            "{why}"
        );
        // As a wrong password does, it ends a wait at once.
        let asked = Instant::now();
        let refused = Locks::new(&pool).unwrap().lock("a").acquire(2 * LIMIT);
        assert!(refused.unwrap_err().to_string().contains("cannot reach"));
        assert!(asked.elapsed() < LIMIT);
    });
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    unless_halted(|| {
        let Some(server) = TlsServer::start() else {
            return;
        };
        let pool = Pool::new(&server.client("127.0.0.1")).unwrap();
        let why = why_not(&pool);
        assert!(
            why.contains("invalid peer certificate: certificate not valid for name"),
            "{why}"
        );
    });
}

#[test]
fn a_server_without_tls_is_reported_at_once() {
    let plain = Server::start().unwrap();
    let url = format!("rediss://127.0.0.1:{}/", plain.port());
    let why = why_not(&hasty_pool(&url));
    let server = format!("redis at 127.0.0.1:{} (TLS)", plain.port());
    assert!(why.contains(&server), "{why}");
}

#[test]
fn a_missing_handshake_ends_in_time() {
    for begins in [&[][..], BEGUN] {
        check_that_a_missing_handshake_ends_in_time(begins);
    }
}

/// The beginning of a TLS record.
const BEGUN: &[u8] = &[0x16, 3, 3, 0x40, 0];

/// A peer that sends this, then a byte now and then if it is anything.
fn check_that_a_missing_handshake_ends_in_time(begins: &'static [u8]) {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = silent.local_addr().unwrap();
    thread::spawn(move || {
        let clients = silent.incoming().map_while(Result::ok).inspect(|client| {
            let mut client = client.try_clone().unwrap();
            thread::spawn(move || {
                let mut sent = client.write_all(begins);
                while sent.is_ok() && !begins.is_empty() {
                    thread::sleep(Duration::from_millis(50));
                    sent = client.write_all(&[0]);
                }
            });
        });
        drop(clients.collect::<Vec<_>>());
    });
    let why = why_not(&hasty_pool(&format!("rediss://{address}/")));
    assert!(
        why.contains(&format!("no answer from redis at {address}")),
        "{why}"
    );
}

/// A sentinel that monitors the server, uses TLS only, and reports host names, because certificates
/// contain names.
struct TlsSentinel {
    process: Child,
    port: Port,
}

impl TlsSentinel {
    fn watching(server: &TlsServer) -> Self {
        let (directory, port) = (server.directory.path(), free_port().unwrap());
        let at = |name: &str| server.file(name);
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
fn sentinels_and_master_with_a_private_cas_certificates_work() {
    unless_halted(|| {
        let Some(server) = TlsServer::start() else {
            return;
        };
        let sentinel = TlsSentinel::watching(&server);
        let url = format!("rediss://localhost:{}/", sentinel.port);
        // Only the address of the client for the master is ignored.
        let master = server.client("nowhere.invalid");
        let pool = Pool::builder()
            .build_on_sentinels(&[server.client_of(&url)], "mymaster", &master)
            .unwrap();
        assert!(comes_true(|| pool.get().is_ok()));
        let mut conn = pool.get().unwrap();
        let token = acquire_lock_with_timeout(&mut conn, "a", Duration::ZERO, LIMIT).unwrap();
        assert!(release_lock(&mut conn, "a", &token.unwrap()).unwrap());
        // A URL uses the system's certificates, which do not include this CA.
        let unknown = format!("rediss+sentinel://localhost:{}/mymaster", sentinel.port);
        let refused = why_not(&Pool::connect(&unknown).unwrap());
        assert!(
            refused.contains("no sentinel of 1") && refused.contains("certificate"),
            "{refused}"
        );
    });
}
