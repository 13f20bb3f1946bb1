//! Node 0 waits for all others, and takes in those that would serve the same.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tracing::{info, warn};

use super::agreement::Agreement;
use super::security::tls_error;
use super::session::Session;
use super::wire::{Link, Message};
use super::{Place, Status, Ties, node_name};
use crate::error::LauncherError;

/// How long whoever connects may take to say who it is.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// A node that has said who it is and has not been answered yet.
struct Newcomer {
    rank: usize,
    address: IpAddr,
    link: Link,
}

/// Returns once all nodes are there. What is refused is in the log, and may come again. `limit` in seconds.
pub async fn gather(
    place: Place,
    agreement: Agreement,
    limit: u64,
    status: &Arc<watch::Sender<Status>>,
) -> Result<Ties, LauncherError> {
    let address = meeting_address(&place).await?;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| LauncherError::NodeAddress { address, source })?;
    let others = place.count - 1;
    info!(
        "Waiting for {others} other node{} at {address}",
        if others == 1 { "" } else { "s" }
    );
    let deadline = Instant::now() + Duration::from_secs(limit);
    let mut progress = interval(PROGRESS_INTERVAL);
    progress.reset();
    let mut greetings = JoinSet::new();
    let mut sessions = BTreeMap::new();
    while sessions.len() < others {
        tokio::select! {
            Ok((stream, peer)) = listener.accept() => {
                greetings.spawn(greet(stream, peer.ip(), place.clone(), agreement.clone()));
            }
            Some(Ok(greeted)) = greetings.join_next() => match greeted {
                Ok(newcomer) => take_in(newcomer, &mut sessions, status).await,
                Err(reason) => warn!("{reason}"),
            },
            () = sleep_until(deadline) => {
                let missing = missing(&place, &sessions);
                return Err(LauncherError::NodesMissing { missing, seconds: limit });
            }
            _ = progress.tick() => info!("Still waiting for {}", missing(&place, &sessions)),
        }
    }
    Ok(Ties {
        place,
        master: address.ip(),
        own: address.ip(),
        sessions,
    })
}

fn missing(place: &Place, sessions: &BTreeMap<usize, Session>) -> String {
    let missing: Vec<String> = (1..place.count)
        .filter(|node| !sessions.contains_key(node))
        .map(|node| format!("node {node}"))
        .collect();
    missing.join(", ")
}

/// Where node 0 waits for the others: of the addresses that its name stands for the first, if none is given.
pub async fn meeting_address(place: &Place) -> Result<SocketAddr, LauncherError> {
    if let Some(address) = place.local_addr {
        return Ok(SocketAddr::new(address, place.master_port));
    }
    let unknown = |reason: String| LauncherError::MasterAddress {
        address: place.master_addr.clone(),
        reason,
    };
    let mut found = lookup_host((place.master_addr.as_str(), place.master_port))
        .await
        .map_err(|error| unknown(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| unknown("it has no address".to_owned()))
}

/// Lets a connection say who it is. An error is a sentence for the log; the other side is told why, where it can be.
async fn greet(
    stream: TcpStream,
    address: IpAddr,
    place: Place,
    agreement: Agreement,
) -> Result<Newcomer, String> {
    let refused = |reason: String| format!("refused a connection from {address}: {reason}");
    let greeted = timeout(GREETING_LIMIT, async {
        let stream =
            place
                .security
                .accept(stream)
                .await
                .map_err(|error| match tls_error(&error) {
                    Some(tls) => format!("invalid certificate: {tls}"),
                    None => error.to_string(),
                })?;
        let mut link = Link::over(stream);
        match link.next().await {
            Ok(Some(Message::Hello {
                node_rank,
                agreement,
            })) => Ok((link, node_rank, agreement)),
            _ => Err("it is not a launcher of this version".to_owned()),
        }
    });
    let silent = || refused("it did not identify itself in time".to_owned());
    let (mut link, rank, theirs) = greeted.await.map_err(|_| silent())?.map_err(refused)?;
    let difference = if (1..place.count).contains(&rank) {
        agreement.difference(&theirs)
    } else {
        Some(format!(
            "--node-rank {rank} must be from 1 to {}",
            place.count - 1
        ))
    };
    if let Some(reason) = difference {
        refuse(&mut link, &reason).await;
        return Err(format!(
            "{} was refused: {reason}",
            node_name(rank, address)
        ));
    }
    Ok(Newcomer {
        rank,
        address,
        link,
    })
}

async fn take_in(
    mut newcomer: Newcomer,
    sessions: &mut BTreeMap<usize, Session>,
    status: &Arc<watch::Sender<Status>>,
) {
    let Newcomer { rank, address, .. } = newcomer;
    let name = node_name(rank, address);
    if let Some(other) = sessions.get(&rank) {
        let reason = format!(
            "--node-rank {rank} is already taken by the node at {}",
            other.address
        );
        refuse(&mut newcomer.link, &reason).await;
        warn!("{name} was refused: {reason}");
        return;
    }
    if let Err(error) = newcomer.link.say(&Message::Welcome).await {
        warn!("{name} disconnected: {error}");
        return;
    }
    info!("{name} connected");
    let session = Session::start(rank, address, newcomer.link, Arc::clone(status));
    sessions.insert(rank, session);
}

async fn refuse(link: &mut Link, reason: &str) {
    let reason = reason.to_owned();
    // It may have gone, and then needs no reason.
    let _ = link.say(&Message::Failed { reason }).await;
    link.close().await;
}
