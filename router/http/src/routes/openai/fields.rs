//! Types of single fields that several bodies read.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::extract::whole;

/// What a stream sends beside the choices.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send a last chunk without choices that holds the usage.
    #[schema(nullable = true, example = true)]
    pub include_usage: Option<bool>,
}

/// One stop string or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    /// All of them.
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::One(stop) => vec![stop],
            Self::Many(list) => list,
        }
    }
}

/// A seed; OpenAI's are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a whole number from -9223372036854775808 to 18446744073709551615"
)]
pub enum Seed {
    Unsigned(#[serde(deserialize_with = "whole")] u64),
    Signed(#[serde(deserialize_with = "whole")] i64),
}

impl Seed {
    /// The seed that the shards get.
    pub fn bits(self) -> u64 {
        match self {
            Self::Unsigned(seed) => seed,
            Self::Signed(seed) => seed.cast_unsigned(),
        }
    }
}

/// Whether the model reasons.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThinkingBody {
    /// `enabled`, `adaptive` or `disabled`, for templates that can switch it.
    #[schema(example = "enabled")]
    pub r#type: String,
}
