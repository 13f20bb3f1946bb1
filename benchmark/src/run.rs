//! One run of the benchmark, from the command line to an exit code.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use crate::args::{Cli, Command};
use crate::error::{BenchmarkError, Result};
use crate::live::Live;
use crate::output::{self, OutputArgs};
use crate::report::{Report, compare};
use crate::screen::Screen;
use crate::server::{self, args::ServerArgs};
use crate::shard::{self, args::ShardArgs};

/// Shards are called one step after another.
const SHARD_THREADS: usize = 2;

/// Runs what the command line asks for.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Some(Command::Server(args)) => run_server(&args),
        Some(Command::Shard(args)) => run_shard(&args),
        None => run_shard(&cli.shard),
        Some(Command::Compare(args)) => {
            let (before, after) = (Report::load(&args.a)?, Report::load(&args.b)?);
            output::print(&compare::render(&before, &after)?);
            Ok(())
        }
    }
}

fn run_server(args: &ServerArgs) -> Result<()> {
    let threads = usize::from(args.threads);
    drive(&args.output, threads, async |live, report| {
        server::run(args, live, report).await
    })
}

fn run_shard(args: &ShardArgs) -> Result<()> {
    drive(&args.output, SHARD_THREADS, async |live, report| {
        shard::run(args, live, report).await
    })
}

/// Runs one mode under a screen; results come before errors.
fn drive(
    output: &OutputArgs,
    threads: usize,
    mode: impl AsyncFnOnce(&Arc<Live>, &mut Option<Report>) -> Result<()>,
) -> Result<()> {
    output.check()?;
    let live = Arc::new(Live::default());
    let mut report = None;
    let screen = Screen::start(live.clone(), output.no_tui);
    let outcome = runtime(threads)?.block_on(async {
        stop_on_ctrl_c(live.clone());
        mode(&live, &mut report).await
    });
    screen.finish();
    match report {
        Some(report) => output.finish(&report, &live, outcome),
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
