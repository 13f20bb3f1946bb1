//! The command line.

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
}
