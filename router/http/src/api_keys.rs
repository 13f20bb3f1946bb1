//! API keys and whose they are.

mod file;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use text_generation_core::tenant::{Grant, Tenant};

use crate::headers::X_API_KEY;

/// The keys that may call, as SHA-256 digests: no key is kept that could leak. Empty: everybody may.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<[ApiKey]>);

/// One key.
#[derive(Debug, Clone)]
pub struct ApiKey {
    digest: [u8; 32],
    /// As the operator calls the owner; none for a key without a name.
    name: Option<String>,
    grant: Grant,
    tenant: Tenant,
}

impl ApiKey {
    /// Bytes that stand for the key.
    pub fn digest(&self) -> &[u8] {
        &self.digest
    }

    /// Whose it is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }
}

impl ApiKeys {
    /// Reads a file of keys, one line each: see `docs/operation.md`, "Access". Empty lines and lines that start with `#`
    /// are left out.
    ///
    /// # Errors
    /// When the file cannot be read, holds no key, or a line is wrong; a message never shows the line.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::of(file::read(path)?))
    }

    /// Bytes that only those who know the keys can know; the same on every server with the same keys.
    pub fn secret(&self) -> Vec<u8> {
        self.0.iter().flat_map(|key| key.digest).collect()
    }

    /// Nobody needs a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys of both. A key of both is that of `others`.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        let own = self.0.iter();
        let own = own.filter(|key| others.0.iter().all(|other| other.digest != key.digest));
        let keys = own.chain(others.0.iter());
        Self::of(keys.map(|key| (key.digest, key.name.clone(), key.grant.clone())))
    }

    /// Gives every key its tenant: keys of one name have one, keys without a name one each.
    fn of(keys: impl IntoIterator<Item = Owned>) -> Self {
        let mut all: Vec<ApiKey> = Vec::new();
        for (number, (digest, name, grant)) in (1..).zip(keys) {
            let before = all.iter().find(|key| name.is_some() && key.name == name);
            let tenant = before.map(|key| key.tenant.clone());
            // No name that an operator may give has a space.
            let shown = || name.clone().unwrap_or_else(|| format!("key {number}"));
            all.push(ApiKey {
                tenant: tenant.unwrap_or_else(|| Tenant::new(&shown(), grant.clone())),
                digest,
                name,
                grant,
            });
        }
        Self(all.into())
    }

    /// The key that a request with these headers has given, if it is one of these: one of `Authorization: Bearer <key>`
    /// and `x-api-key: <key>`. Every key is compared, each in constant time, so that the time tells nothing about them.
    pub fn given(&self, headers: &HeaderMap) -> Option<&ApiKey> {
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()));
        let plain = headers.get(X_API_KEY).map(|value| value.as_bytes());
        [bearer, plain]
            .into_iter()
            .flatten()
            .find_map(|given| self.find(&digest(given)))
    }

    fn find(&self, given: &[u8; 32]) -> Option<&ApiKey> {
        let mut found = u64::MAX;
        for (place, key) in (0..).zip(self.0.iter()) {
            found.conditional_assign(&place, key.digest.ct_eq(given));
        }
        self.0.get(usize::try_from(found).ok()?)
    }
}

/// A key as it is read: its digest, and what is said of its owner.
type Owned = ([u8; 32], Option<String>, Grant);

impl FromStr for ApiKeys {
    type Err = &'static str;

    /// Reads keys, one a line.
    fn from_str(keys: &str) -> Result<Self, Self::Err> {
        let keys = keys.lines().filter(|key| !key.is_empty());
        let keys = keys.map(|key| Ok((digest_of_key(key)?, None, Grant::default())));
        let keys: Vec<Owned> = keys.collect::<Result<_, Self::Err>>()?;
        if keys.is_empty() {
            return Err(NO_KEY);
        }
        Ok(Self::of(keys))
    }
}

impl PartialEq for ApiKeys {
    fn eq(&self, other: &Self) -> bool {
        let of = |keys: &Self| -> Vec<Owned> {
            let keys = keys.0.iter();
            keys.map(|key| (key.digest, key.name.clone(), key.grant.clone()))
                .collect()
        };
        of(self) == of(other)
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

/// Keys as they are given on the command line, one a line. They are read later: the error of a flag shows its value.
#[derive(Clone)]
pub struct KeyLines(String);

impl KeyLines {
    /// The keys.
    ///
    /// # Errors
    /// When there is none, or one that fits in no header.
    pub fn keys(&self) -> Result<ApiKeys, &'static str> {
        self.0.parse()
    }
}

impl From<String> for KeyLines {
    fn from(lines: String) -> Self {
        Self(lines)
    }
}

impl fmt::Debug for KeyLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyLines")
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

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn admits(keys: &str, name: &'static str, value: &str) -> bool {
        let keys: ApiKeys = keys.parse().expect("good keys");
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).expect("a good header"));
        keys.given(&headers).is_some()
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
        assert!(keys.given(&HeaderMap::new()).is_none());
        assert!(ApiKeys::default().given(&HeaderMap::new()).is_none());
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
    fn keys_without_a_name_have_owners_of_their_own() {
        let keys: ApiKeys = "first\nsecond".parse().expect("two keys");
        let owner = |key: &'static str| {
            let headers = HeaderMap::from_iter([(X_API_KEY, HeaderValue::from_static(key))]);
            let key = keys.given(&headers).expect("a key of these");
            key.tenant().name().expect("a name").to_string()
        };
        assert_eq!(
            (owner("first"), owner("second")),
            ("key 1".into(), "key 2".into())
        );
    }
}
