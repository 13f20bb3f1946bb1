//! A group of shards without a model, for tests and benchmarks of everything above gRPC: over real Unix sockets, or
//! within the process of its caller, whose clock may be paused then.
//!
//! Plans run in the order of their numbers; rows, slots and masks are kept and checked as in a real shard; what breaks
//! the contract is listed by [`MockShard::violations`]. Steps can be held, delayed and made to fail, so tests wait for conditions, not for time.

mod config;
mod faults;
mod masks;
mod script;
mod service;
mod state;
mod wire;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use text_generation_proto::v1::text_generation_service_server::TextGenerationServiceServer;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Server};

pub use config::{MockConfig, MockRow, StepTime, TokenSource};
use faults::Faults;
pub use faults::StepFault;
pub use script::Script;
use service::{Rank, Turn, lock};
pub use state::MockStep;
use state::State;
use wire::Wire;

/// A running mock group. Dropping it stops the servers and removes the sockets.
#[derive(Debug)]
pub struct MockShard {
    /// Of the sockets, where there are any.
    directory: Option<TempDir>,
    /// One for each rank, where there are no sockets.
    wires: Vec<Wire>,
    states: Vec<Arc<Mutex<State>>>,
    faults: Arc<Faults>,
    servers: Vec<JoinHandle<Result<(), tonic::transport::Error>>>,
}

impl MockShard {
    /// Starts all ranks on the current tokio runtime; the sockets accept connections when this returns.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(config: MockConfig) -> io::Result<Self> {
        let directory = TempDir::with_prefix("mock-")?;
        let socket = |rank: usize| directory.path().join(format!("shard-{rank}"));
        let sockets: Vec<PathBuf> = (0..config.world_size).map(socket).collect();
        let urls = sockets
            .iter()
            .map(|socket| format!("unix://{}", socket.display()));
        let mut group = Self::without_servers(config.world_size);
        for (rank, service) in group
            .services(config, urls.collect())
            .into_iter()
            .enumerate()
        {
            let connections = UnixListenerStream::new(UnixListener::bind(&sockets[rank])?);
            group.serve(router(service).serve_with_incoming(connections));
        }
        group.directory = Some(directory);
        Ok(group)
    }

    /// Starts all ranks on the current tokio runtime, without sockets; [`MockShard::channels`] lead to them.
    pub fn start_in_process(config: MockConfig) -> Self {
        let mut group = Self::without_servers(config.world_size);
        for service in group.services(config, Vec::new()) {
            let (wire, connections) = Wire::new();
            group.wires.push(wire);
            group.serve(router(service).serve_with_incoming(connections));
        }
        group
    }

    fn without_servers(world_size: usize) -> Self {
        Self {
            directory: None,
            wires: Vec::new(),
            states: (0..world_size).map(|_| Arc::default()).collect(),
            faults: Arc::default(),
            servers: Vec::new(),
        }
    }

    fn services(&self, config: MockConfig, urls: Vec<String>) -> Vec<Rank> {
        let config = Arc::new(config);
        let ranks = self.states.iter().enumerate();
        ranks
            .map(|(rank, state)| Rank {
                rank,
                urls: urls.clone(),
                config: config.clone(),
                state: state.clone(),
                turn: Arc::new(watch::Sender::new(Turn::default())),
                masks: Arc::new(Notify::new()),
                faults: self.faults.clone(),
            })
            .collect()
    }

    fn serve(
        &mut self,
        server: impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
    ) {
        self.servers.push(tokio::spawn(server));
    }

    /// One for each rank of a group in this process, in their order; none where there are sockets.
    pub fn channels(&self) -> Vec<Channel> {
        self.wires.iter().map(|wire| wire.channel.clone()).collect()
    }

    /// Ends the connections to one rank of a group in this process. It goes on, and channels connect again.
    pub fn cut(&self, rank: usize) {
        if let Some(wire) = self.wires.get(rank) {
            wire.cut();
        }
    }

    /// The socket of rank 0; empty where there is none.
    pub fn path(&self) -> PathBuf {
        let directory = self.directory.as_ref().map_or(Path::new(""), TempDir::path);
        directory.join("shard-0")
    }

    /// Broken rules of the contract, over all ranks; empty for a correct router.
    pub fn violations(&self) -> Vec<String> {
        self.states
            .iter()
            .flat_map(|state| lock(state).violations.clone())
            .collect()
    }

    /// Rows in use on rank 0.
    pub fn rows(&self) -> usize {
        self.states.first().map_or(0, |state| lock(state).rows())
    }

    /// Slots that the rows of rank 0 use.
    pub fn slots(&self) -> usize {
        self.states.first().map_or(0, |state| lock(state).slots())
    }

    /// Every step of rank 0 so far.
    pub fn steps(&self) -> Vec<MockStep> {
        self.states
            .first()
            .map_or_else(Vec::new, |state| lock(state).steps.clone())
    }

    /// How long the device of rank 0 had nothing to do before each step that it began, but for the first.
    pub fn idle(&self) -> Vec<Duration> {
        self.states
            .first()
            .map_or_else(Vec::new, |state| lock(state).idle.clone())
    }

    /// Requests that own a row of rank 0.
    pub fn requests(&self) -> Vec<u64> {
        self.states
            .first()
            .map_or_else(Vec::new, |state| lock(state).requests())
    }

    /// How often a request got a row of rank 0: again when it resumes after a pause.
    pub fn admitted(&self) -> usize {
        self.states.first().map_or(0, |state| lock(state).admitted)
    }

    /// From now on a step waits for [`MockShard::release`].
    pub fn hold(&self) {
        *lock(&self.faults.gate) = Some(Arc::new(Semaphore::new(0)));
    }

    /// Lets `steps` held steps through, each on all ranks.
    pub fn release(&self, steps: usize) {
        if let Some(gate) = lock(&self.faults.gate).as_ref() {
            gate.add_permits(steps * self.states.len());
        }
    }

    /// Ends a hold: steps run freely again.
    pub fn resume(&self) {
        if let Some(gate) = lock(&self.faults.gate).take() {
            gate.add_permits(Semaphore::MAX_PERMITS / 2);
        }
    }

    /// The next step of one rank fails with INTERNAL and this message.
    pub fn fail_next_step(&self, message: &str) {
        self.disturb_next_step(StepFault::Error(message.to_owned()));
    }

    /// This goes wrong with the next step, or with the one after those that were disturbed already.
    pub fn disturb_next_step(&self, fault: StepFault) {
        lock(&self.faults.steps).push_back(fault);
    }

    /// The next ClearCache of one rank fails with INTERNAL.
    pub fn fail_next_clear(&self) {
        *lock(&self.faults.failing_clears) += 1;
    }

    /// The next masks of one rank are refused with INTERNAL and this message.
    pub fn fail_next_masks(&self, message: &str) {
        lock(&self.faults.failing_masks).push(message.to_owned());
    }

    /// This request fails alone at its next step.
    pub fn fail_request(&self, id: u64) {
        for state in &self.states {
            lock(state).failing.push(id);
        }
    }

    /// What Health answers from now on.
    pub fn set_healthy(&self, healthy: bool) {
        *lock(&self.faults.healthy) = healthy;
    }
}

fn router(service: Rank) -> Router {
    let service =
        TextGenerationServiceServer::new(service).max_decoding_message_size(i32::MAX as usize);
    Server::builder().add_service(service)
}

impl Drop for MockShard {
    fn drop(&mut self) {
        for server in &self.servers {
            server.abort();
        }
    }
}
