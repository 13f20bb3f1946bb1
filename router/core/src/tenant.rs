//! Tenants: whose request it is, and what its owner may have of the server.

mod bucket;

use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use self::bucket::TokenBucket;
use crate::error::{InferError, Overload, ValidationError};

/// Who asks. Where nobody is told apart, every request is of the default tenant, which has no limits of its own.
///
/// Two are the same tenant when they have the same name. Clones share what is left of their limits.
#[derive(Clone, Default)]
pub struct Tenant(Option<Arc<Named>>);

/// What the operator grants to a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its share of the server where others wait too, at least 1: twice the weight is twice the tokens.
    pub weight: u32,
    /// Most generations that it may have at once, running or waiting.
    pub max_concurrent_requests: Option<u32>,
    /// Tokens of prompts and answers that it may have in a minute, in the mean.
    pub tokens_per_minute: Option<u32>,
    /// Adapters that its requests may name; unset, all. Others are as unknown to it.
    pub adapters: Option<Arc<[String]>>,
}

impl Default for Grant {
    fn default() -> Self {
        Self {
            weight: 1,
            max_concurrent_requests: None,
            tokens_per_minute: None,
            adapters: None,
        }
    }
}

struct Named {
    name: Arc<str>,
    weight: u32,
    cache_scope: Option<Arc<str>>,
    quota: Arc<Quota>,
}

/// What is left of the limits of a tenant.
#[derive(Debug)]
struct Quota {
    max_concurrent_requests: Option<u32>,
    places: Option<Arc<Semaphore>>,
    tokens: Option<TokenBucket>,
    adapters: Option<Arc<[String]>>,
}

impl Tenant {
    /// A tenant with all that is granted to it still unused. The name goes to logs.
    pub fn new(name: &str, grant: Grant) -> Self {
        let places = |max: u32| Semaphore::new((max as usize).min(Semaphore::MAX_PERMITS));
        let now = Instant::now();
        Self(Some(Arc::new(Named {
            name: name.into(),
            weight: grant.weight.max(1),
            cache_scope: None,
            quota: Arc::new(Quota {
                max_concurrent_requests: grant.max_concurrent_requests,
                places: grant.max_concurrent_requests.map(places).map(Arc::new),
                tokens: grant
                    .tokens_per_minute
                    .map(|per_minute| TokenBucket::new(per_minute, now)),
                adapters: grant.adapters,
            }),
        })))
    }

    /// A tenant behind this one, as a gateway has many: with a share of its own, of the same weight, within the limits
    /// that all of them have together.
    #[must_use]
    pub fn behind(&self, name: &str) -> Self {
        let Some(owner) = &self.0 else {
            return Self::new(name, Grant::default());
        };
        Self(Some(Arc::new(Named {
            name: format!("{}/{name}", owner.name).into(),
            weight: owner.weight,
            cache_scope: owner.cache_scope.clone(),
            quota: owner.quota.clone(),
        })))
    }

    /// The same, sharing cached prefixes only with those of the same scope.
    #[must_use]
    pub fn with_cache_scope(&self, scope: &str) -> Self {
        let Some(named) = &self.0 else {
            return self.clone();
        };
        Self(Some(Arc::new(Named {
            name: named.name.clone(),
            weight: named.weight,
            cache_scope: Some(scope.into()),
            quota: named.quota.clone(),
        })))
    }

    /// The name for logs; none where nobody is told apart.
    pub fn name(&self) -> Option<&Arc<str>> {
        self.0.as_ref().map(|named| &named.name)
    }

    /// Whose cached prefixes it shares; everybody's where there is none.
    pub fn cache_scope(&self) -> Option<&str> {
        self.0.as_ref()?.cache_scope.as_deref()
    }

    /// Whether its requests may name this adapter.
    pub fn may_use(&self, adapter: &str) -> bool {
        let listed = self
            .0
            .as_ref()
            .and_then(|named| named.quota.adapters.as_ref());
        listed.is_none_or(|names| names.iter().any(|name| name == adapter))
    }

    pub(crate) fn weight(&self) -> u32 {
        self.0.as_ref().map_or(1, |named| named.weight)
    }

    /// Most generations that it may have at once, where it has a limit of its own.
    pub(crate) fn max_concurrent_requests(&self) -> Option<u32> {
        self.0.as_ref()?.quota.max_concurrent_requests
    }

    /// A place for each of so many generations, or none; nothing where it may have as many as the server.
    ///
    /// # Errors
    /// When not enough of them are free.
    pub(crate) fn enter(
        &self,
        generations: u32,
    ) -> Result<Option<OwnedSemaphorePermit>, InferError> {
        let quota = self.0.as_ref().map(|named| &named.quota);
        let Some((quota, places)) = quota.and_then(|quota| Some((quota, quota.places.clone()?)))
        else {
            return Ok(None);
        };
        let taken = places.try_acquire_many_owned(generations);
        taken.map(Some).map_err(|_| {
            InferError::Overloaded(Overload::TenantRequests {
                max: quota.max_concurrent_requests.unwrap_or_default(),
            })
        })
    }

    /// Counts the tokens of a request's prompts, before it is queued.
    ///
    /// # Errors
    /// `Overloaded` with the time until there are so many, and `Validation` where there never are.
    pub(crate) fn take_prompt_tokens(&self, count: u32, now: Instant) -> Result<(), InferError> {
        let Some(bucket) = self.bucket() else {
            return Ok(());
        };
        let max = bucket.per_minute();
        if count > max {
            return Err(ValidationError::TenantTokens { max, given: count }.into());
        }
        let taken = bucket.take(count, now);
        taken.map_err(|wait| InferError::Overloaded(Overload::TenantTokens { max, wait }))
    }

    /// Counts tokens that were generated: what they take beyond what is left delays the next request.
    pub(crate) fn count_generated(&self, count: u32) {
        if let Some(bucket) = self.bucket() {
            bucket.charge(count, Instant::now());
        }
    }

    fn bucket(&self) -> Option<&TokenBucket> {
        self.0.as_ref()?.quota.tokens.as_ref()
    }
}

impl PartialEq for Tenant {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Tenant {}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenant({:?})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn granted(grant: Grant) -> Tenant {
        Tenant::new("acme", grant)
    }

    #[test]
    fn places_are_taken_all_or_none_and_come_back() {
        let tenant = granted(Grant {
            max_concurrent_requests: Some(3),
            ..Grant::default()
        });
        let two = tenant.enter(2).unwrap();
        let refused = tenant.clone().enter(2).unwrap_err();
        assert!(refused.to_string().contains("`max_concurrent_requests`"));
        assert!(tenant.behind("user").enter(2).is_err());
        assert!(tenant.enter(1).is_ok());
        drop(two);
        assert!(tenant.enter(3).is_ok());
        assert!(Tenant::default().enter(u32::MAX).unwrap().is_none());
    }

    #[test]
    fn tokens_are_counted_for_all_behind_one_and_a_refusal_says_when_they_are_there() {
        let tenant = granted(Grant {
            tokens_per_minute: Some(600),
            ..Grant::default()
        });
        let now = Instant::now();
        let (a, b) = (tenant.behind("a"), tenant.behind("b"));
        a.take_prompt_tokens(500, now).unwrap();
        let refused = b.take_prompt_tokens(200, now).unwrap_err();
        assert!(refused.to_string().contains("`tokens_per_minute`"));
        assert_eq!(refused.retry_after(), Duration::from_secs(10));
        let later = now + Duration::from_secs(10);
        b.take_prompt_tokens(200, later).unwrap();
        let never = b.take_prompt_tokens(601, later).unwrap_err();
        assert!(matches!(never, InferError::Validation(_)));
    }

    #[test]
    fn who_is_behind_another_is_somebody_else() {
        let tenant = granted(Grant {
            weight: 3,
            ..Grant::default()
        });
        let scoped = tenant.with_cache_scope("s").behind("user");
        assert_eq!(scoped.name().map(AsRef::as_ref), Some("acme/user"));
        assert_eq!((scoped.weight(), scoped.cache_scope()), (3, Some("s")));
        assert_eq!(scoped, tenant.behind("user"));
        assert_ne!(scoped, tenant);
        let name = Tenant::default().behind("user");
        assert_eq!(name.name().map(AsRef::as_ref), Some("user"));
    }
}
