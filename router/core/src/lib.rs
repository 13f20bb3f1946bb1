//! Everything about requests and text; knows no HTTP.

pub mod alloc;
pub mod assemble;
pub mod budget;
pub mod detokenize;
pub mod error;
pub mod policy;
pub mod stop;
mod token_bytes;
pub mod tokenize;
pub mod types;
pub mod validation;

#[cfg(test)]
mod test_tokenizers;
