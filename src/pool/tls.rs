//! TLS: the certificates of a client, and the crypto provider of the process.

use redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates};
use rustls::{
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use crate::error::{Error, Result, ensure};

const ARGUMENT: &str = "certificates";

/// Sets a crypto provider for the process: redis-rs panics if there is none and rustls cannot
/// choose. An application that wants another provider installs it before it makes a pool.
pub(super) fn prepare_tls(server: &ConnectionAddr) {
    if matches!(server, ConnectionAddr::TcpTls { .. }) && CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = ring::default_provider().install_default();
    }
}

/// Returns the client with these certificates instead of its own.
pub(super) fn with_certificates(client: &Client, certificates: &TlsCertificates) -> Result<Client> {
    let settings = client.get_connection_info().clone();
    let check = |is_kept, reason| ensure(is_kept, ARGUMENT, reason);
    let is_tls = matches!(settings.addr(), ConnectionAddr::TcpTls { .. });
    check(is_tls, "they require TLS: the URL must begin with `rediss`")?;
    let ca = certificates.root_cert.as_ref();
    let is_ca = ca.is_none_or(|pem| certificates_in(pem).is_some());
    check(is_ca, "the CA must be one or more PEM certificates")?;
    if let Some(own) = &certificates.client_tls {
        check_pair(own)?;
    }
    Client::build_with_tls(settings, certificates.clone())
        .map_err(|error| Error::invalid(ARGUMENT, error.to_string()))
}

/// Parses certificates. `None`: there are none, or one is not valid.
fn certificates_in(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    (!all.is_empty()).then_some(all)
}

fn check_pair(own: &ClientTlsConfig) -> Result<()> {
    let chain = certificates_in(&own.client_cert);
    let key = PrivateKeyDer::from_pem_slice(&own.client_key).ok();
    let pair = chain.zip(key).zip(CryptoProvider::get_default());
    let ((chain, key), provider) = pair.ok_or_else(|| {
        let reason = "the client needs a certificate and its private key, both in PEM, the key \
                      without a password";
        Error::invalid(ARGUMENT, reason)
    })?;
    let refused = CertifiedKey::from_der(chain, key, provider).err();
    let refused = refused.map(|error| {
        // Made by openssl without extensions, it has version 1.
        let reason = "the client needs a certificate of X.509 version 3 and its private key";
        Error::invalid(ARGUMENT, format!("{reason}: {error}"))
    });
    refused.map_or(Ok(()), Err)
}
