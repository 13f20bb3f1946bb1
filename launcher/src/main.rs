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

use std::io::Write;
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

use crate::args::{Args, Command};
use crate::error::LauncherError;
use crate::logs::Console;
use crate::spans::Tracer;
use crate::supervisor::Signals;

fn main() -> ExitCode {
    // First of all: until they are handled, signals end the process, or are lost where it is the first of a container.
    let listening = listen();
    let cli = match args::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match cli.command {
        Some(Command::Doctor(given)) => examine(&given.args, listening),
        Some(Command::Serve(given)) => serve(&given.args, listening),
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
    let (console, log_level) = match logs::init(args.logs.json_output) {
        Ok(log) => log,
        Err(error) => {
            // Without a thread for the log nothing else could start either.
            let reason = checks::perhaps_by_its_limit(format!("cannot start a thread: {error}"));
            let _ = writeln!(std::io::stderr(), "Error: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let prepared = log_level
        .and_then(|()| prepare(args))
        .and(listening)
        .inspect_err(|error| report(args, error));
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
    let tracer = Tracer::start(&args.server).inspect_err(|error| report(args, error))?;
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
    for warning in &args.notes.warnings {
        tracing::warn!("{warning}");
    }
    checks::check(args)?;
    if let Some(warning) = checks::unreachable_batch(args) {
        tracing::warn!("{}", args.as_given(&warning));
    }
    for note in checks::without_effect(args) {
        tracing::info!("{note}");
    }
    Ok(())
}

fn report(args: &Args, error: &LauncherError) {
    tracing::error!("{}", checks::told(args, error));
}
