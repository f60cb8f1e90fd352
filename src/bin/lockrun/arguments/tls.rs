//! The TLS certificates, and the connection that uses them.

use std::path::PathBuf;

use clap::{ArgMatches, Args, parser::ValueSource};
use leasehold::{Locks, Pool, PoolBuilder, Result};

use crate::arguments::values::line;

/// The certificates and the key.
#[derive(Args, Debug)]
pub(crate) struct TlsFiles {
    /// PEM file of the CA to trust, instead of the system's CAs
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CA", value_parser = line::<PathBuf>)]
    ca: Option<PathBuf>,

    /// PEM file of the client certificate
    #[arg(
        long, value_name = "FILE", env = "LEASEHOLD_CERT", value_parser = line::<PathBuf>,
        requires = "key"
    )]
    cert: Option<PathBuf>,

    /// PEM file of the client certificate's private key
    #[arg(
        long, value_name = "FILE", env = "LEASEHOLD_KEY", value_parser = line::<PathBuf>,
        requires = "cert"
    )]
    key: Option<PathBuf>,
}

impl TlsFiles {
    /// Drops the certificates from the environment if this URL is without TLS: they are for the
    /// host's other URLs.
    pub(crate) fn for_url(self, url: &str, matches: &ArgMatches) -> Self {
        let is_used = |id: &str| {
            url.starts_with("rediss") || matches.value_source(id) != Some(ValueSource::EnvVariable)
        };
        Self {
            ca: self.ca.filter(|_| is_used("ca")),
            cert: self.cert.filter(|_| is_used("cert")),
            key: self.key.filter(|_| is_used("key")),
        }
    }

    pub(crate) fn locks(&self, url: &str) -> Result<Locks> {
        Locks::connect_with(url, self.settings()?)
    }

    #[cfg(feature = "tls-rustls")]
    fn settings(&self) -> Result<PoolBuilder> {
        use leasehold::redis::{ClientTlsConfig, TlsCertificates};

        if self.first().is_none() {
            return Ok(Pool::builder());
        }
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: read("--cert", cert)?,
                client_key: read("--key", key)?,
            }),
            _ => None,
        };
        let root_cert = self.ca.as_ref().map(|ca| read("--ca", ca)).transpose()?;
        Ok(Pool::builder().certificates(TlsCertificates {
            client_tls,
            root_cert,
        }))
    }

    #[cfg(not(feature = "tls-rustls"))]
    fn settings(&self) -> Result<PoolBuilder> {
        let Some(argument) = self.first() else {
            return Ok(Pool::builder());
        };
        let reason = "this lockrun was built without TLS: build it with the feature `tls-rustls`";
        Err(leasehold::Error::Invalid {
            context: leasehold::ErrorContext::default(),
            argument,
            reason: reason.into(),
        })
    }

    /// The first argument that is given.
    fn first(&self) -> Option<&'static str> {
        let given = [
            ("--ca", &self.ca),
            ("--cert", &self.cert),
            ("--key", &self.key),
        ];
        let given = given.into_iter().find(|(_, file)| file.is_some());
        given.map(|(argument, _)| argument)
    }
}

#[cfg(feature = "tls-rustls")]
fn read(argument: &'static str, file: &std::path::Path) -> Result<Vec<u8>> {
    use crate::speaking::text::of_system;

    std::fs::read(file).map_err(|error| leasehold::Error::Invalid {
        context: leasehold::ErrorContext::default(),
        argument,
        reason: format!("cannot read {}: {}", file.display(), of_system(&error)),
    })
}
