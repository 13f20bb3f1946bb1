//! A group of shards without a model, over real Unix sockets, for tests and benchmarks of everything above gRPC.
//!
//! Plans run in the order of their numbers; rows, slots and masks are kept and checked as in a real shard; what breaks
//! the contract is listed by [`MockShard::violations`]. Steps can be held, delayed and made to fail, so tests wait for conditions, not for time.

mod config;
mod masks;
mod script;
mod service;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use text_generation_proto::v1::text_generation_service_server::TextGenerationServiceServer;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

pub use config::{MockConfig, MockRow, TokenSource};
pub use script::Script;
use service::{Faults, Rank, Turn, lock};
pub use state::MockStep;
use state::State;

/// A running mock group. Dropping it stops the servers and removes the sockets.
#[derive(Debug)]
pub struct MockShard {
    directory: TempDir,
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
        let config = Arc::new(config);
        let faults = Arc::new(Faults {
            gate: Mutex::new(None),
            failing_steps: Mutex::new(Vec::new()),
            failing_masks: Mutex::new(Vec::new()),
            healthy: Mutex::new(true),
        });
        let socket = |rank: usize| directory.path().join(format!("shard-{rank}"));
        let urls: Vec<String> = (0..config.world_size)
            .map(|rank| format!("unix://{}", socket(rank).display()))
            .collect();
        let mut states = Vec::new();
        let mut servers = Vec::new();
        for rank in 0..config.world_size {
            let state = Arc::new(Mutex::new(State::default()));
            let service = Rank {
                rank,
                urls: urls.clone(),
                config: config.clone(),
                state: state.clone(),
                turn: Arc::new(watch::Sender::new(Turn::default())),
                masks: Arc::new(Notify::new()),
                faults: faults.clone(),
            };
            let connections = UnixListenerStream::new(UnixListener::bind(socket(rank))?);
            let server = Server::builder()
                .add_service(
                    TextGenerationServiceServer::new(service)
                        .max_decoding_message_size(i32::MAX as usize),
                )
                .serve_with_incoming(connections);
            servers.push(tokio::spawn(server));
            states.push(state);
        }
        Ok(Self {
            directory,
            states,
            faults,
            servers,
        })
    }

    /// The socket of rank 0.
    pub fn path(&self) -> PathBuf {
        Path::new(self.directory.path()).join("shard-0")
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
        lock(&self.faults.failing_steps).push(message.to_owned());
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

impl Drop for MockShard {
    fn drop(&mut self) {
        for server in &self.servers {
            server.abort();
        }
    }
}
