//! Everything that is running: wait until it is ready, notice its end, stop it in order.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::info;

use crate::error::LauncherError;
use crate::logs::Console;
use crate::plan::{self, ProcessSpec, ShardGroup};
use crate::process::Process;
use crate::readiness;
use crate::sockets::Sockets;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Time for processes that have nothing left to finish.
pub const SHORT_GRACE: Duration = Duration::from_secs(5);

/// Everything that is running.
pub struct Fleet {
    pub console: Console,
    pub router: Option<Process>,
    /// The download step, later the shards in rank order.
    pub workers: Vec<Process>,
    /// Last, so that processes are gone before their sockets.
    pub sockets: Option<Sockets>,
}

impl Fleet {
    pub fn start_worker(&mut self, spec: ProcessSpec) -> Result<(), LauncherError> {
        self.workers
            .push(Process::spawn(spec, self.console.clone())?);
        Ok(())
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.router.iter().chain(&self.workers)
    }

    /// The first process to end, by name, and how it ended.
    pub async fn first_exit(&self) -> (String, String) {
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
    pub async fn shards_ready(&self, group: &ShardGroup, limit: u64) -> Result<(), LauncherError> {
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
    pub async fn router_ready(
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
    pub async fn stop(&self, router_grace: Duration, reported: &str) {
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

    pub async fn kill(&self) {
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
