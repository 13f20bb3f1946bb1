//! Tenant of the request that is being handled, and whose requests share cached prefixes: everybody's, or only those
//! with the same API key, so that the time of an answer tells one tenant nothing of another's prompts.

use std::fmt;
use std::str::FromStr;

use text_generation_core::tenant::Tenant;
use text_generation_core::types::GenerateParameters;
use tokio::task_local;

use crate::telemetry;

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

/// What the server knows of whoever has sent a request, beside its body.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    pub tenant: Tenant,
    /// As a gateway says.
    pub priority: Option<i32>,
}

impl Caller {
    /// Says in the parameters of a request who has sent it, and whose trace it is in.
    pub fn sign(self, parameters: &mut GenerateParameters) {
        parameters.tenant = self.tenant;
        parameters.priority = self.priority.or(parameters.priority);
        if let Some(span) = telemetry::current() {
            span.follow(parameters);
        }
    }
}

task_local! {
    /// Who has sent the request that is being handled.
    static CALLER: Caller;
}

/// Handles a request of `caller`.
pub async fn scope<F: Future>(caller: Caller, handle: F) -> F::Output {
    CALLER.scope(caller, handle).await
}

/// Who has sent the request that is being handled.
pub fn current() -> Caller {
    CALLER.try_with(Clone::clone).unwrap_or_default()
}

/// The tenant, sharing cached prefixes only with those who have the same key, of which `digest` is known.
pub fn scoped(tenant: &Tenant, digest: &[u8]) -> Tenant {
    let scope = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    tenant.with_cache_scope(&scope.collect::<String>())
}
