//! `text-generation-launcher`: parse, run, map the error to an exit code.

mod args;
mod banner;
mod checks;
mod devices;
mod doctor;
mod download;
mod error;
mod logs;
mod output;
mod plan;
mod process;
mod readiness;
mod sockets;
mod supervisor;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::args::Args;
use crate::error::LauncherError;

/// Starts a text generation server: prepares the model, starts one shard per device and the router, and watches them.
///
/// Every flag can be given by an environment variable of the same name in upper case, for example MODEL_ID.
/// LOG_LEVEL sets what is logged: error, warn, info, debug, trace, or directives such as `info,tonic=debug`.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    args: Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what a start with the flags that follow would do, and what would keep it from working; nothing is started
    Doctor(Box<Args>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Doctor(args)) => examine(&args),
        None => serve(&cli.args),
    }
}

/// Exit code 1 means that a start would fail.
fn examine(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.map(|runtime| runtime.block_on(doctor::run(args))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn serve(args: &Args) -> ExitCode {
    // Without a thread for the log nothing else could start either.
    let Ok((console, log_level)) = logs::init(args.logs.json_output) else {
        return ExitCode::FAILURE;
    };
    let runtime = log_level
        .and_then(|()| prepare(args))
        .inspect_err(|error| tracing::error!("{error}"));
    let served =
        runtime.and_then(|runtime| runtime.block_on(supervisor::run(args, console.clone())));
    console.flush();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn prepare(args: &Args) -> Result<tokio::runtime::Runtime, LauncherError> {
    checks::check(args)?;
    checks::without_effect(&args.compatibility)
        .iter()
        .for_each(|note| tracing::info!("{note}"));
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
