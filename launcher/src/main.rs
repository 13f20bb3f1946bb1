//! `text-generation-launcher`: parse, run, map the error to an exit code.

mod args;
mod banner;
mod checks;
mod devices;
mod download;
mod error;
mod logs;
mod management;
mod output;
mod plan;
mod process;
mod readiness;
mod sockets;
mod supervisor;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use crate::args::Args;
use crate::error::LauncherError;
use crate::supervisor::Signals;

fn main() -> ExitCode {
    // First of all: until they are handled, signals end the process, or are lost where it is the first of a container.
    let listening = listen();
    let args = Args::parse();
    // Without a thread for the log nothing else could start either.
    let Ok((console, log_level)) = logs::init(args.logs.json_output) else {
        return ExitCode::FAILURE;
    };
    let prepared = log_level
        .and_then(|()| prepare(&args))
        .and(listening)
        .inspect_err(|error| tracing::error!("{error}"));
    let served = prepared.and_then(|(runtime, signals)| {
        runtime.block_on(supervisor::run(&args, console.clone(), signals))
    });
    console.flush();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
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
    checks::without_effect(&args.compatibility)
        .iter()
        .for_each(|note| tracing::info!("{note}"));
    Ok(())
}
