//! Batches of events to subscribers, and once more to those who ask: ZeroMQ's PUB and ROUTER sockets, on a thread of their
//! own.
//!
//! A batch is three frames: topic, number (8 bytes, big-endian, from 0), events. A request for what was missed is an empty
//! frame and the number to begin with; its answers are an empty frame before the frames of each batch, and at the end a
//! batch of the number -1 without events. So it is in vLLM.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use text_generation_core::kv_pool::events::KvEvent;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::encode;

/// Whoever asks for batches and takes none for so long gets no more.
const REPLAY_STALL: Duration = Duration::from_secs(5);

/// Opened ports.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) events: TcpListener,
    pub(super) replay: Option<TcpListener>,
}

/// The latest batches, oldest first, with their numbers.
type Ring = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

#[derive(Debug)]
pub(super) struct Publisher {
    topic: Bytes,
    next_number: u64,
    ring: Ring,
    capacity: usize,
}

impl Publisher {
    /// Keeps `capacity` batches for those who ask.
    pub(super) fn new(topic: String, capacity: usize) -> Self {
        Self {
            topic: topic.into(),
            next_number: 0,
            ring: Ring::default(),
            capacity,
        }
    }

    /// Starts the thread, which ends when the sender that this returns is dropped. At most `waiting` batches wait for it.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(super) fn start(
        self,
        sockets: Sockets,
        waiting: usize,
    ) -> anyhow::Result<Sender<Vec<KvEvent>>> {
        let (sender, changes) = mpsc::channel(waiting);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let run = move || {
            if let Err(error) = runtime.block_on(self.run(sockets, changes)) {
                tracing::error!("events of the KV cache are not published any more: {error:#}");
            }
        };
        let thread = thread::Builder::new().name("kv-events".to_owned());
        thread.spawn(run).context("cannot start a thread")?;
        Ok(sender)
    }

    async fn run(
        mut self,
        sockets: Sockets,
        mut changes: Receiver<Vec<KvEvent>>,
    ) -> anyhow::Result<()> {
        let mut publisher = PubSocket::new();
        publisher.bind_listener(sockets.events).await?;
        let _replay = match sockets.replay {
            None => None,
            Some(listener) => {
                let mut router = RouterSocket::new();
                router.bind_listener(listener).await?;
                let replay = replay(router, self.topic.clone(), self.ring.clone());
                Some(AbortOnDropHandle::new(tokio::spawn(replay)))
            }
        };
        while let Some(events) = changes.recv().await {
            let message = self.batch(&events);
            // Never waits: a subscriber who does not keep up misses batches, and sees it by their numbers.
            publisher.send(message).await?;
        }
        Ok(())
    }

    /// The next batch, which is kept.
    fn batch(&mut self, events: &[KvEvent]) -> ZmqMessage {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = now.map_or(0.0, |now| now.as_secs_f64());
        let payload = Bytes::from(encode::batch(time, events));
        let number = self.next_number;
        self.next_number += 1;
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == self.capacity {
            ring.pop_front();
        }
        ring.push_back((number, payload.clone()));
        frames(&self.topic, number, payload)
    }
}

fn frames(topic: &Bytes, number: u64, payload: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(payload);
    message.push_front(Bytes::copy_from_slice(&number.to_be_bytes()));
    message.push_front(topic.clone());
    message
}

/// Answers requests for batches, one after the other.
async fn replay(mut router: RouterSocket, topic: Bytes, ring: Ring) {
    loop {
        let asked = match router.recv().await {
            Ok(asked) => asked.into_vec(),
            Err(error) => {
                tracing::debug!("a request for events cannot be read: {error}");
                return;
            }
        };
        // Whoever asks, nothing, and where to begin.
        let [peer, _, first] = asked.as_slice() else {
            continue;
        };
        let Ok(first) = <[u8; 8]>::try_from(first.as_ref()) else {
            continue;
        };
        if let Err(error) =
            answer(&mut router, peer, u64::from_be_bytes(first), &topic, &ring).await
        {
            tracing::debug!("somebody asked for events and did not take them: {error}");
        }
    }
}

async fn answer(
    router: &mut RouterSocket,
    peer: &Bytes,
    first: u64,
    topic: &Bytes,
    ring: &Ring,
) -> Result<(), ZmqError> {
    let kept: Vec<(u64, Bytes)> = {
        let ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = ring.iter().filter(|(number, _)| *number >= first);
        wanted.cloned().collect()
    };
    let end = (u64::MAX, Bytes::new());
    for (number, payload) in kept.into_iter().chain([end]) {
        let mut message = frames(topic, number, payload);
        message.push_front(Bytes::new());
        message.push_front(peer.clone());
        let sent = timeout(REPLAY_STALL, router.send(message)).await;
        sent.unwrap_or(Err(ZmqError::Other("it stands still")))?;
    }
    Ok(())
}
