//! The lives of a mock group: it starts, is lost, and starts again on the same sockets.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use text_generation_proto::v1::text_generation_service_server::TextGenerationServiceServer;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::config::MockConfig;
use crate::connection::{Connection, Fate};
use crate::service::{Faults, Rank, Turn, lock};
use crate::state::State;

/// One start of the group.
#[derive(Debug)]
pub(crate) struct Life {
    /// By rank.
    pub(crate) states: Vec<Arc<Mutex<State>>>,
    fate: Fate,
    servers: Vec<AbortHandle>,
}

/// All ranks, and what was of them before.
#[derive(Debug)]
pub(crate) struct Group {
    directory: TempDir,
    config: Arc<MockConfig>,
    pub(crate) faults: Arc<Faults>,
    /// The last one is the present one.
    pub(crate) lives: Mutex<Vec<Life>>,
}

impl Group {
    pub(crate) fn new(config: MockConfig, faults: Faults) -> io::Result<Arc<Self>> {
        let group = Arc::new(Self {
            directory: TempDir::with_prefix("mock-")?,
            config: Arc::new(config),
            faults: Arc::new(faults),
            lives: Mutex::new(Vec::new()),
        });
        group.start()?;
        Ok(group)
    }

    pub(crate) fn world_size(&self) -> usize {
        self.config.world_size
    }

    pub(crate) fn socket(&self, rank: usize) -> PathBuf {
        self.directory.path().join(format!("shard-{rank}"))
    }

    /// Starts all ranks on the current tokio runtime.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut lives = lock(&self.lives);
        let number = lives.len();
        let ranks = 0..self.world_size();
        let urls: Vec<String> = ranks
            .clone()
            .map(|rank| format!("unix://{}", self.socket(rank).display()))
            .collect();
        let mut life = Life {
            states: Vec::new(),
            fate: Fate::default(),
            servers: Vec::new(),
        };
        for rank in ranks {
            // Tests may speak to the first start without Warmup.
            let state = Arc::new(Mutex::new(State::of_life(number == 0)));
            let service = Rank {
                rank,
                urls: urls.clone(),
                config: self.config.clone(),
                state: state.clone(),
                turn: Arc::new(watch::Sender::new(Turn::default())),
                masks: Arc::new(Notify::new()),
                faults: self.faults.clone(),
                group: Arc::downgrade(self),
                life: number,
            };
            let service = TextGenerationServiceServer::new(service)
                .max_decoding_message_size(i32::MAX as usize);
            let fate = life.fate.clone();
            let connections = UnixListenerStream::new(UnixListener::bind(self.socket(rank))?);
            let connections =
                connections.map(move |stream| stream.map(|stream| Connection::new(stream, &fate)));
            let server = Server::builder().add_service(service);
            let server = tokio::spawn(server.serve_with_incoming(connections));
            life.servers.push(server.abort_handle());
            life.states.push(state);
        }
        lives.push(life);
        Ok(())
    }

    /// The start `number` of the group ends, unless it has ended before, and with it its sockets.
    pub(crate) fn end(&self, number: usize) -> bool {
        let lives = lock(&self.lives);
        let Some(life) = lives.get(number) else {
            return false;
        };
        if number + 1 < lives.len() || life.fate.dead.is_cancelled() {
            return false;
        }
        life.fate.dead.cancel();
        life.servers.iter().for_each(AbortHandle::abort);
        for rank in 0..self.world_size() {
            // A test may have removed it.
            let _ = std::fs::remove_file(self.socket(rank));
        }
        // Steps that were held are not there any more.
        if let Some(gate) = lock(&self.faults.gate).as_mut() {
            gate.close();
            *gate = Arc::new(Semaphore::new(0));
        }
        true
    }

    /// The start `number` ends, and whoever starts shards starts the next one, if the configuration says so.
    pub(crate) fn crash(self: &Arc<Self>, number: usize) {
        if self.end(number)
            && self.config.restarts
            && let Err(error) = self.start()
        {
            lock(&self.lives)
                .iter()
                .flat_map(|life| &life.states)
                .for_each(|state| lock(state).violations.push(error.to_string()));
        }
    }

    /// The present start.
    pub(crate) fn number(&self) -> usize {
        lock(&self.lives).len() - 1
    }

    /// From now on the present start neither reads nor writes.
    pub(crate) fn hang(&self) {
        if let Some(life) = lock(&self.lives).last() {
            life.fate.hung.cancel();
        }
    }

    /// One value of each state, of all ranks or of the first alone.
    pub(crate) fn collect<T>(&self, ranks: usize, of: impl Fn(&mut State) -> Vec<T>) -> Vec<T> {
        lock(&self.lives)
            .iter()
            .flat_map(|life| life.states.iter().take(ranks))
            .flat_map(|state| of(&mut lock(state)))
            .collect()
    }

    /// Of rank 0 as it is now.
    pub(crate) fn now<T>(&self, of: impl Fn(&State) -> T) -> Option<T> {
        let lives = lock(&self.lives);
        let state = lives.last()?.states.first()?;
        Some(of(&lock(state)))
    }
}
