//! A node other than 0 looks for node 0 and is taken in, or refused.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use super::agreement::Agreement;
use super::security::tls_error;
use super::session::Session;
use super::wire::{Link, Message};
use super::{Place, Status, Ties};
use crate::error::LauncherError;

const PAUSE: Duration = Duration::from_millis(200);
/// For one connection, up to the answer of node 0.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);

/// Why an attempt has failed.
enum Failure {
    /// Node 0 is not there yet.
    Absent(String),
    /// It is there, and another attempt would end the same way.
    Refused(String),
}

/// Returns once node 0 has taken this node in. `limit` in seconds.
pub async fn join(
    place: Place,
    agreement: Agreement,
    limit: u64,
    status: &Arc<watch::Sender<Status>>,
) -> Result<Ties, LauncherError> {
    let master = format!("{}:{}", place.master_addr, place.master_port);
    info!("Connecting to node 0 at {master}");
    let deadline = Instant::now() + Duration::from_secs(limit);
    let hello = Message::Hello {
        node_rank: place.rank,
        agreement,
    };
    loop {
        let attempt = timeout(ATTEMPT_LIMIT, attempt(&place, &hello)).await;
        let silent = || Err(Failure::Absent("it does not answer".to_owned()));
        let reason = match attempt.unwrap_or_else(|_| silent()) {
            Ok((link, own, node_0)) => {
                info!("Joined node 0 at {master} as node {}", place.rank);
                let session = Session::start(0, node_0.ip(), link, Arc::clone(status));
                return Ok(Ties {
                    place,
                    master: node_0.ip(),
                    own: own.ip(),
                    sessions: BTreeMap::from([(0, session)]),
                });
            }
            Err(Failure::Refused(reason)) => {
                return Err(LauncherError::NodeRefused { master, reason });
            }
            Err(Failure::Absent(reason)) => reason,
        };
        if Instant::now() >= deadline {
            return Err(LauncherError::MasterMissing {
                master,
                seconds: limit,
                reason,
            });
        }
        sleep(PAUSE).await;
    }
}

/// One connection. Returns it with its addresses on this side and on that of node 0.
async fn attempt(
    place: &Place,
    hello: &Message,
) -> Result<(Link, SocketAddr, SocketAddr), Failure> {
    let absent = |error: io::Error| Failure::Absent(error.to_string());
    let stream = connect(place).await.map_err(absent)?;
    let (own, node_0) = (
        stream.local_addr().map_err(absent)?,
        stream.peer_addr().map_err(absent)?,
    );
    let stream = place
        .security
        .connect(stream)
        .await
        .map_err(|error| match tls_error(&error) {
            Some(tls) => Failure::Refused(format!("its certificate cannot be trusted: {tls}")),
            None => Failure::Absent(error.to_string()),
        })?;
    let mut link = Link::over(stream);
    // Where node 0 refuses the certificate it has closed the connection by now; the answer says so.
    let said = link.say(hello).await;
    match link.next().await {
        Ok(Some(Message::Welcome)) => Ok((link, own, node_0)),
        Ok(Some(Message::Failed { reason })) => Err(Failure::Refused(reason)),
        Ok(_) => Err(Failure::Refused(
            "it closed the connection; give certificates to all nodes, or --cluster-insecure to all"
                .to_owned(),
        )),
        Err(error) => Err(match tls_error(&error) {
            Some(tls) => Failure::Refused(format!(
                "it does not trust the certificate of this node: {tls}"
            )),
            None => Failure::Absent(said.err().unwrap_or(error).to_string()),
        }),
    }
}

async fn connect(place: &Place) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in lookup_host((place.master_addr.as_str(), place.master_port)).await? {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        if let Some(own) = place.local_addr {
            socket.bind(SocketAddr::new(own, 0))?;
        }
        match socket.connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
