//! Open connections and what each is doing, so that room and time are never held by one that does nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// What a connection is told. A later order never takes an earlier one back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    Serve,
    /// Answer what was asked, then close.
    Finish,
    /// Close at once.
    Close,
}

/// All open connections. Nothing here waits.
#[derive(Debug)]
pub struct Connections {
    open: Mutex<Open>,
    /// How many are open.
    count: watch::Sender<usize>,
    /// Places, and further places for the probes of load balancers.
    places: usize,
    probe_places: usize,
}

#[derive(Debug, Default)]
struct Open {
    /// By the order in which they came.
    peers: BTreeMap<u64, Arc<Peer>>,
    next: u64,
}

/// One connection.
#[derive(Debug)]
pub struct Peer {
    orders: watch::Sender<Order>,
    /// It has come when every place was taken, and may only ask how the server is.
    pub probes_only: bool,
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    /// Requests whose answer has not left.
    requests: usize,
    /// Bytes wait for the peer to take them.
    writes: bool,
    /// Since when there is neither.
    idle_since: Instant,
    answers: Vec<Weak<dyn PendingAnswer>>,
}

/// A place among the open connections, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    connections: Arc<Connections>,
    id: u64,
    pub peer: Arc<Peer>,
    orders: watch::Receiver<Order>,
}

/// An answer on its way, as those who look after its connection see it.
pub trait PendingAnswer: fmt::Debug + Send + Sync {
    /// Drops what the peer has not taken for `limit`, and with it the generation behind it.
    fn end_if_stalled(&self, limit: Duration);
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Request(Arc<Peer>);

impl Connections {
    pub fn new(places: usize, probe_places: usize) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            count: watch::Sender::new(0),
            places,
            probe_places,
        })
    }

    /// A place for a new connection. When all are taken, the connection goes that has done nothing for longest, and for
    /// at least `idle`; when there is none, the new one gets a place for probes, while there is one.
    pub fn admit(self: &Arc<Self>, idle: Duration) -> Option<Place> {
        let mut open = lock(&self.open);
        let has_room = open.has_room(false, self.places, idle);
        if !has_room && !open.has_room(true, self.probe_places, idle) {
            return None;
        }
        let id = open.next;
        open.next += 1;
        let (order, orders) = watch::channel(Order::Serve);
        let peer = Arc::new(Peer::new(order, !has_room));
        open.peers.insert(id, peer.clone());
        self.count.send_replace(open.peers.len());
        Some(Place {
            connections: self.clone(),
            id,
            peer,
            orders,
        })
    }

    /// Closes the connection that has done nothing for longest; false when every one is at work.
    pub fn evict(&self, idle: Duration) -> bool {
        let mut open = lock(&self.open);
        let evicted = open.evict(idle, |_| true);
        self.count.send_replace(open.peers.len());
        evicted
    }

    /// Gives `order` to those that have done nothing for `idle`, or to all.
    pub fn order(&self, order: Order, idle: Option<Duration>) {
        for peer in lock(&self.open).peers.values() {
            if idle.is_none_or(|idle| peer.idle().is_some_and(|time| time >= idle)) {
                peer.order(order);
            }
        }
    }

    /// Ends the answers of which a peer has taken nothing for `limit`.
    pub fn end_stalled(&self, limit: Duration) {
        let mut answers = Vec::new();
        for peer in lock(&self.open).peers.values() {
            let mut work = lock(&peer.work);
            work.answers.retain(|answer| answer.strong_count() > 0);
            answers.extend(work.answers.iter().filter_map(Weak::upgrade));
        }
        for answer in answers {
            answer.end_if_stalled(limit);
        }
    }

    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Resolves when no connection is open.
    pub async fn all_closed(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.count.subscribe().wait_for(|&count| count == 0).await;
    }
}

impl Open {
    /// Whether one of so many places is free, or can be made free.
    fn has_room(&mut self, probes_only: bool, places: usize, idle: Duration) -> bool {
        let kind = |peer: &Peer| peer.probes_only == probes_only;
        let taken = || self.peers.values().filter(|peer| kind(peer)).count();
        self.peers.len() < places || taken() < places || self.evict(idle, kind)
    }

    /// Closes the one of these peers that has done nothing for longest, and for at least `idle`.
    fn evict(&mut self, idle: Duration, which: impl Fn(&Peer) -> bool) -> bool {
        let idle_for = |(id, peer): (&u64, &Arc<Peer>)| Some((peer.idle()?, *id));
        let peers = self.peers.iter().filter(|(_, peer)| which(peer));
        let longest = peers.filter_map(idle_for).max();
        let Some((_, id)) = longest.filter(|(time, _)| *time >= idle) else {
            return false;
        };
        if let Some(peer) = self.peers.remove(&id) {
            peer.order(Order::Close);
        }
        true
    }
}

impl Peer {
    fn new(orders: watch::Sender<Order>, probes_only: bool) -> Self {
        Self {
            orders,
            probes_only,
            work: Mutex::new(Work {
                requests: 0,
                writes: false,
                idle_since: Instant::now(),
                answers: Vec::new(),
            }),
        }
    }

    /// A request has begun, and goes on until what this returns is dropped.
    pub fn request(self: &Arc<Self>) -> Request {
        lock(&self.work).requests += 1;
        Request(self.clone())
    }

    /// Whether bytes wait for the peer to take them.
    pub fn set_writes(&self, writes: bool) {
        let mut work = lock(&self.work);
        if work.writes != writes {
            work.writes = writes;
            work.idle_since = Instant::now();
        }
    }

    pub fn order(&self, order: Order) {
        self.orders.send_if_modified(|given| {
            let changed = order > *given;
            *given = order.max(*given);
            changed
        });
    }

    /// For how long it has neither asked nor been sent anything.
    fn idle(&self) -> Option<Duration> {
        let work = lock(&self.work);
        let at_work = work.requests > 0 || work.writes;
        (!at_work).then(|| work.idle_since.elapsed())
    }
}

impl Request {
    /// Makes the answer, which owns the request from now on; the connection loop watches the time that it takes.
    pub fn answer<A: PendingAnswer + 'static>(self, make: impl FnOnce(Self) -> A) -> Arc<A> {
        let peer = self.0.clone();
        let answer = Arc::new(make(self));
        let pending = Arc::<A>::downgrade(&answer);
        lock(&peer.work).answers.push(pending);
        answer
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut work = lock(&self.0.work);
        work.requests -= 1;
        work.idle_since = Instant::now();
        work.answers.retain(|answer| answer.strong_count() > 0);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.connections.open);
        open.peers.remove(&self.id);
        self.connections.count.send_replace(open.peers.len());
    }
}

impl Place {
    /// Waits for the next order.
    pub async fn next_order(&mut self) -> Order {
        match self.orders.changed().await {
            Ok(()) => *self.orders.borrow_and_update(),
            // Nobody is left who could give one.
            Err(_) => Order::Close,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
