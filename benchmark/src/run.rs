//! From the command line to an exit code.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use crate::args::{Cli, Command};
use crate::error::{BenchmarkError, Result};
use crate::live::Live;
use crate::report::{Report, compare};
use crate::screen::Screen;
use crate::server;
use crate::server::args::ServerArgs;

/// Runs what the command line asks for.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Server(args) => run_server(&args),
        Command::Compare(args) => {
            let (before, after) = (Report::load(&args.a)?, Report::load(&args.b)?);
            print!("{}", compare::render(&before, &after)?);
            Ok(())
        }
    }
}

fn run_server(args: &ServerArgs) -> Result<()> {
    let live = Arc::new(Live::default());
    let mut report = None;
    let screen = Screen::start(live.clone(), args.output.no_tui);
    let outcome = runtime(usize::from(args.threads))?.block_on(async {
        stop_on_ctrl_c(live.clone());
        server::run(args, &live, &mut report).await
    });
    screen.finish();
    match report {
        Some(report) => args.output.finish(&report, &live, outcome),
        None => outcome,
    }
}

fn runtime(threads: usize) -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|source| BenchmarkError::System {
            what: "no worker threads",
            source,
        })
}

/// The first Ctrl-C ends the load and keeps its results; the second ends the program.
fn stop_on_ctrl_c(live: Arc<Live>) {
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            live.stop();
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}
