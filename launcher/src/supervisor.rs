//! The life of a server: download -> shards ready -> router ready -> running -> draining.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::info;
use uuid::Uuid;

use crate::args::Args;
use crate::error::LauncherError;
use crate::logs::Console;
use crate::plan::{self, ProcessSpec, ShardGroup, Surroundings};
use crate::process::Process;
use crate::sockets::Sockets;
use crate::{banner, devices, download, readiness};

const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Time for processes that have nothing left to finish.
const SHORT_GRACE: Duration = Duration::from_secs(5);
/// The router ends its own grace time first, so that it and not a SIGKILL cuts the last streams.
const ROUTER_MARGIN: Duration = Duration::from_secs(2);

/// Serves until a signal (Ok) or a failure (Err, already logged). No process and no socket outlives this call.
pub async fn run(args: &Args, console: Console) -> Result<(), LauncherError> {
    let mut signals = Signals::listen().inspect_err(|error| tracing::error!("{error}"))?;
    let mut fleet = Fleet {
        console,
        router: None,
        workers: Vec::new(),
        sockets: None,
    };
    let outcome = tokio::select! {
        // Service managers may signal the children too; their end is then no failure.
        biased;
        name = signals.next() => {
            info!("Received {name}, stopping; a second signal stops at once");
            Ok(())
        }
        failure = serve(args, &mut fleet) => failure.map(|never| match never {}),
    };
    let reported = outcome
        .as_ref()
        .err()
        .map(ToString::to_string)
        .inspect(|error| tracing::error!("{error}"))
        .unwrap_or_default();
    let grace = match outcome {
        Ok(()) => Duration::from_secs(args.server.graceful_termination_timeout) + ROUTER_MARGIN,
        Err(_) => SHORT_GRACE,
    };
    tokio::select! {
        () = fleet.stop(grace, &reported) => outcome,
        _ = signals.next() => {
            fleet.kill().await;
            tracing::error!("{}", LauncherError::Hurried);
            outcome.and(Err(LauncherError::Hurried))
        }
    }
}

/// Brings everything up and watches it. Ends only with a failure.
async fn serve(args: &Args, fleet: &mut Fleet) -> Result<Infallible, LauncherError> {
    let address = SocketAddr::new(args.server.hostname, args.server.port);
    // Found out now, not after minutes of loading.
    TcpListener::bind(address).map_err(|source| LauncherError::Address { address, source })?;
    if args.logs.env {
        info!("{}", devices::runtime_environment().await);
    }
    let shards = plan::shard_count(
        args.shards.sharded,
        args.shards.num_shard,
        devices::count().await,
    )?;
    let surroundings = Surroundings {
        log_level: fleet.console.level_name(),
        hf_token: hub_token(),
    };
    let model_id = args.model.model_id.as_deref().unwrap_or_default();

    info!("Preparing model {model_id}");
    fleet.start_worker(plan::download(args, &surroundings))?;
    let folder = download::model_folder(&fleet.workers[0], model_id).await?;
    fleet.workers.clear();

    let sockets = fleet.sockets.insert(Sockets::prepare(
        args.shards.shard_uds_path.as_deref(),
        shards,
    )?);
    let group = ShardGroup {
        size: shards,
        uds_prefix: sockets.prefix().to_owned(),
        directory_owned: sockets.directory_owned(),
    };
    let limit = args.shards.shard_startup_timeout;
    for rank in 0..shards {
        info!(rank, "Starting shard {rank}");
        fleet.start_worker(plan::shard(args, &surroundings, &folder, &group, rank))?;
    }
    fleet.shards_ready(&group, limit).await?;

    let compute_type = match std::env::var_os("COMPUTE_TYPE") {
        Some(_) => None,
        None => Some(devices::compute_type(shards).await),
    };
    info!("Starting router");
    let instance = Uuid::new_v4().to_string();
    fleet.router = Some(Process::spawn(
        plan::router(args, &folder, &group, compute_type, &instance),
        fleet.console.clone(),
    )?);
    fleet.router_ready(address, &instance, limit).await?;
    banner::show(&fleet.console, model_id, shards, address, &args.server);

    let (process, exit) = fleet.first_exit().await;
    Err(LauncherError::Died { process, exit })
}

/// Everything that is running.
struct Fleet {
    console: Console,
    router: Option<Process>,
    /// The download step, later the shards in rank order.
    workers: Vec<Process>,
    /// Last, so that processes are gone before their sockets.
    sockets: Option<Sockets>,
}

impl Fleet {
    fn start_worker(&mut self, spec: ProcessSpec) -> Result<(), LauncherError> {
        self.workers
            .push(Process::spawn(spec, self.console.clone())?);
        Ok(())
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.router.iter().chain(&self.workers)
    }

    /// The first process to end, by name, and how it ended.
    async fn first_exit(&self) -> (String, String) {
        let mut exits = JoinSet::new();
        for process in self.processes() {
            let (name, exited) = (process.name.clone(), process.exited());
            exits.spawn(async move { (name, exited.await.to_string()) });
        }
        match exits.join_next().await {
            Some(Ok(first)) => first,
            _ => std::future::pending().await,
        }
    }

    /// Waits until every shard answers. `limit` in seconds, from now.
    async fn shards_ready(&self, group: &ShardGroup, limit: u64) -> Result<(), LauncherError> {
        let (begin, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(limit));
        let mut waits = JoinSet::new();
        for rank in 0..group.size {
            let socket = plan::socket_path(&group.uds_prefix, rank);
            waits.spawn(wait_for_shard(rank, socket, begin, deadline));
        }
        let all_ready = async {
            while let Some(ready) = waits.join_next().await {
                ready.map_err(io::Error::other)??;
            }
            Ok(())
        };
        self.unless_one_ends(all_ready).await
    }

    /// Waits until the router answers. `limit` in seconds, from now.
    async fn router_ready(
        &self,
        address: SocketAddr,
        instance: &str,
        limit: u64,
    ) -> Result<(), LauncherError> {
        let deadline = Instant::now() + Duration::from_secs(limit);
        let ready = async {
            let answered = timeout_at(deadline, readiness::router_ready(address, instance)).await;
            answered.map_err(|_| LauncherError::StartupTimeout {
                process: "router".to_owned(),
                seconds: limit,
            })
        };
        self.unless_one_ends(ready).await
    }

    async fn unless_one_ends(
        &self,
        ready: impl Future<Output = Result<(), LauncherError>>,
    ) -> Result<(), LauncherError> {
        tokio::select! {
            // An end counts even if the answer came at the same time.
            biased;
            (process, exit) = self.first_exit() => Err(LauncherError::CannotStart { process, exit }),
            outcome = ready => outcome,
        }
    }

    /// Router first, which finishes its requests; then the workers, all at once. `reported` is in the log already.
    async fn stop(&self, router_grace: Duration, reported: &str) {
        if let Some(router) = &self.router {
            router.signal(Signal::SIGTERM);
            if !router.end_by(Instant::now() + router_grace).await {
                tracing::warn!("router did not stop in time and was killed");
            }
        }
        self.workers
            .iter()
            .for_each(|worker| worker.signal(Signal::SIGTERM));
        let deadline = Instant::now() + SHORT_GRACE;
        for worker in &self.workers {
            if !worker.end_by(deadline).await {
                tracing::warn!("{} did not stop in time and was killed", worker.name);
            }
        }
        for process in self.processes() {
            let exit = process.exited().await;
            let reason = exit.last_error.as_deref().unwrap_or_default();
            if exit.unsaid && !reported.contains(reason) {
                tracing::warn!("{} stopped: {exit}", process.name);
            }
        }
    }

    async fn kill(&self) {
        self.processes()
            .for_each(|process| process.signal(Signal::SIGKILL));
        for process in self.processes() {
            process.exited().await;
        }
    }
}

async fn wait_for_shard(
    rank: usize,
    socket: String,
    begin: Instant,
    deadline: Instant,
) -> Result<(), LauncherError> {
    let mut ready = std::pin::pin!(readiness::shard_ready(socket));
    let mut progress = begin + PROGRESS_INTERVAL;
    loop {
        tokio::select! {
            () = &mut ready => break,
            () = sleep_until(deadline) => {
                let seconds = (deadline - begin).as_secs();
                return Err(LauncherError::StartupTimeout { process: format!("shard {rank}"), seconds });
            }
            () = sleep_until(progress) => {
                info!(rank, "Waiting for shard to be ready...");
                progress += PROGRESS_INTERVAL;
            }
        }
    }
    info!(rank, "Shard ready in {:.1?}", begin.elapsed());
    Ok(())
}

fn hub_token() -> Option<String> {
    let names = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"];
    names
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|token| !token.is_empty()))
}

/// The signals that ask for a stop.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    fn listen() -> Result<Self, LauncherError> {
        let terminate = unix::signal(SignalKind::terminate())?;
        Ok(Self {
            terminate,
            interrupt: unix::signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
