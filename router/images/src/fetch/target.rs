//! What a URL names.

use std::net::IpAddr;

use url::{Host, Position, Url};

use super::address::{Resolve, is_public};
use super::domains::{Domains, without_dot};
use super::error::FetchError;

/// A host that may be asked, and what for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub is_secure: bool,
    host: Host,
    pub port: u16,
    /// For the field `Host` of the request.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

impl Target {
    pub(super) fn parse(url: &str, domains: &Domains) -> Result<Self, FetchError> {
        let url = Url::parse(url).map_err(|_| FetchError::Url)?;
        let is_secure = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(FetchError::Scheme(other.to_owned())),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(FetchError::Credentials);
        }
        let host = url.host().ok_or(FetchError::Url)?.to_owned();
        let port = url.port_or_known_default().ok_or(FetchError::Url)?;
        let target = Self {
            is_secure,
            host: without_dot(host),
            port,
            authority: url[Position::BeforeHost..Position::AfterPort].to_owned(),
            path: url[Position::BeforePath..Position::AfterQuery].to_owned(),
        };
        if !domains.allow(&target.host, port) {
            return Err(FetchError::Domain(target.host()));
        }
        match target.literal() {
            Some(address) if !is_public(address) => Err(FetchError::Address(target.host())),
            _ => Ok(target),
        }
    }

    pub(super) fn host(&self) -> String {
        self.host.to_string()
    }

    fn literal(&self) -> Option<IpAddr> {
        match self.host {
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
            Host::Domain(_) => None,
        }
    }

    /// Where the host is, at least one address.
    pub(super) async fn addresses(
        &self,
        resolver: &dyn Resolve,
    ) -> Result<Vec<IpAddr>, FetchError> {
        if let Some(address) = self.literal() {
            return Ok(vec![address]);
        }
        let host = self.host();
        // A name without addresses and one with only private ones are the same to a client.
        let found = resolver.resolve(&host).await.unwrap_or_default();
        if found.is_empty() {
            return Err(FetchError::Address(host));
        }
        Ok(found)
    }
}
