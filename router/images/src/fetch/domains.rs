//! Hosts that an operator allows.

use thiserror::Error;
use url::Host;

/// An entry of the list that is no host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no domain; write `example.org`, `*.example.org`, `example.org:8443`, or `*` for every domain"
)]
pub struct DomainError(String);

/// Domains that pictures may be fetched from: nobody else's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domains(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    names: Names,
    /// `None`: those of http and https.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    All,
    One(Host),
    /// All that end with this, which begins with a dot.
    Below(String),
}

impl Domains {
    /// Reads `example.org`, `*.example.org` (every domain below, not itself) and `*`, each with a port or without one.
    ///
    /// # Errors
    /// The first entry that is none of these.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, DomainError> {
        let entries = entries.into_iter().map(|entry| {
            let read = Entry::parse(entry.trim());
            read.ok_or_else(|| DomainError(entry.to_owned()))
        });
        Ok(Self(entries.collect::<Result<_, _>>()?))
    }

    pub(super) fn allow(&self, host: &Host, port: u16) -> bool {
        self.0.iter().any(|entry| entry.allows(host, port))
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        let (name, port) = match text.rsplit_once(':') {
            // Colons of an IPv6 address stand within brackets.
            Some((name, port)) if !port.ends_with(']') => (name, Some(port.parse().ok()?)),
            _ => (text, None),
        };
        let names = if name == "*" {
            Names::All
        } else if let Some(domain) = name.strip_prefix("*.") {
            match parsed(domain)? {
                Host::Domain(domain) => Names::Below(format!(".{domain}")),
                Host::Ipv4(_) | Host::Ipv6(_) => return None,
            }
        } else {
            Names::One(parsed(name)?)
        };
        Some(Self { names, port })
    }

    fn allows(&self, host: &Host, port: u16) -> bool {
        let is_port = match self.port {
            Some(own) => own == port,
            None => port == 80 || port == 443,
        };
        let is_host = match (&self.names, host) {
            (Names::All, _) => true,
            (Names::One(own), host) => own == host,
            (Names::Below(end), Host::Domain(domain)) => domain.ends_with(end.as_str()),
            (Names::Below(_), _) => false,
        };
        is_port && is_host
    }
}

fn parsed(name: &str) -> Option<Host> {
    // The standard of URLs takes it for a letter.
    let is_plain = !name.contains('*');
    let host = is_plain.then(|| Host::parse(name)).and_then(Result::ok);
    host.map(without_dot)
}

/// `example.org.` is `example.org`.
pub(super) fn without_dot(host: Host) -> Host {
    match host {
        Host::Domain(domain) => Host::Domain(domain.trim_end_matches('.').to_owned()),
        literal => literal,
    }
}
