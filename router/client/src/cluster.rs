//! Certificates by which nodes know each other, for shards of other nodes.

use std::fs;
use std::path::Path;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::error::ClientError;

/// The name that every node's certificate has, whatever its address: the authority is that of the nodes alone. The
/// launcher's sessions use the same.
const NODE_NAME: &str = "text-generation";

/// Mutual TLS with the shards of other nodes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClusterTls(ClientTlsConfig);

impl ClusterTls {
    /// From PEM files: the certificate of this node, its key, and the authority that all nodes trust.
    ///
    /// # Errors
    /// `Connection`, naming the file, where one cannot be read.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        authority: &Path,
    ) -> Result<Self, ClientError> {
        let read = |path: &Path| {
            fs::read(path).map_err(|error| {
                ClientError::Connection(format!("cannot read {}: {error}", path.display()))
            })
        };
        let identity = Identity::from_pem(read(certificate)?, read(key)?);
        let config = ClientTlsConfig::new()
            .domain_name(NODE_NAME)
            .identity(identity)
            .ca_certificate(Certificate::from_pem(read(authority)?));
        Ok(Self(config))
    }

    pub(crate) fn config(&self) -> ClientTlsConfig {
        self.0.clone()
    }
}
