//! Everything that is running, and its end in order.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use crate::error::LauncherError;
use crate::logs::Console;
use crate::management::ManagementPort;
use crate::nodes::Nodes;
use crate::process::Process;
use crate::readiness;
use crate::spans::Tracer;
use crate::supervisor::shards::{self, Shards, first_failure};

/// Time for processes that have nothing left to finish.
const SHORT_GRACE: Duration = Duration::from_secs(5);
/// The same after a failure of several nodes, all of which end within 10 s: what is lost may be what would end.
const HURRIED_GRACE: Duration = Duration::from_secs(1);

/// Everything that is running.
pub struct Fleet {
    pub console: Console,
    pub tracer: Tracer,
    /// Until the router answers there.
    pub management: Option<ManagementPort>,
    pub download: Option<Process>,
    pub router: Option<Process>,
    pub nodes: Nodes,
    /// Last, so that the router is told to end before the sockets go.
    pub shards: Option<Shards>,
}

impl Fleet {
    pub fn new(console: Console, tracer: Tracer) -> Self {
        Self {
            console,
            tracer,
            management: None,
            download: None,
            router: None,
            nodes: Nodes::new(),
            shards: None,
        }
    }

    /// The download step, or the shards in rank order.
    fn workers(&self) -> impl Iterator<Item = &Process> + Clone {
        let shards = self.shards.iter().flat_map(Shards::processes);
        self.download.iter().chain(shards)
    }

    fn processes(&self) -> impl Iterator<Item = &Process> + Clone {
        self.router.iter().chain(self.workers())
    }

    /// Waits until the router answers. `limit` in seconds, from now.
    pub async fn router_ready(
        &self,
        address: SocketAddr,
        instance: &str,
        limit: u64,
    ) -> Result<(), LauncherError> {
        let deadline = Instant::now() + Duration::from_secs(limit);
        tokio::select! {
            // An end counts even if the answer came at the same time.
            biased;
            (process, exit) = first_failure(self.processes()) => Err(LauncherError::CannotStart { process, exit }),
            answered = timeout_at(deadline, readiness::router_ready(address, instance)) => {
                answered.map_err(|_| LauncherError::StartupTimeout {
                    process: "router".to_owned(),
                    seconds: limit,
                })
            }
        }
    }

    /// Keeps the shards running. Resolves with the reason why the server has to end.
    pub async fn watch(&mut self) -> LauncherError {
        let (router, shards) = match (&self.router, &mut self.shards) {
            (Some(router), Some(shards)) => (router, shards),
            (None, Some(shards)) => return shards.keep_running().await,
            _ => return std::future::pending().await,
        };
        tokio::select! {
            exit = router.exited() => LauncherError::Died {
                process: router.name.clone(),
                exit: exit.to_string(),
            },
            reason = shards.keep_running() => reason,
        }
    }

    /// The router finishes its requests, for at most `grace`. Meanwhile the shards are kept running for them. Where the
    /// router is on another node, that one is asked.
    pub async fn drain(&mut self, grace: Duration) -> Result<(), LauncherError> {
        let (router, nodes) = (&self.router, &self.nodes);
        let finished = async {
            match router {
                Some(router) => {
                    router.signal(Signal::SIGTERM);
                    end_by(router, Instant::now() + grace).await;
                }
                // The other node has the same time, and some to say that it is done.
                None => drop(timeout(grace + SHORT_GRACE, nodes.stop_in_order()).await),
            }
        };
        let shards = self.shards.as_mut();
        let failed = async {
            match shards {
                Some(shards) => shards.keep_running().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = finished => Ok(()),
            reason = failed => Err(reason),
            reason = nodes.lost() => Err(reason),
        }
    }

    /// Router first, which ends what still runs with an error: after a failure nobody is left who could compute it. Then
    /// the workers, all at once; none has anything left to finish. The other nodes are told to do the same. `failure` is
    /// why, where it is one; it is in the log already.
    pub async fn stop(&mut self, failure: Option<&str>) {
        self.nodes.end(failure);
        let grace = match failure {
            Some(_) if self.nodes.are_several() => HURRIED_GRACE,
            _ => SHORT_GRACE,
        };
        if let Some(router) = &mut self.router {
            router.end_input();
            end_by(router, Instant::now() + grace).await;
        }
        self.workers()
            .for_each(|worker| worker.signal(Signal::SIGTERM));
        let deadline = Instant::now() + grace;
        for worker in self.workers() {
            end_by(worker, deadline).await;
        }
        shards::warn_of_unsaid(self.processes(), failure.unwrap_or_default()).await;
        self.nodes.close().await;
    }

    /// Ends everything at once.
    pub async fn kill(&self) {
        shards::kill(self.processes()).await;
    }
}

async fn end_by(process: &Process, deadline: Instant) {
    if !process.end_by(deadline).await {
        warn!("{} did not stop in time and was killed", process.name);
    }
}
