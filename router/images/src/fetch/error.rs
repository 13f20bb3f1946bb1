//! Why a file was not fetched. Nobody learns from these texts which addresses or ports answer.

use std::time::Duration;

use thiserror::Error;

/// A URL that is not fetched, or not successfully. The caller puts the path of the part before the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    #[error("is not a URL")]
    Url,
    #[error("has the scheme `{0}`; send an http, https or data URL")]
    Scheme(String),
    #[error("names a user or a password; send a URL without them")]
    Credentials,
    #[error("is of the host `{0}`, which --allowed-image-domains does not allow")]
    Domain(String),
    #[error("is of the host `{0}`, which has no public address")]
    Address(String),
    #[error("cannot be fetched, because `{host}` does not answer as a web server does")]
    Unreachable { host: String },
    #[error("cannot be fetched: `{host}` answers with status {status}; redirects are not followed")]
    Status { host: String, status: u16 },
    #[error("has more bytes than the {max} that --max-image-bytes allows")]
    Bytes { max: usize },
    #[error("cannot be fetched, because `{host}` did not send it within {limit:?}")]
    Timeout { host: String, limit: Duration },
}

impl FetchError {
    /// Whether the host of the URL is to blame: it may answer another time.
    pub fn is_of_host(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Status { .. } | Self::Timeout { .. }
        )
    }
}

/// Why nothing can be fetched.
#[derive(Debug, Error)]
pub enum FetcherError {
    #[error(
        "this machine has no certificates of authorities; install its package of them, as ca-certificates"
    )]
    NoRoots,
    #[error("TLS cannot be set up")]
    Tls(#[from] tokio_rustls::rustls::Error),
}
