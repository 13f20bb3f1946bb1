//! Ids of calls, in the form that a family of models knows from its chat template.

use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::format::Ids;

/// Where the random part of ids comes from.
#[derive(Debug, Clone)]
pub struct IdSource(SmallRng);

impl Default for IdSource {
    fn default() -> Self {
        Self(SmallRng::seed_from_u64(rand::rng().random()))
    }
}

impl IdSource {
    /// The same ids for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    pub(crate) fn next(&mut self, ids: Ids, name: &str, index: usize) -> String {
        match ids {
            Ids::Call => format!("call_{}", Alphanumeric.sample_string(&mut self.0, 24)),
            Ids::Nine => Alphanumeric.sample_string(&mut self.0, 9),
            Ids::Numbered => format!("functions.{name}:{index}"),
        }
    }
}
