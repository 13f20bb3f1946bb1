//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::server::args::ServerArgs;

/// Measure text-generation shards and servers.
#[derive(Debug, Parser)]
#[command(name = "text-generation-benchmark", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Server(Box<ServerArgs>),
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
