//! Core of the router: everything about requests and text; knows no HTTP.

pub mod assemble;
mod batcher;
pub mod detokenize;
pub mod error;
pub mod grammar;
pub mod infer;
pub mod kv_pool;
pub mod metrics;
pub mod observer;
mod permit;
pub mod policy;
mod queue;
pub mod stop;
mod stop_buffer;
mod stream;
pub mod tenant;
pub mod tokenize;
pub mod types;
pub mod validation;

pub use infer::Health;

#[cfg(test)]
mod test_tokenizers;
