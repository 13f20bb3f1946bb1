//! The life of the process: arguments, start, serve, stop.

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write};
use std::num::NonZero;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use text_generation_process::settings::{Rules, Settings};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::args::{Cli, Command, Config};
use crate::connection::{ServerLimits, StopOrders, serve};
use crate::management::{self, ManagementPort};
use crate::signals::{StopSignals, end_within, stdin_eof};
use crate::startup::{self, SlowTokenizer};
use crate::{launcher, logging, routes};

/// An empty key must not open a server.
const RULES: Rules = Rules {
    stand_ins: &[],
    never_empty: &["API_KEY"],
    foreign: &[],
};

/// Time for the end of a start that was stopped.
const START_END_TIME: Duration = Duration::from_secs(1);

/// The command `text-generation-router`; returns its exit code. `argv` starts with the name of the program.
///
/// Blocks until the server has stopped. Takes over SIGINT and SIGTERM.
pub fn main_from_args<A>(
    argv: impl IntoIterator<Item = A>,
    slow_tokenizer: impl SlowTokenizer,
) -> i32
where
    A: Into<OsString> + Clone,
{
    if launcher::die_with_launcher() {
        return 1;
    }
    let read = Settings::read(Cli::command(), &RULES, argv);
    let read = read.and_then(|told| Ok((Cli::from_arg_matches(&told.matches)?, told)));
    let (cli, told) = match read {
        Ok(read) => read,
        Err(error) => {
            // Help goes to standard output; a closed one is not worth a second error.
            let _ = error.print();
            return error.exit_code();
        }
    };
    let result = match cli.command {
        Some(Command::PrintSchema) => print_schema(io::stdout()),
        Some(Command::Check(config)) => check(&config, slow_tokenizer),
        None => run(&cli.config, &told.warnings, slow_tokenizer),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            // The exit code tells it too where nobody takes the line.
            let reason = told.origins.named_in(&reason_line(&error));
            let _ = writeln!(io::stderr(), "{reason}");
            1
        }
    }
}

/// One line, whatever libraries put into their messages: the launcher takes the last line as the reason.
fn reason_line(error: &anyhow::Error) -> String {
    let words: Vec<String> = format!("{error:#}")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    format!("Error: {}", words.join(" "))
}

/// A reader that has seen enough closes the pipe; that is no error.
fn print_schema(mut out: impl Write) -> anyhow::Result<()> {
    let document = routes::openapi().to_pretty_json()?;
    match writeln!(out, "{document}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Does of a start what needs neither shards nor ports, and logs what a start would log of it.
fn check(config: &Config, slow_tokenizer: impl SlowTokenizer) -> anyhow::Result<()> {
    let _log = logging::init(config.json_output, &config.log_level)?;
    let runtime = runtime("check", 1)?;
    runtime.block_on(startup::check(config, slow_tokenizer))
}

/// Starts the server and serves until it is told to stop. `warnings` are logged first.
///
/// # Errors
/// When it cannot start, or a second signal ends it before its requests have finished.
pub fn run(
    config: &Config,
    warnings: &[String],
    slow_tokenizer: impl SlowTokenizer,
) -> anyhow::Result<()> {
    let inherited = management::inherited().context("cannot use the inherited socket")?;
    let _log = logging::init(config.json_output, &config.log_level)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let port = ManagementPort::claim(config, inherited)?;
    raise_open_files();
    let serving = runtime("http", serving_threads())?;
    // A step wakes the streams of all its requests. On the threads that serve them, what leads to the next step would
    // stand behind them, and the shards would wait.
    let stepping = runtime("batcher", 1)?;
    let result = serving.block_on(supervise(config, port, slow_tokenizer, stepping.handle()));
    // Not every blocking task can be interrupted, and the process is about to end.
    serving.shutdown_background();
    stepping.shutdown_background();
    result
}

/// Every connection is an open file, and the usual soft limit, 1,024, is there for programs that use `select`.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(())
    });
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

fn runtime(name: &str, threads: usize) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .with_context(|| format!("cannot start the threads `{name}`"))
}

/// A quarter of the cores, but four where there are as many. A token is a few microseconds of work; when more threads
/// share it, they mostly go to sleep and wake each other (benchmark/results/router-streaming.json).
fn serving_threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 4).max(cores.min(4))
}

async fn supervise(
    config: &Config,
    port: Option<ManagementPort>,
    slow_tokenizer: impl SlowTokenizer,
    stepping: &Handle,
) -> anyhow::Result<()> {
    let mut signals =
        StopSignals::install(config.exit_on_stdin_eof).context("cannot handle signals")?;
    let mut input_closed = pin!(stdin_eof(config.exit_on_stdin_eof)?);
    if config.exit_on_stdin_eof {
        launcher::end_with_launcher();
    }
    let (listener, state) = tokio::select! {
        started = startup::start(config, slow_tokenizer, stepping) => started?,
        () = &mut input_closed => return Ok(()),
        signal = signals.recv() => {
            tracing::info!("{signal} while starting");
            end_within(START_END_TIME, 0);
            return Ok(());
        }
    };
    tracing::info!("listening on http://{}", listener.local_addr()?);
    let port = port.map(ManagementPort::listen).transpose()?;
    let _management = port.map(|listener| {
        let serving = management::serve(listener, state.clone());
        AbortOnDropHandle::new(tokio::spawn(serving))
    });
    tracing::info!("Connected");
    let limits = ServerLimits {
        connections: config.max_connections as usize,
        write: Duration::from_secs(config.client_timeout.into()),
        drain_delay: Duration::from_secs(config.drain_delay),
        graceful: Duration::from_secs(config.graceful_termination_timeout),
        ..ServerLimits::default()
    };
    let orders = StopOrders::default();
    let infer = state.infer.clone();
    let tracer = state.options.tracer.clone();
    let failed = pin!(infer.panicked());
    let server = serve(listener, state, limits, orders.clone());
    let ended = until_stopped(server, input_closed, failed, &mut signals, &orders).await;
    if let Some(tracer) = tracer {
        tracer.shutdown().await;
    }
    ended
}

/// The first signal lets running requests finish, the second does not. The end of standard input says that the shards
/// are gone for good, or whoever keeps them running: running requests end with an error. Without the batching task,
/// which `failed` tells of, nobody is served ever again.
async fn until_stopped(
    server: impl Future<Output = ()>,
    mut input_closed: impl Future<Output = ()> + Unpin,
    mut failed: impl Future<Output = String> + Unpin,
    signals: &mut StopSignals,
    orders: &StopOrders,
) -> anyhow::Result<()> {
    let mut server = pin!(server);
    loop {
        tokio::select! {
            () = &mut server => return Ok(()),
            () = &mut input_closed, if !orders.cut.is_cancelled() => {
                tracing::info!("standard input ended: the shards, or what keeps them running, are gone");
                orders.cut.cancel();
            }
            reason = &mut failed => anyhow::bail!("the batching task has failed: {reason}"),
            signal = signals.recv() => {
                anyhow::ensure!(!orders.drain.is_cancelled(), "stopped by a second signal, {signal}, with requests still running");
                orders.drain.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_the_schema_may_leave_early() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        assert!(print_schema(writer).is_ok());
        let full = std::fs::File::options().write(true).open("/dev/full");
        assert!(print_schema(full.expect("a device")).is_err());
    }

    #[tokio::test]
    async fn without_the_batching_task_the_process_ends_with_the_reason() {
        let mut signals = StopSignals::install(false).expect("signals");
        let (server, input) = (std::future::pending(), std::future::pending());
        let failed = std::future::ready("task 7 panicked".to_owned());
        let orders = StopOrders::default();
        let ended = until_stopped(server, input, failed, &mut signals, &orders).await;
        let reason = reason_line(&ended.expect_err("nobody is served"));
        assert_eq!(
            reason,
            "Error: the batching task has failed: task 7 panicked"
        );
    }

    #[test]
    fn a_reason_is_one_line() {
        let error =
            anyhow::anyhow!("one of:\n  (1) a file,\n  (2) another").context("no tokenizer");
        assert_eq!(
            reason_line(&error),
            "Error: no tokenizer: one of: (1) a file, (2) another"
        );
    }
}
