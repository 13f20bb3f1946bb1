//! Mutual TLS between launchers: whoever connects has a certificate of the authority that all nodes trust.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::wire::Stream;
use crate::args::NodeArgs;
use crate::error::LauncherError;

/// The name that every node's certificate has, whatever its address: the authority is that of the nodes alone. The
/// router's connections to shards of other nodes use the same.
pub const NODE_NAME: &str = "text-generation";

/// How connections between nodes are protected.
#[derive(Clone)]
pub enum Security {
    /// The operator has renounced it.
    Plain,
    Tls {
        acceptor: TlsAcceptor,
        connector: TlsConnector,
    },
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.scheme())
    }
}

impl Security {
    /// Reads the files, all three of which are there unless security was renounced.
    pub fn of(args: &NodeArgs) -> Result<Self, LauncherError> {
        let (Some(certificate), Some(key), Some(authority)) =
            (&args.cluster_cert, &args.cluster_key, &args.cluster_ca)
        else {
            return Ok(Self::Plain);
        };
        let refused =
            |flag: &'static str, path: &Path, reason: &dyn ToString| LauncherError::Certificate {
                flag,
                path: path.display().to_string(),
                reason: reason.to_string(),
            };
        let chain = certificates(certificate)
            .map_err(|error| refused("--cluster-cert", certificate, &error))?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| refused("--cluster-key", key, &error))?;
        let roots = roots(authority).map_err(|error| refused("--cluster-ca", authority, &error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
            .build()
            .map_err(|error| refused("--cluster-ca", authority, &error))?;
        // The key is refused here where it is not that of the certificate.
        let unfit = |error: rustls::Error| refused("--cluster-key", key, &error);
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(chain.clone(), private.clone_key())
            })
            .map_err(unfit)?;
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_root_certificates(roots)
                    .with_client_auth_cert(chain, private)
            })
            .map_err(unfit)?;
        Ok(Self::Tls {
            acceptor: Arc::new(server).into(),
            connector: Arc::new(client).into(),
        })
    }

    /// Of addresses of shards.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Plain => "http",
            Self::Tls { .. } => "https",
        }
    }

    /// The side of node 0.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Plain => Box::new(stream),
            Self::Tls { acceptor, .. } => Box::new(acceptor.accept(stream).await?),
        })
    }

    /// The side of the others.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Plain => Box::new(stream),
            Self::Tls { connector, .. } => {
                let name = ServerName::try_from(NODE_NAME).map_err(io::Error::other)?;
                Box::new(connector.connect(name, stream).await?)
            }
        })
    }
}

/// What TLS says of a connection that has failed, where it was TLS that failed.
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err("it holds no certificate in PEM".to_owned()),
        outcome => outcome.map_err(|error| error.to_string()),
    }
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(roots))
}
