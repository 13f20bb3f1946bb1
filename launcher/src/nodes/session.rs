//! One connection between two launchers for as long as both live, and how its end is noticed.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::wire::{CLOSE_LIMIT, Link, Message};
use super::{Ending, Status, node_name};

const TICK: Duration = Duration::from_millis(250);
/// Ticks from one sign of life to the next.
const BEAT_TICKS: u32 = 4;
/// For so long another node may be silent before it counts as lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
const CLOSED: &str = "its launcher closed the connection unexpectedly";

/// A session with one node. What that says goes to the status of all.
#[derive(Debug)]
pub struct Session {
    pub address: IpAddr,
    outgoing: mpsc::UnboundedSender<Message>,
    task: JoinHandle<()>,
}

impl Session {
    /// Begins on the current runtime.
    pub fn start(
        node: usize,
        address: IpAddr,
        link: Link,
        status: Arc<watch::Sender<Status>>,
    ) -> Self {
        let (outgoing, to_say) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let name = node_name(node, address);
            if let Err(reason) = talk(node, &name, link, to_say, &status).await {
                status.send_modify(|status| {
                    status.end(Ending::Lost(format!("{name} is lost: {reason}")))
                });
            }
        });
        Self {
            address,
            outgoing,
            task,
        }
    }

    pub fn tell(&self, message: Message) {
        // Where the session has ended, the status says so.
        let _ = self.outgoing.send(message);
    }

    /// Ends once everything was said.
    pub async fn close(self) {
        drop(self.outgoing);
        let _ = timeout(CLOSE_LIMIT, self.task).await;
    }
}

/// Talks until there is nothing more to say. An error is the reason why the other node is lost.
///
/// Silence is counted in ticks, so that a pause of this process is not taken for one of the other.
async fn talk(
    node: usize,
    name: &str,
    mut link: Link,
    mut to_say: mpsc::UnboundedReceiver<Message>,
    status: &watch::Sender<Status>,
) -> Result<(), String> {
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent, mut until_beat) = (Duration::ZERO, BEAT_TICKS);
    loop {
        tokio::select! {
            said = link.next() => {
                silent = Duration::ZERO;
                let message = said.map_err(|error| failure(&error))?.ok_or(CLOSED)?;
                status.send_if_modified(|status| note(status, node, name, message));
            }
            message = to_say.recv() => match message {
                Some(message) => say(&mut link, &message).await?,
                None => {
                    link.close().await;
                    return Ok(());
                }
            },
            _ = ticks.tick() => {
                silent += TICK;
                if silent >= SILENCE_LIMIT {
                    return Err(format!("it sent nothing for {} s", SILENCE_LIMIT.as_secs()));
                }
                until_beat -= 1;
                if until_beat == 0 {
                    until_beat = BEAT_TICKS;
                    say(&mut link, &Message::Beat).await?;
                }
            }
        }
    }
}

async fn say(link: &mut Link, message: &Message) -> Result<(), String> {
    let said = link.say(message).await;
    said.map_err(|error| failure(&error))
}

/// Why a connection has failed. A process that is killed leaves it closed, or reset where it had not read all that came.
fn failure(error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => CLOSED.to_owned(),
        _ => format!("the connection failed: {error}"),
    }
}

/// Whether the message has changed anything.
fn note(status: &mut Status, node: usize, name: &str, message: Message) -> bool {
    match message {
        Message::Prepared { fingerprint } => {
            status.prepared.insert(node, fingerprint);
        }
        Message::Start { group } => status.start = Some(group),
        Message::Ready => status.ready.push(node),
        Message::Stop { reason } => status.end(Ending::Stop(format!("{name}: {reason}"))),
        Message::Failed { reason } => status.end(Ending::Lost(format!("{name} ends: {reason}"))),
        Message::Beat | Message::Hello { .. } | Message::Welcome => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_connection_that_is_reset_is_one_that_was_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ours = TcpStream::connect(address).await.unwrap();
        let (theirs, _) = listener.accept().await.unwrap();
        theirs.set_zero_linger().unwrap();
        drop(theirs);
        let status = Arc::new(watch::Sender::new(Status::default()));
        let mut seen = status.subscribe();
        let _session = Session::start(1, address.ip(), Link::over(Box::new(ours)), status);
        let lost = seen.wait_for(|status| status.ending.is_some()).await;
        let Some(Ending::Lost(reason)) = lost.unwrap().ending.clone() else {
            panic!("stopped");
        };
        assert_eq!(reason, format!("node 1 (127.0.0.1) is lost: {CLOSED}"));
    }
}
