//! `text-generation-launcher`: parse, run, map the error to an exit code.

mod args;
mod banner;
mod checks;
mod devices;
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

use clap::Parser;

use crate::args::Args;
use crate::error::LauncherError;

fn main() -> ExitCode {
    let args = Args::parse();
    // Without a thread for the log nothing else could start either.
    let Ok((console, log_level)) = logs::init(args.logs.json_output) else {
        return ExitCode::FAILURE;
    };
    let runtime = log_level
        .and_then(|()| prepare(&args))
        .inspect_err(|error| tracing::error!("{error}"));
    let served =
        runtime.and_then(|runtime| runtime.block_on(supervisor::run(&args, console.clone())));
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
