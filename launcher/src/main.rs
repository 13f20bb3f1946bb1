//! `text-generation-launcher`: parse, run, map the error to an exit code.

mod args;
mod banner;
mod checks;
mod devices;
mod doctor;
mod download;
mod error;
mod logs;
mod management;
mod nodes;
mod notify;
mod output;
mod plan;
mod process;
mod readiness;
mod router_check;
mod sockets;
mod spans;
mod supervisor;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use crate::args::Args;
use crate::error::LauncherError;
use crate::logs::Console;
use crate::spans::Tracer;
use crate::supervisor::Signals;

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
    // First of all: until they are handled, signals end the process, or are lost where it is the first of a container.
    let listening = listen();
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Doctor(args)) => examine(&args, listening),
        None => serve(&cli.args, listening),
    }
}

/// Exit code 1 means that a start would fail, or that a signal came first.
fn examine(args: &Args, listening: Result<(Runtime, Signals), LauncherError>) -> ExitCode {
    let Ok((runtime, mut signals)) = listening else {
        return ExitCode::FAILURE;
    };
    let works = runtime.block_on(async {
        tokio::select! {
            works = doctor::run(args) => works,
            _ = signals.next() => false,
        }
    });
    if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn serve(args: &Args, listening: Result<(Runtime, Signals), LauncherError>) -> ExitCode {
    // Without a thread for the log nothing else could start either.
    let Ok((console, log_level)) = logs::init(args.logs.json_output) else {
        return ExitCode::FAILURE;
    };
    let prepared = log_level
        .and_then(|()| prepare(args))
        .and(listening)
        .inspect_err(|error| tracing::error!("{error}"));
    let served = prepared
        .and_then(|(runtime, signals)| runtime.block_on(supervise(args, console.clone(), signals)));
    console.flush();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves until a signal or a failure, and tells the collector of traces, where there is one.
async fn supervise(args: &Args, console: Console, signals: Signals) -> Result<(), LauncherError> {
    let tracer = Tracer::start(&args.server).inspect_err(|error| tracing::error!("{error}"))?;
    let served = supervisor::run(args, console, tracer.clone(), signals).await;
    if !matches!(served, Err(LauncherError::Hurried)) {
        tracer.shutdown().await;
    }
    served
}

/// The runtime of everything, and the signals that ask for a stop.
fn listen() -> Result<(Runtime, Signals), LauncherError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    Ok((runtime, signals))
}

fn prepare(args: &Args) -> Result<(), LauncherError> {
    checks::check(args)?;
    checks::without_effect(args)
        .iter()
        .for_each(|note| tracing::info!("{note}"));
    Ok(())
}
