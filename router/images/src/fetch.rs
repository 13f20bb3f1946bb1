//! Pictures that clients name by URL, for operators that allow it.
//!
//! A URL is parsed once. Its host must be one that the operator allows, is resolved once, and only public addresses are
//! dialled: those that were looked at, whatever a name server says a moment later. There is no proxy, no redirect is
//! followed, and nothing but the bytes of the file is taken from an answer.

mod address;
mod connection;
mod domains;
mod error;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use self::address::{Resolve, System};
pub use self::domains::{DomainError, Domains};
pub use self::error::{FetchError, FetcherError};
use self::target::Target;

/// What is fetched at all.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    pub domains: Domains,
    /// Of a file.
    pub max_bytes: usize,
    /// For all of a fetch, from the wait for its turn to the last byte.
    pub timeout: Duration,
    /// Files that are fetched at a time.
    pub at_once: usize,
}

/// Fetches files.
pub struct Fetcher {
    options: FetchOptions,
    turns: Semaphore,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Fetcher")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Fetcher {
    /// # Errors
    /// Where the system has no certificates of authorities, by which servers are known.
    pub fn new(options: FetchOptions) -> Result<Self, FetcherError> {
        let tls = connection::tls(connection::system_roots()?)?;
        Ok(Self::with(options, Arc::new(address::Public(System)), tls))
    }

    /// Dials whatever `resolver` says.
    fn with(options: FetchOptions, resolver: Arc<dyn Resolve>, tls: TlsConnector) -> Self {
        Self {
            turns: Semaphore::new(options.at_once.clamp(1, Semaphore::MAX_PERMITS)),
            options,
            resolver,
            tls,
        }
    }

    /// Returns the bytes behind `url`, whatever they are: [`probe`](crate::probe) looks at them.
    ///
    /// # Errors
    /// In words that tell nothing about the network of the server.
    pub async fn fetch(&self, url: &str) -> Result<Bytes, FetchError> {
        let target = Target::parse(url, &self.options.domains)?;
        let limit = self.options.timeout;
        let fetched = tokio::time::timeout(limit, self.from(&target)).await;
        fetched.unwrap_or_else(|_| {
            let host = target.host();
            Err(FetchError::Timeout { host, limit })
        })
    }

    async fn from(&self, target: &Target) -> Result<Bytes, FetchError> {
        let failed = || FetchError::Unreachable {
            host: target.host(),
        };
        let _turn = self.turns.acquire().await.map_err(|_| failed())?;
        let addresses = target.addresses(&*self.resolver).await?;
        // One that does not answer must leave time for the others.
        let patience = self.options.timeout / 4;
        for address in addresses {
            let dialled = tokio::time::timeout(patience, connection::dial(address, target.port));
            if let Ok(Ok(stream)) = dialled.await {
                let max_bytes = self.options.max_bytes;
                return connection::get(stream, target, &self.tls, max_bytes).await;
            }
        }
        Err(failed())
    }
}
