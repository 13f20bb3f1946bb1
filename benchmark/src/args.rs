//! The command line of the benchmark.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::server::args::ServerArgs;
use crate::shard::args::ShardArgs;

/// Measure text-generation shards and servers.
#[derive(Debug, Parser)]
#[command(
    name = "text-generation-benchmark",
    version,
    about,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Without a subcommand: shard mode, as in TGI.
    #[command(flatten)]
    pub shard: ShardArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Server(Box<ServerArgs>),
    Shard(Box<ShardArgs>),
    Compare(CompareArgs),
}

/// Show two saved reports beside each other.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// The report before.
    pub a: PathBuf,
    /// The report after.
    pub b: PathBuf,
}
