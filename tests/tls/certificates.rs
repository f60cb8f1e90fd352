//! `PoolBuilder::certificates`: a CA and a client certificate, with every kind of URL.

use leasehold::{
    Error, Locks, Pool, PoolBuilder,
    redis::{ClientTlsConfig, TlsCertificates},
};

use crate::{
    LIMIT, TlsSentinel, TlsServer,
    cluster::{TlsCluster, locks_everywhere, to_localhost},
    common::wait::comes_true,
    why_not,
};

/// Made by `openssl x509 -req` without extensions.
const OF_VERSION_1: &str = "-----BEGIN CERTIFICATE-----\n\
    MIIBFjCBvQIUPE5iEVDi+RHGvzFv8AZIGaiWdzIwCgYIKoZIzj0EAwIwDTELMAkG\n\
    A1UEAwwCdjEwIBcNMjYxMTI4MDkwNjA4WhgPMjEyNjExMDQwOTA2MDhaMA0xCzAJ\n\
    BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEVQTuUM1RTVJIQQpA\n\
    l5saIWsDv1+EiJp3UN8P2IOdeOLOVeq+mijByASGgJZosv9j3iALROWtx7rABtG4\n\
    qLVb9zAKBggqhkjOPQQDAgNIADBFAiAaaBUdjUsYNUdDFZJM/YrMW8hxewk+6Agy\n\
    a/7S6Sk5UQIhAOGy7Xvf+EoINDwSBJ0j2tEjmydVL13UPLmNevEEUamj\n\
    -----END CERTIFICATE-----\n";

/// The CA, and the client's certificate and key.
fn certificates(server: &TlsServer) -> TlsCertificates {
    let read = |name: &str| std::fs::read(server.file(name)).unwrap();
    TlsCertificates {
        root_cert: Some(read("ca.pem")),
        client_tls: Some(ClientTlsConfig {
            client_cert: read("client.pem"),
            client_key: read("client.key"),
        }),
    }
}

fn by(certificates: TlsCertificates) -> PoolBuilder {
    Pool::builder().certificates(certificates)
}

#[test]
fn a_server_that_requires_a_certificate_is_used_with_one_only() {
    let Some(server) = TlsServer::start_by("yes") else {
        return;
    };
    let url = server.url("localhost");
    let locks = Locks::connect_with(&url, by(certificates(&server))).unwrap();
    locks.lock("a").acquire(LIMIT).unwrap().release().unwrap();
    let without = TlsCertificates {
        client_tls: None,
        ..certificates(&server)
    };
    let refused = why_not(&by(without).connect(&url).unwrap());
    assert!(refused.contains("cannot reach redis"), "{refused}");
}

#[test]
fn sentinels_and_their_master_get_the_same_certificates() {
    let Some(server) = TlsServer::start_by("yes") else {
        return;
    };
    let sentinel = TlsSentinel::watching(&server);
    let url = format!("rediss+sentinel://localhost:{}/mymaster", sentinel.port);
    let locks = Locks::connect_with(&url, by(certificates(&server))).unwrap();
    let lock = locks.lock("a");
    assert!(comes_true(|| lock.try_acquire().is_ok()));
    lock.acquire(LIMIT).unwrap().release().unwrap();
}

#[test]
fn all_nodes_of_a_cluster_get_the_same_certificates() {
    let Some(cluster) = TlsCluster::start_by(true, "yes") else {
        return;
    };
    let url = format!("rediss+cluster://localhost:{}", cluster.nodes[0].1);
    let certificates = || certificates(&cluster.files);
    let nodes = Pool::builder().certificates(certificates());
    locks_everywhere(&nodes.address_map(to_localhost).connect_nodes(&url).unwrap());
    // The node in the URL is reached by its name. It reports other nodes by their addresses, which
    // the certificates do not cover.
    let locks = Locks::connect_with(&url, by(certificates())).unwrap();
    let refused = locks.lock("a").try_acquire().unwrap_err();
    let refused = format!("{:#}", anyhow::Error::from(refused));
    assert!(refused.contains("not valid for name"), "{refused}");
}

#[test]
fn unusable_certificates_are_refused_before_anything_is_sent() {
    let Some(server) = TlsServer::start() else {
        return;
    };
    let good = || certificates(&server);
    let own = || good().client_tls.unwrap();
    let with_own = |client_tls| TlsCertificates {
        client_tls: Some(client_tls),
        ..good()
    };
    let nothing = || b"secret".to_vec();
    let no_ca = TlsCertificates {
        root_cert: Some(nothing()),
        ..good()
    };
    let no_certificate = with_own(ClientTlsConfig {
        client_cert: nothing(),
        ..own()
    });
    let no_key = with_own(ClientTlsConfig {
        client_key: nothing(),
        ..own()
    });
    let others_key = with_own(ClientTlsConfig {
        client_key: std::fs::read(server.file("key.pem")).unwrap(),
        ..own()
    });
    let old = with_own(ClientTlsConfig {
        client_cert: OF_VERSION_1.into(),
        ..own()
    });
    for (scheme, certificates, why) in [
        ("redis", good(), "`rediss`"),
        ("redis+sentinel", good(), "`rediss`"),
        ("redis+cluster", good(), "`rediss`"),
        ("rediss", no_ca, "the CA"),
        ("rediss", no_certificate, "its private key"),
        ("rediss", no_key, "its private key"),
        ("rediss", others_key, "its private key"),
        ("rediss", old, "a certificate of X.509 version 3"),
    ] {
        let path = if scheme.ends_with("sentinel") {
            "m"
        } else {
            ""
        };
        let url = format!("{scheme}://localhost/{path}");
        let error = Locks::connect_with(&url, by(certificates)).unwrap_err();
        let Error::Invalid {
            argument, reason, ..
        } = &error
        else {
            unreachable!("{error:?}");
        };
        assert_eq!(*argument, "certificates");
        assert!(reason.contains(why), "{why}: {reason}");
        assert!(!reason.contains("secret"), "{reason}");
    }
    let shown = format!("{:?}", by(good()));
    assert!(!shown.contains("client_key: ["), "{shown}");
}
