//! Core of the router: everything about requests and text; knows no HTTP.

pub mod adapters;
pub mod assemble;
mod batcher;
mod beams;
pub mod detokenize;
pub mod error;
pub mod grammar;
pub mod hints;
pub mod infer;
pub mod kv_pool;
pub mod media;
pub mod metrics;
mod permit;
pub mod policy;
mod queue;
mod standing;
pub mod stop;
mod stop_buffer;
mod stream;
pub mod tenant;
pub mod tokenize;
pub mod types;
pub mod validation;

pub use infer::Health;

/// Plans that are on their way to the shards: the one that runs, and the next.
const PLANS_IN_FLIGHT: usize = 2;

#[cfg(test)]
mod test_tokenizers;
