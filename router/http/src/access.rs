//! Who may call: API keys, and the routes that ask for none.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;
use crate::headers::X_API_KEY;
use crate::tenant::{self, PrefixCaching};

/// What load balancers ask, beside `GET /`. They come without a key, and in before all others.
const PROBES: [&str; 4] = ["/health", "/live", "/ready", "/ping"];

const METRICS: &str = "/metrics";

/// Further routes without a key: pages that are the same in every server and that a browser opens without a header.
/// Whatever is neither here nor a probe asks for a key, paths without a route included.
const OPEN: [&str; 7] = [
    "/docs",
    "/docs/",
    "/docs/{*rest}",
    "/api-doc/openapi.json",
    "/ui",
    "/ui/",
    "/ui/{file}",
];

/// The keys that may call, as SHA-256 digests: no key is kept that could leak. Empty: everybody may.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Arc<[[u8; 32]]>);

impl ApiKeys {
    /// Reads a file of keys, one a line. Empty lines and lines that start with `#` are left out.
    ///
    /// # Errors
    /// When the file cannot be read, holds no key, or a line is none; a message never shows the line.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the keys in {shown} (`--api-key-file`)"))?;
        let lines = text.lines().map(str::trim).enumerate();
        let keys = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(index, line)| {
                let number = index + 1;
                digest_of_key(line).map_err(|reason| {
                    anyhow::anyhow!("{shown} line {number} (`--api-key-file`): {reason}")
                })
            })
            .collect::<anyhow::Result<Arc<_>>>()?;
        // A server whose keys were lost must not come up open.
        anyhow::ensure!(!keys.is_empty(), "{shown} holds no key (`--api-key-file`)");
        Ok(Self(keys))
    }

    /// Bytes that only those who know the keys can know; the same on every server with the same keys.
    pub fn secret(&self) -> Vec<u8> {
        self.0.concat()
    }

    /// The keys of both.
    pub fn and(&self, others: &Self) -> Self {
        Self(self.0.iter().chain(others.0.iter()).copied().collect())
    }

    /// Whether a request with these headers may pass: one of `Authorization: Bearer <key>` and `x-api-key: <key>` holds
    /// a key. Every key is compared, each in constant time, so that the time tells nothing about them.
    fn admit(&self, headers: &HeaderMap) -> bool {
        self.0.is_empty() || self.given(headers).is_some()
    }

    /// The digest of the key that a request with these headers has given, if it is one of these.
    fn given(&self, headers: &HeaderMap) -> Option<[u8; 32]> {
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()));
        let plain = headers.get(X_API_KEY).map(|value| value.as_bytes());
        let known = |given: &[u8; 32]| {
            let equal = self.0.iter().map(|key| key.ct_eq(given));
            equal.fold(Choice::from(0), |any, one| any | one).into()
        };
        [bearer, plain]
            .into_iter()
            .flatten()
            .map(digest)
            .find(known)
    }
}

impl FromStr for ApiKeys {
    type Err = &'static str;

    /// Reads keys, one a line.
    fn from_str(keys: &str) -> Result<Self, Self::Err> {
        let keys = keys.lines().filter(|key| !key.is_empty());
        let keys: Arc<[_]> = keys.map(digest_of_key).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(NO_KEY);
        }
        Ok(Self(keys))
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

const NO_KEY: &str = "an API key must not be empty or hold control characters";

/// Refuses what fits in no header, and what would look like protection and be none.
fn digest_of_key(key: &str) -> Result<[u8; 32], &'static str> {
    if key.trim().is_empty() || key.chars().any(char::is_control) {
        return Err(NO_KEY);
    }
    Ok(digest(key.as_bytes()))
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The key of `Bearer <key>`. The name of a scheme has no case (RFC 9110, 11.1); the key has.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
}

/// Refuses requests without a key. What is open is decided by the route that was matched, never by the path as sent:
/// two readings of one path must not disagree about who may pass.
pub async fn require_api_key(
    State(access): State<Access>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(MatchedPath::as_str);
    let keys = &access.keys;
    let open = is_open(request.method(), route) || (access.open_metrics && route == Some(METRICS));
    if !open && !keys.admit(request.headers()) {
        return Err(ApiError::unauthorized());
    }
    match keys.given(request.headers()) {
        Some(key) if access.prefix_caching == PrefixCaching::PerKey => {
            Ok(tenant::scope(&key, next.run(request)).await)
        }
        _ => Ok(next.run(request).await),
    }
}

/// Who may call, and who shares what is cached.
#[derive(Debug, Clone)]
pub struct Access {
    /// One of them is asked for on every route but the open ones.
    pub keys: ApiKeys,
    pub prefix_caching: PrefixCaching,
    /// Whether `/metrics` asks for none either.
    pub open_metrics: bool,
}

fn is_open(method: &Method, route: Option<&str>) -> bool {
    route.is_some_and(|route| OPEN.contains(&route) || is_probe(method, route))
}

/// Whether a request asks how the server is, and nothing else.
pub fn is_probe(method: &Method, path: &str) -> bool {
    PROBES.contains(&path) || (path == "/" && method == Method::GET)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn admits(keys: &str, name: &'static str, value: &str) -> bool {
        let keys: ApiKeys = keys.parse().expect("good keys");
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).expect("a good header"));
        keys.admit(&headers)
    }

    #[test]
    fn keys_are_compared_exactly() {
        assert!(admits("Secret", "authorization", "Bearer Secret"));
        assert!(admits("Secret", "authorization", "bearer Secret"));
        assert!(admits("Secret", "x-api-key", "Secret"));
        assert!(admits("one\ntwo", "x-api-key", "two"));
        for wrong in [
            "Bearer secret",
            "Bearer Secret ",
            "Bearer ",
            "Secret",
            "Basic Secret",
            "Bearer one\ttwo",
        ] {
            assert!(!admits("Secret", "authorization", wrong), "{wrong}");
        }
        assert!(!admits("Secret", "x-api-key", "Bearer Secret"));
        let keys: ApiKeys = "k".parse().expect("a good key");
        assert!(!keys.admit(&HeaderMap::new()));
        assert!(ApiKeys::default().admit(&HeaderMap::new()));
    }

    #[test]
    fn empty_keys_are_refused_and_none_is_shown() {
        for empty in ["", " ", "\n", "a\n \nb"] {
            assert!(empty.parse::<ApiKeys>().is_err(), "{empty:?}");
        }
        let keys: ApiKeys = "hunter2".parse().expect("a good key");
        assert_eq!(format!("{keys:?}"), "ApiKeys(1)");
    }

    #[test]
    fn a_file_holds_a_key_a_line() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            ApiKeys::from_file(file.path()).map_err(|error| format!("{error:#}"))
        };
        let keys = read("# team a\nfirst\n\n  second  \r\n").expect("two keys");
        assert_eq!(Ok(keys), "first\nsecond".parse());
        for (text, reason) in [("# nobody\n", "holds no key"), ("good\nb\tad\n", "line 2")] {
            let message = read(text).expect_err("no keys");
            assert!(
                message.contains(reason) && message.contains("--api-key-file"),
                "{message}"
            );
            assert!(!message.contains("ad\n"), "{message}");
        }
        assert!(ApiKeys::from_file(Path::new("/nonexistent/keys")).is_err());
    }

    #[test]
    fn only_the_probes_and_the_pages_are_open() {
        assert!(is_open(&Method::GET, Some("/health")));
        assert!(is_open(&Method::GET, Some("/")));
        assert!(!is_open(&Method::POST, Some("/")));
        assert!(!is_open(&Method::GET, Some("/metrics")));
        assert!(!is_open(&Method::GET, None));
    }
}
