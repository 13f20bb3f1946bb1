//! Reasoning that clients carry without reading it.
//!
//! A client that asks for `reasoning.encrypted_content` gets the text in base64 behind a code that tells whether it is
//! ours (HMAC, RFC 2104, with SHA-256). It hides nothing: it lets the next turn begin as this one ended, on any replica
//! with the same keys, without a store.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Makes and checks the codes.
#[derive(Debug, Clone)]
pub struct Seal(Hmac<Sha256>);

/// Bytes of a code.
const CODE: usize = 32;

impl Seal {
    /// Replicas with the same `secret` read each other's texts.
    pub fn new(secret: &[u8]) -> Self {
        // HMAC takes keys of any length.
        Self(Hmac::new_from_slice(secret).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    /// The text with its code.
    pub fn close(&self, text: &str) -> String {
        let mut mac = self.0.clone();
        mac.update(text.as_bytes());
        let mut sealed = mac.finalize().into_bytes().to_vec();
        sealed.extend_from_slice(text.as_bytes());
        BASE64.encode(sealed)
    }

    /// The text, or None where it is not ours: from another server, or cut.
    pub fn open(&self, sealed: &str) -> Option<String> {
        let bytes = BASE64.decode(sealed).ok()?;
        let (code, text) = bytes.split_at_checked(CODE)?;
        let mut mac = self.0.clone();
        mac.update(text);
        mac.verify_slice(code).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_opens_and_nothing_else_does() {
        let seal = Seal::new(b"key");
        let sealed = seal.close("why 你");
        assert_eq!(Seal::new(b"key").open(&sealed).as_deref(), Some("why 你"));
        assert_eq!(Seal::new(b"other").open(&sealed), None);
        assert_eq!(seal.open(&sealed[..sealed.len() - 4]), None);
        assert_eq!(seal.open("gAAAAAB"), None);
        assert_eq!(seal.open(""), None);
    }
}
