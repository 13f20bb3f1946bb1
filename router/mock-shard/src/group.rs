//! The lives of a mock group: it starts, is lost, and starts again where it was.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use text_generation_proto::v1::text_generation_service_server::TextGenerationServiceServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server};

use crate::config::MockConfig;
use crate::connection::{Connection, Fate};
use crate::faults::Faults;
use crate::lock::lock;
use crate::service::{Crash, Rank, Turn};
use crate::state::State;
use crate::wire::Wire;

/// How ranks are reached, by rank.
#[derive(Debug)]
enum Place {
    Sockets(TempDir),
    InProcess(Vec<Wire>),
}

/// One start of the group.
#[derive(Debug)]
pub(crate) struct Life {
    /// By rank.
    pub(crate) states: Vec<Arc<Mutex<State>>>,
    fate: Fate,
    servers: Vec<AbortHandle>,
    /// By rank, of each connection: what ends it.
    connections: Vec<Arc<Mutex<Vec<CancellationToken>>>>,
}

impl Life {
    /// One more rank accepts these connections on the current tokio runtime.
    fn serve<S>(&mut self, rank: Rank, streams: impl Stream<Item = io::Result<S>> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.states.push(rank.state.clone());
        let service =
            TextGenerationServiceServer::new(rank).max_decoding_message_size(i32::MAX as usize);
        let (fate, cuts) = (self.fate.clone(), Arc::new(Mutex::new(Vec::new())));
        self.connections.push(cuts.clone());
        let connections = streams.map(move |stream| {
            let cut = fate.dead.child_token();
            lock(&cuts).push(cut.clone());
            stream.map(|stream| Connection::new(stream, &fate, cut))
        });
        let server = Server::builder().add_service(service);
        let server = tokio::spawn(server.serve_with_incoming(connections));
        self.servers.push(server.abort_handle());
    }
}

/// All ranks, and what was of them before.
#[derive(Debug)]
pub(crate) struct Group {
    place: Place,
    config: Arc<MockConfig>,
    pub(crate) faults: Arc<Faults>,
    /// The last one is the present one.
    pub(crate) lives: Mutex<Vec<Life>>,
}

impl Group {
    pub(crate) fn on_sockets(config: MockConfig) -> io::Result<Arc<Self>> {
        Self::new(config, Place::Sockets(TempDir::with_prefix("mock-")?))
    }

    pub(crate) fn in_process(config: MockConfig) -> io::Result<Arc<Self>> {
        let wires = (0..config.world_size).map(|_| Wire::new()).collect();
        Self::new(config, Place::InProcess(wires))
    }

    fn new(config: MockConfig, place: Place) -> io::Result<Arc<Self>> {
        let group = Arc::new(Self {
            place,
            config: Arc::new(config),
            faults: Arc::default(),
            lives: Mutex::new(Vec::new()),
        });
        group.start()?;
        Ok(group)
    }

    pub(crate) fn world_size(&self) -> usize {
        self.config.world_size
    }

    /// Of a rank, where there are sockets.
    pub(crate) fn socket(&self, rank: usize) -> Option<PathBuf> {
        match &self.place {
            Place::Sockets(directory) => Some(directory.path().join(format!("shard-{rank}"))),
            Place::InProcess(_) => None,
        }
    }

    /// One for each rank, where there are no sockets.
    pub(crate) fn channels(&self) -> Vec<Channel> {
        match &self.place {
            Place::Sockets(_) => Vec::new(),
            Place::InProcess(wires) => wires.iter().map(|wire| wire.channel.clone()).collect(),
        }
    }

    /// The connections of a rank end, and it goes on.
    pub(crate) fn cut(&self, rank: usize) {
        let lives = lock(&self.lives);
        if let Some(connections) = lives.last().and_then(|life| life.connections.get(rank)) {
            for connection in lock(connections).drain(..) {
                connection.cancel();
            }
        }
    }

    /// Starts all ranks on the current tokio runtime.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut lives = lock(&self.lives);
        let number = lives.len();
        let ranks = 0..self.world_size();
        let sockets = ranks.clone().filter_map(|rank| self.socket(rank));
        let urls: Vec<String> = sockets
            .map(|socket| format!("unix://{}", socket.display()))
            .collect();
        let mut life = Life {
            states: Vec::new(),
            fate: Fate::default(),
            servers: Vec::new(),
            connections: Vec::new(),
        };
        for rank in ranks {
            // Tests may speak to the first start without Warmup.
            let state = Arc::new(Mutex::new(State::of_life(number == 0)));
            let service = Rank {
                rank,
                urls: urls.clone(),
                config: self.config.clone(),
                state,
                turn: Arc::new(watch::Sender::new(Turn::default())),
                masks: Arc::new(Notify::new()),
                faults: self.faults.clone(),
                group: Arc::<Self>::downgrade(self),
                life: number,
            };
            match &self.place {
                Place::Sockets(directory) => {
                    let socket = directory.path().join(format!("shard-{rank}"));
                    let listener = UnixListener::bind(socket)?;
                    life.serve(service, UnixListenerStream::new(listener));
                }
                Place::InProcess(wires) => life.serve(service, wires[rank].listen()),
            }
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
        for socket in (0..self.world_size()).filter_map(|rank| self.socket(rank)) {
            // A test may have removed it.
            let _ = std::fs::remove_file(socket);
        }
        // Steps that were held are not there any more.
        if let Some(gate) = lock(&self.faults.gate).as_mut() {
            gate.close();
            *gate = Arc::new(Semaphore::new(0));
        }
        true
    }

    fn start_again(self: &Arc<Self>) {
        if let Err(error) = self.start() {
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

impl Crash for Group {
    fn crash(self: Arc<Self>, number: usize) {
        if !self.end(number) || !self.config.restarts {
            return;
        }
        let time = self.config.restart_time;
        if time.is_zero() {
            return self.start_again();
        }
        let group = Arc::downgrade(&self);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(group) = group.upgrade() {
                group.start_again();
            }
        });
    }
}
