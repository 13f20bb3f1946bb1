//! Measures shards over their sockets (`shard`) and servers over HTTP (`server`), with one kind of report for both.

pub mod args;
pub mod error;
pub mod floor;
pub mod live;
pub mod output;
pub mod overhead;
pub mod prompts;
pub mod report;
pub mod run;
pub mod screen;
pub mod server;
pub mod shard;
pub mod stats;
