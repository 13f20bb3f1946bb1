//! Everything about requests and text; knows no HTTP.

pub mod alloc;
pub mod budget;
pub mod error;
pub mod policy;
pub mod types;
