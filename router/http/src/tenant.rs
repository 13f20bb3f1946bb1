//! Whose requests share cached prefixes: everybody's, or only those with the same API key, so that the time of an answer
//! tells one tenant nothing of another's prompts.

use std::fmt;
use std::str::FromStr;

use tokio::task_local;

/// `--prefix-caching`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCaching {
    Off,
    On,
    PerKey,
}

impl FromStr for PrefixCaching {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" | "yes" => Ok(Self::On),
            "false" | "0" | "off" | "no" => Ok(Self::Off),
            "per-key" => Ok(Self::PerKey),
            _ => Err("must be true, false or per-key"),
        }
    }
}

impl fmt::Display for PrefixCaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "true",
            Self::Off => "false",
            Self::PerKey => "per-key",
        })
    }
}

task_local! {
    /// Stands for the key of the request that is being handled.
    static TENANT: String;
}

/// Handles a request for the owner of a key, of which `digest` is known.
pub async fn scope<F: Future>(digest: &[u8], handle: F) -> F::Output {
    let name = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    TENANT.scope(name.collect(), handle).await
}

/// The owner of the request that is being handled, where keys are kept apart.
pub fn current() -> Option<String> {
    TENANT.try_with(Clone::clone).ok()
}
