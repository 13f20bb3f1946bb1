//! The shards of one model as a group: started together, watched, and all started anew when one is lost.

use std::time::Duration;

use nix::sys::signal::Signal;
use opentelemetry::KeyValue;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};
use uuid::Uuid;

use crate::args::ShardArgs;
use crate::error::LauncherError;
use crate::logs::Console;
use crate::plan::{self, ProcessSpec};
use crate::process::Process;
use crate::readiness::{self, SILENCE_LIMIT};
use crate::sockets::Sockets;
use crate::spans::{Span, Tracer};
use crate::supervisor::losses::{Losses, Verdict};
use crate::supervisor::standby::{self, Standby};
use crate::supervisor::start::Start;

/// How far the present start of the group has come.
#[derive(Debug)]
enum State {
    /// None was started yet.
    New,
    /// A rank is lost. Others may be left that have to go first. `told`: what the log says. `restart` lasts until all
    /// ranks are ready again.
    Lost {
        told: String,
        restart: Span,
    },
    Starting(Start),
    Ready,
}

/// All ranks of one model. Dropping it kills them and removes their sockets.
pub struct Shards {
    console: Console,
    tracer: Tracer,
    /// What to run, in rank order. The same for every start, but for the group's name.
    specs: Vec<ProcessSpec>,
    processes: Vec<Process>,
    /// Those of the next start, while the present ones serve.
    standby: Option<Standby>,
    keeps_standby: bool,
    /// After the processes, so that those are told to end before their sockets go.
    sockets: Sockets,
    state: State,
    startup_limit_s: u64,
    losses: Losses,
    loss_window_s: u64,
}

impl Shards {
    /// `specs` in rank order; nothing runs before `start`. Of `several_nodes` all end with the first loss.
    pub fn new(
        console: Console,
        tracer: Tracer,
        specs: Vec<ProcessSpec>,
        sockets: Sockets,
        args: &ShardArgs,
        several_nodes: bool,
    ) -> Self {
        let window = Duration::from_secs(args.shard_loss_window);
        let most_losses = if several_nodes {
            1
        } else {
            args.max_shard_losses
        };
        Self {
            console,
            tracer,
            specs,
            processes: Vec::new(),
            standby: None,
            // Where the first loss is the last there is no next start.
            keeps_standby: args.standby_shards && most_losses > 1,
            sockets,
            state: State::New,
            startup_limit_s: args.shard_startup_timeout,
            losses: Losses::new(most_losses, window),
            loss_window_s: args.shard_loss_window,
        }
    }

    /// Starts every rank, with the processes on standby where there are some. `name`: of the group, by which the router
    /// tells this start from others; those on standby have theirs. `span` lasts until all ranks are ready.
    pub async fn start(&mut self, name: &str, span: Span) -> Result<(), LauncherError> {
        for spec in &self.specs {
            info!(rank = spec.rank, "Starting {}", spec.name);
        }
        let begun = match self.standby.take() {
            Some(standby) => standby.begin().await,
            None => None,
        };
        self.processes = match begun {
            Some(processes) => processes,
            None => standby::start(self.specs.iter().cloned(), name, &self.console)?,
        };
        let ranks = self.specs.iter().enumerate().map(|(local_rank, spec)| {
            let rank = spec.rank.unwrap_or(local_rank);
            (rank, self.socket(local_rank))
        });
        self.state = State::Starting(Start::new(span, ranks));
        Ok(())
    }

    /// Prepares the next start. The present shards do not need it, so a failure is but logged.
    fn stand_by(&mut self) {
        if self.keeps_standby && self.standby.is_none() {
            match Standby::prepare(&self.specs, &self.console) {
                Ok(standby) => self.standby = Some(standby),
                Err(error) => warn!("cannot start standby processes of shards: {error}"),
            }
        }
    }

    /// Waits until every rank of the present start answers, or one of them ends.
    pub async fn ready(&mut self) -> Result<(), LauncherError> {
        let State::Starting(start) = &mut self.state else {
            return Ok(());
        };
        let outcome = tokio::select! {
            // An end counts even if the answers came at the same time.
            biased;
            (process, exit) = first_failure(&self.processes) => Err(LauncherError::CannotStart { process, exit }),
            outcome = start.all_ready(self.startup_limit_s) => outcome,
        };
        outcome.inspect_err(|error| start.span.fail(error))?;
        self.state = State::Ready;
        Ok(())
    }

    /// Watches the group and starts it anew whenever it is lost. Resolves with the reason to give up.
    ///
    /// It may be dropped at any time and called again: it goes on where it was.
    pub async fn keep_running(&mut self) -> LauncherError {
        loop {
            if let Err(reason) = self.advance().await {
                return reason;
            }
        }
    }

    /// Waits for the next change of state, or brings it about.
    async fn advance(&mut self) -> Result<(), LauncherError> {
        match &self.state {
            State::New => std::future::pending().await,
            State::Ready => {
                self.stand_by();
                let loss = self.lost().await;
                self.count(loss)
            }
            State::Lost { told, restart } => {
                let restart = restart.clone();
                let ending = restart.part("end shards", []);
                kill(&self.processes).await;
                warn_of_unsaid(&self.processes, told).await;
                drop(ending);
                self.processes.clear();
                self.sockets.clear()?;
                self.start(&Uuid::new_v4().to_string(), restart).await
            }
            State::Starting(_) => match self.ready().await {
                Err(loss @ LauncherError::CannotStart { .. }) => self.count(loss),
                outcome => outcome,
            },
        }
    }

    /// The first rank that ends, or that does not serve any more.
    async fn lost(&self) -> LauncherError {
        let mut watches = JoinSet::new();
        for (local_rank, process) in self.processes.iter().enumerate() {
            let (name, socket) = (process.name.clone(), self.socket(local_rank));
            watches.spawn(async move {
                let reason = readiness::shard_silent(socket).await;
                LauncherError::Silent {
                    process: name,
                    reason,
                }
            });
        }
        tokio::select! {
            (process, exit) = first_exit(&self.processes) => LauncherError::Died { process, exit },
            Some(Ok(loss)) = watches.join_next() => loss,
        }
    }

    /// Counts a loss. An error where it was one too many.
    fn count(&mut self, loss: LauncherError) -> Result<(), LauncherError> {
        let told = loss.to_string();
        let reason = KeyValue::new("tgi.loss.reason", told.clone());
        let restart = self.tracer.begin("restart", [reason]);
        let seconds = self.loss_window_s;
        let reason = match self.losses.count(Instant::now()) {
            Verdict::StartAgain { losses } => {
                warn!("{told}; restarting all shards (loss {losses} within {seconds} s)");
                self.state = State::Lost { told, restart };
                return Ok(());
            }
            Verdict::GiveUp { losses: 1 } => loss,
            Verdict::GiveUp { losses } => LauncherError::LostTooOften {
                loss: Box::new(loss),
                losses,
                seconds,
            },
        };
        restart.fail(&reason);
        Err(reason)
    }

    /// The shards in rank order, and those on standby.
    pub fn processes(&self) -> impl Iterator<Item = &Process> + Clone {
        let standby = self.standby.iter().flat_map(Standby::processes);
        self.processes.iter().chain(standby)
    }

    fn socket(&self, local_rank: usize) -> String {
        plan::socket_path(self.sockets.prefix(), local_rank)
    }
}

/// The first process to end, by name, and how it ended.
async fn first_exit(processes: &[Process]) -> (String, String) {
    let exits = processes.iter().map(|process| {
        let (name, exited) = (process.name.clone(), process.exited());
        async move { (name, exited.await.to_string()) }
    });
    first(exits.collect()).await
}

/// The first process to end or to stand still while all are starting, by name, and what it did. Whether it answers says
/// nothing then: a shard that reads weights may be silent for long.
pub async fn first_failure(processes: impl IntoIterator<Item = &Process>) -> (String, String) {
    let failures = processes.into_iter().map(|process| {
        let (name, exited) = (process.name.clone(), process.exited());
        let stopped = process.stopped(SILENCE_LIMIT);
        async move {
            let what = tokio::select! {
                exit = exited => exit.to_string(),
                () = stopped => {
                    let seconds = SILENCE_LIMIT.as_secs();
                    format!("a signal such as SIGSTOP stopped it, and it did not continue for {seconds} s")
                }
            };
            (name, what)
        }
    });
    first(failures.collect()).await
}

async fn first(mut outcomes: JoinSet<(String, String)>) -> (String, String) {
    match outcomes.join_next().await {
        Some(Ok(first)) => first,
        _ => std::future::pending().await,
    }
}

/// Kills all and waits until they are gone.
pub async fn kill(processes: impl IntoIterator<Item = &Process> + Clone) {
    for process in processes.clone() {
        process.signal(Signal::SIGKILL);
    }
    for process in processes {
        process.exited().await;
    }
}

/// Logs why processes, all of which end, have ended, unless that is in the log already or in `told`.
pub async fn warn_of_unsaid(processes: impl IntoIterator<Item = &Process>, told: &str) {
    for process in processes {
        let exit = process.exited().await;
        let reason = exit.last_error.as_deref().unwrap_or_default();
        if exit.unsaid && !told.contains(reason) {
            warn!("{} stopped: {exit}", process.name);
        }
    }
}
