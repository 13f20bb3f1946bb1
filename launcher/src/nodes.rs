//! Several nodes that serve one model: they meet at node 0, start together, and end together.
//!
//! Each node has a launcher and its own shards. Node 0 also has the router, and a session with the launcher of every
//! other node: one connection on which both say once a second that they live.

mod agreement;
mod gather;
mod interface;
mod join;
mod security;
mod session;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use text_generation_process::address::without_brackets;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use uuid::Uuid;

pub use self::agreement::Agreement;
use self::agreement::fingerprint;
pub use self::gather::meeting_address;
use self::security::Security;
use self::session::Session;
use self::wire::Message;
use crate::args::NodeArgs;
use crate::error::LauncherError;
use crate::plan::NodeGroup;

/// Which node this is, and how it reaches the others.
#[derive(Clone, Debug)]
pub struct Place {
    pub rank: usize,
    pub count: usize,
    master_addr: String,
    master_port: u16,
    local_addr: Option<IpAddr>,
    security: Security,
}

impl Place {
    /// None where there is one node. Reads the certificates.
    pub fn of(args: &NodeArgs) -> Result<Option<Self>, LauncherError> {
        let Some(master_addr) = args.master_addr.clone().filter(|_| args.nnodes > 1) else {
            return Ok(None);
        };
        Ok(Some(Self {
            rank: args.node_rank,
            count: args.nnodes,
            master_addr: without_brackets(&master_addr).to_owned(),
            master_port: args.master_port,
            local_addr: args.local_addr,
            security: Security::of(args)?,
        }))
    }

    /// Where the ranks of all nodes meet, and where the shard of `rank` listens where it is not on node 0.
    fn port(&self, offset: usize) -> Result<u16, LauncherError> {
        let offset = u16::try_from(offset).ok();
        offset
            .and_then(|offset| self.master_port.checked_add(offset))
            .ok_or_else(|| {
                LauncherError::Argument(format!(
                    "--master-port {} leaves no ports above it for the shards; choose a lower one",
                    self.master_port
                ))
            })
    }
}

/// Why this node ends, where another one has brought it about.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Somebody was asked to stop.
    Stop(String),
    /// Something was lost, or has failed.
    Lost(String),
}

/// What the others have said.
#[derive(Debug, Default)]
struct Status {
    /// Fingerprint of the model, of nodes that have it.
    prepared: BTreeMap<usize, String>,
    ready: Vec<usize>,
    /// The name of the group, once node 0 lets all start.
    start: Option<String>,
    ending: Option<Ending>,
}

impl Status {
    /// A loss counts even after a stop was asked for.
    fn end(&mut self, ending: Ending) {
        if !matches!(self.ending, Some(Ending::Lost(_))) {
            self.ending = Some(ending);
        }
    }
}

/// How this node is tied to the others.
#[derive(Debug)]
struct Ties {
    place: Place,
    /// The address of node 0 and of this one.
    master: IpAddr,
    own: IpAddr,
    /// On node 0 those of all others, by rank; on others that of node 0.
    sessions: BTreeMap<usize, Session>,
}

/// The other nodes; without any where there is one node alone.
#[derive(Debug)]
pub struct Nodes {
    status: Arc<watch::Sender<Status>>,
    ties: Option<Ties>,
}

impl Nodes {
    pub fn new() -> Self {
        Self {
            status: Arc::new(watch::Sender::new(Status::default())),
            ties: None,
        }
    }

    /// Meets the others: node 0 waits for them, another looks for node 0. `limit` in seconds. Refuses nodes that would
    /// not serve the same.
    pub async fn meet(
        &mut self,
        place: Place,
        agreement: Agreement,
        limit: u64,
    ) -> Result<(), LauncherError> {
        let ties = if place.rank == 0 {
            gather::gather(place, agreement, limit, &self.status).await?
        } else {
            join::join(place, agreement, limit, &self.status).await?
        };
        self.ties = Some(ties);
        Ok(())
    }

    /// Waits until every node has the model, which must be the same. Returns the name of this start of all shards.
    pub async fn start_together(&mut self, folder: &Path) -> Result<String, LauncherError> {
        let Some(ties) = &self.ties else {
            return Ok(Uuid::new_v4().to_string());
        };
        let mut status = self.status.subscribe();
        let folder = folder.to_owned();
        // The others must hear every second that this node lives, however slow its disk is.
        let ours = spawn_blocking(move || fingerprint(&folder));
        let ours = ours.await.map_err(io::Error::other)??;
        if ties.place.rank > 0 {
            ties.tell(&Message::Prepared { fingerprint: ours });
            let started = wait_for(&mut status, |status| status.start.clone()).await;
            return Ok(started);
        }
        let all = ties.sessions.len();
        let prepared = wait_for(&mut status, |status| {
            (status.prepared.len() == all).then(|| status.prepared.clone())
        })
        .await;
        if let Some((node, _)) = prepared.iter().find(|(_, theirs)| **theirs != ours) {
            return Err(LauncherError::OtherModel { node: *node });
        }
        let group = Uuid::new_v4().to_string();
        ties.tell(&Message::Start {
            group: group.clone(),
        });
        Ok(group)
    }

    /// The shards of this node are ready. Node 0 waits for those of all others.
    pub async fn ready_together(&self) {
        let Some(ties) = &self.ties else { return };
        if ties.place.rank > 0 {
            ties.tell(&Message::Ready);
            return;
        }
        let all = ties.sessions.len();
        let mut status = self.status.subscribe();
        wait_for(&mut status, |status| {
            (status.ready.len() == all).then_some(())
        })
        .await;
    }

    /// What the shards of this node, `size` of them, have to know of the others.
    pub fn group(&self, size: usize) -> Result<Option<NodeGroup>, LauncherError> {
        self.ties.as_ref().map(|ties| ties.group(size)).transpose()
    }

    /// Resolves once another node has brought about the end of this one.
    pub fn ending(&self) -> impl Future<Output = Ending> + 'static {
        let mut status = self.status.subscribe();
        async move { wait_for(&mut status, |status| status.ending.clone()).await }
    }

    /// Resolves once another node is lost, or has lost something.
    pub async fn lost(&self) -> LauncherError {
        let mut status = self.status.subscribe();
        let reason = wait_for(&mut status, |status| match &status.ending {
            Some(Ending::Lost(reason)) => Some(reason.clone()),
            _ => None,
        });
        LauncherError::Node(reason.await)
    }

    /// Whether node 0 is another one, which decides when all stop.
    pub fn is_led(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.place.rank > 0)
    }

    pub fn are_several(&self) -> bool {
        self.ties.is_some()
    }

    /// Where this is not node 0: asks that one to stop everything in order, and waits until it has, unless it has
    /// wanted it itself.
    pub async fn stop_in_order(&self) {
        let told = self.status.borrow().ending.is_some();
        let Some(ties) = self
            .ties
            .as_ref()
            .filter(|ties| ties.place.rank > 0 && !told)
        else {
            return;
        };
        ties.tell(&Message::Stop {
            reason: "it was asked to stop".to_owned(),
        });
        self.ending().await;
    }

    /// Tells the others how this node ends: they end too.
    pub fn end(&self, failure: Option<&str>) {
        if let Some(ties) = &self.ties {
            ties.tell(&match failure {
                Some(reason) => Message::Failed {
                    reason: reason.to_owned(),
                },
                None => Message::Stop {
                    reason: "node 0 stops".to_owned(),
                },
            });
        }
    }

    /// Waits, for a moment, until the others have been told everything.
    pub async fn close(&mut self) {
        for (_, session) in self.ties.take().into_iter().flat_map(|ties| ties.sessions) {
            session.close().await;
        }
    }
}

impl Ties {
    fn tell(&self, message: &Message) {
        self.sessions
            .values()
            .for_each(|session| session.tell(message.clone()));
    }

    fn group(&self, size: usize) -> Result<NodeGroup, LauncherError> {
        let place = &self.place;
        let listener = |address: IpAddr, rank: usize| {
            Ok::<_, LauncherError>(SocketAddr::new(address, place.port(1 + rank)?))
        };
        let ranks = |node: usize| node * size..(node + 1) * size;
        let mut listen = Vec::new();
        if place.rank > 0 {
            for rank in ranks(place.rank) {
                listen.push(listener(self.own, rank)?);
            }
        }
        let mut remote_urls = Vec::new();
        if place.rank == 0 {
            for (node, session) in &self.sessions {
                for rank in ranks(*node) {
                    let address = listener(session.address, rank)?;
                    remote_urls.push(format!("{}://{address}", place.security.scheme()));
                }
            }
        }
        Ok(NodeGroup {
            rank: place.rank,
            count: place.count,
            meeting: SocketAddr::new(self.master, place.port(1)?),
            interface: interface::of(self.own),
            listen,
            remote_urls,
        })
    }
}

/// The first value that `find` finds in what the others have said.
async fn wait_for<T>(
    status: &mut watch::Receiver<Status>,
    find: impl Fn(&Status) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = find(&status.borrow_and_update()) {
            return found;
        }
        if status.changed().await.is_err() {
            // Nobody is left who could say it.
            return std::future::pending().await;
        }
    }
}

/// How a node is called in messages.
fn node_name(rank: usize, address: IpAddr) -> String {
    format!("node {rank} ({address})")
}
