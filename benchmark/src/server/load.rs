//! Closed and open loop: who starts which session when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::api::{Exchange, Prompt};
use super::client::{Job, Outcome, Target};
use super::workload::Session;
use crate::live::Live;

/// So many lost connections in a row, without one answer between them, mean that the server is gone.
const LOST_CONNECTIONS: usize = 10;
/// A pause between looks at the stop signal while the next arrival is far.
const NAP: Duration = Duration::from_millis(50);

/// One point of a benchmark: sessions against a target.
#[derive(Debug)]
pub struct Load {
    pub target: Target,
    pub sessions: Vec<Session>,
    pub live: Arc<Live>,
    /// No session starts after it.
    pub duration: Option<Duration>,
}

/// What a load left behind.
#[derive(Debug)]
pub struct Measured {
    pub started: Instant,
    pub outcomes: Vec<Outcome>,
    /// The load ended early because the server went away.
    pub server_lost: bool,
}

type Outcomes = UnboundedSender<Outcome>;

/// `concurrency` clients, each with one session after another.
pub async fn closed(load: Arc<Load>, concurrency: usize) -> Measured {
    let started = Instant::now();
    let (sender, receiver) = unbounded_channel();
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..concurrency.min(load.sessions.len()) {
        let (load, next, sender) = (load.clone(), next.clone(), sender.clone());
        tokio::spawn(async move {
            while let Some(session) = load.sessions.get(next.fetch_add(1, Relaxed)) {
                if load.is_over(started) {
                    break;
                }
                let body = load.first_body(session);
                load.run(session, body, Instant::now(), &sender).await;
            }
        });
    }
    drop(sender);
    collect(&load.live, started, receiver).await
}

/// Sessions start at the given times after the start, whether or not the server keeps up. At most `max_in_flight`
/// run at once; those that wait for a place were due when they were due.
pub async fn open(load: Arc<Load>, times: Vec<Duration>, max_in_flight: Option<usize>) -> Measured {
    let started = Instant::now();
    let (sender, receiver) = unbounded_channel();
    let places = max_in_flight.map(|places| Arc::new(Semaphore::new(places)));
    let runtime = tokio::runtime::Handle::current();
    let dispatched = load.clone();
    // A thread of its own: timers of the runtime are a millisecond coarse, and it must not wait for busy workers.
    let dispatcher = tokio::task::spawn_blocking(move || {
        for (index, time) in times.into_iter().enumerate() {
            let due = started + time;
            let Some(session) = dispatched.sessions.get(index) else {
                break;
            };
            let body = dispatched.first_body(session);
            if !sleep_until(due, &dispatched.live) || dispatched.is_over(started) {
                break;
            }
            let (load, sender, places) = (dispatched.clone(), sender.clone(), places.clone());
            runtime.spawn(async move {
                let _place = match &places {
                    Some(places) => places.acquire().await.ok(),
                    None => None,
                };
                // The time may have passed while it waited for a place.
                if let Some(session) = load.sessions.get(index).filter(|_| !load.is_over(started)) {
                    load.run(session, body, due, &sender).await;
                }
            });
        }
    });
    let measured = collect(&load.live, started, receiver).await;
    // It has ended: the last sender is gone.
    let _ = dispatcher.await;
    measured
}

/// Sleeps on the calling thread; false when the load was stopped meanwhile.
fn sleep_until(due: Instant, live: &Live) -> bool {
    while !live.stopped() {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
    false
}

async fn collect(
    live: &Live,
    started: Instant,
    mut receiver: UnboundedReceiver<Outcome>,
) -> Measured {
    let mut outcomes = Vec::new();
    let mut lost = 0;
    let mut server_lost = false;
    while let Some(outcome) = receiver.recv().await {
        match &outcome.failure {
            Some(failure) => {
                live.failed.fetch_add(1, Relaxed);
                lost = if failure.is_lost_connection() {
                    lost + 1
                } else {
                    0
                };
                if lost >= LOST_CONNECTIONS {
                    server_lost = true;
                    live.stop();
                }
            }
            None => {
                lost = 0;
                live.done.fetch_add(1, Relaxed);
                let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
                if let Some(time) = outcome.time_to_first_token() {
                    live.sample("TTFT", milliseconds(time));
                }
                if let Some(time) = outcome.time_per_output_token() {
                    live.sample("TPOT", milliseconds(time));
                }
            }
        }
        outcomes.push(outcome);
    }
    Measured {
        started,
        outcomes,
        server_lost,
    }
}

impl Load {
    fn is_over(&self, started: Instant) -> bool {
        self.live.stopped()
            || self
                .duration
                .is_some_and(|duration| started.elapsed() >= duration)
    }

    /// All turns of a session; ends with the first that fails, or when the load is stopped.
    async fn run(&self, session: &Session, body: Vec<u8>, due: Instant, outcomes: &Outcomes) {
        tokio::select! {
            biased;
            () = self.live.until_stopped() => {}
            () = self.turns(session, body, due, outcomes) => {}
        }
    }

    /// The first request of a session. Made before it is due: writing a long prompt takes time that is not the
    /// server's.
    fn first_body(&self, session: &Session) -> Vec<u8> {
        let first = session.turns.first();
        first.map_or_else(Vec::new, |turn| {
            self.target.body(&[], &turn.prompt, turn.output_tokens)
        })
    }

    async fn turns(
        &self,
        session: &Session,
        mut body: Vec<u8>,
        mut due: Instant,
        outcomes: &Outcomes,
    ) {
        let mut history: Vec<Exchange> = Vec::new();
        for (index, turn) in session.turns.iter().enumerate() {
            let more = index + 1 < session.turns.len();
            if index > 0 {
                body = self.target.body(&history, &turn.prompt, turn.output_tokens);
                tokio::time::sleep(turn.think).await;
                due = Instant::now();
            }
            let job = Job {
                scheduled: due,
                body: std::mem::take(&mut body),
                requested_tokens: turn.output_tokens,
                images: images(&history, &turn.prompt),
                keep_text: more,
            };
            let mut outcome = self.target.run(job, &self.live).await;
            let assistant = std::mem::take(&mut outcome.text);
            let failed = outcome.failure.is_some();
            if outcomes.send(outcome).is_err() || failed {
                return;
            }
            if more {
                history.push(Exchange {
                    user: turn.prompt.clone(),
                    assistant,
                });
            }
        }
    }
}

/// Images of a request, those that the conversation sends again among them.
fn images(history: &[Exchange], prompt: &Prompt) -> usize {
    let before = history.iter().map(|turn| turn.user.images());
    before.sum::<usize>() + prompt.images()
}
