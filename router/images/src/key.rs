//! Names of pictures, for caches: the same only for the same bytes under the same settings.

use std::fmt;

/// A secret of this start of the server, so that nobody can search for pictures with given names.
#[derive(Clone)]
pub struct KeySecret([u8; 32]);

impl fmt::Debug for KeySecret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("KeySecret")
    }
}

impl KeySecret {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Names a file. `settings` are all that its pixels and rows depend on beside it; `salt` keeps tenants apart.
    pub fn item(&self, file: &[u8], settings: &[u8], salt: &[u8]) -> ItemKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [settings, salt] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(file);
        ItemKey(hasher.finalize().into())
    }

    /// Names row `index` of an item among the keys of tokens: the highest bit, which no token id has, and 63 bits of a
    /// hash.
    pub fn position(&self, item: &ItemKey, index: u32) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&item.0);
        hasher.update(&index.to_le_bytes());
        let mut bytes = [0; 8];
        hasher.finalize_xof().fill(&mut bytes);
        u64::from_le_bytes(bytes) | 1 << 63
    }
}

/// The name of a picture as a model sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ItemKey([u8; 32]);

impl fmt::Debug for ItemKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02x}{:02x}..", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_with_every_part_and_with_the_secret() {
        let secret = KeySecret::new([1; 32]);
        let item = secret.item(b"file", b"settings", b"salt");
        assert_eq!(item, secret.item(b"file", b"settings", b"salt"));
        for other in [
            secret.item(b"fil", b"settings", b"salt"),
            secret.item(b"file", b"setting", b"ssalt"),
            secret.item(b"file", b"settings", b""),
            KeySecret::new([2; 32]).item(b"file", b"settings", b"salt"),
        ] {
            assert_ne!(item, other);
        }
        assert_ne!(secret.position(&item, 0), secret.position(&item, 1));
        assert!(secret.position(&item, 7) >> 63 == 1);
    }
}
