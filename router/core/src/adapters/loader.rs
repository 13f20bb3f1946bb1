//! Loads of adapters into the host memory of the shards, and the end of those that nobody holds.
//!
//! Loads, drops and starts of the shards run beside each other. A load counts if neither the shards were lost since it
//! began nor its contents dropped, else it is made again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrics::{counter, histogram};
use text_generation_client::types::{LoadAdapter, LoadedAdapter};
use text_generation_client::{ClientError, ShardedClient};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::catalog::{MOST_NAMES, Order, Origin};
use super::weights::{Adapter, Weights};
use super::{MOST_LOADS, Shared, lock};
use crate::error::AdapterError;
use crate::metrics::{ADAPTER_LOAD_DURATION, ADAPTER_LOADS_FAILED};

/// Files that are read at once.
const READS: usize = 2;

/// A load that finds the shards lost so often is refused: what it reads may be what ends them.
const MOST_LOSSES: usize = 2;

/// How the shards stand, as loads have to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    /// How often they were lost.
    losses: u64,
    serves: bool,
}

/// The shards as those see them who load adapters.
#[derive(Debug)]
pub(super) struct Shards {
    client: ShardedClient,
    group: watch::Sender<Group>,
    reads: Semaphore,
    drops: Mutex<Drops>,
    /// Held while the shards drop something.
    dropping: tokio::sync::Mutex<()>,
    unused: UnboundedSender<u64>,
}

/// What was dropped while loads were under way.
#[derive(Debug, Default)]
struct Drops {
    count: u64,
    /// By generation: how many there were before the last one.
    last: HashMap<u64, u64>,
}

/// What counts against a load that began then.
#[derive(Debug, Clone, Copy)]
struct Began {
    losses: u64,
    drops: u64,
}

impl Shards {
    pub(super) fn new(client: ShardedClient, unused: UnboundedSender<u64>) -> Self {
        let group = Group {
            losses: 0,
            serves: true,
        };
        Self {
            client,
            group: watch::Sender::new(group),
            reads: Semaphore::new(READS),
            drops: Mutex::default(),
            dropping: tokio::sync::Mutex::default(),
            unused,
        }
    }

    pub(super) fn lost(&self) {
        self.group.send_modify(|group| {
            group.losses += 1;
            group.serves = false;
        });
    }

    pub(super) fn back(&self) {
        self.group.send_modify(|group| group.serves = true);
    }

    /// Waits until the shards serve.
    async fn begin(&self) -> Began {
        let mut group = self.group.subscribe();
        // The sender lives as long as this.
        let losses = match group.wait_for(|group| group.serves).await {
            Ok(group) => group.losses,
            Err(_) => 0,
        };
        drop(self.dropping.lock().await);
        let drops = lock(&self.drops).count;
        Began { losses, drops }
    }

    /// Whether the shards still have what a load has brought.
    fn counts(&self, began: Began, generation: u64) -> bool {
        let group = *self.group.borrow();
        let dropped = lock(&self.drops).last.get(&generation).copied();
        group.losses == began.losses && dropped.is_none_or(|at| at < began.drops)
    }
}

impl Shared {
    /// Loads an adapter and gives it its name.
    pub(super) async fn load(&self, order: &Order) -> Result<Arc<Adapter>, AdapterError> {
        let shards = self.shards.as_ref().ok_or(AdapterError::Changed)?;
        let _permit = shards.reads.acquire().await;
        let mut losses = 0;
        loop {
            let began = shards.begin().await;
            let load = order.load();
            let started = Instant::now();
            let read = shards.client.load_adapter(&load).await;
            histogram!(ADAPTER_LOAD_DURATION).record(started.elapsed());
            counter!(ADAPTER_LOADS_FAILED).increment(u64::from(read.is_err()));
            match read {
                Ok(loaded) => {
                    if let Some(named) = self.name(shards, order, load, loaded, began) {
                        return named;
                    }
                }
                Err(unread) => {
                    for generation in unread.read {
                        let _ = shards.unused.send(generation);
                    }
                    let waits = matches!(unread.error, ClientError::Connection(_));
                    if !waits || order.origin == Origin::Start {
                        return Err(refusal(order, unread.error));
                    }
                    losses += 1;
                    if losses == MOST_LOSSES {
                        return Err(AdapterError::Lost);
                    }
                    // Whoever computes finds that the shards are lost, and then that they are back.
                    let mut group = shards.group.subscribe();
                    let _ = group.wait_for(|group| group.losses > began.losses).await;
                }
            }
        }
    }

    /// Gives what was loaded its name. `None` where it is not there any more.
    fn name(
        &self,
        shards: &Shards,
        order: &Order,
        load: LoadAdapter,
        loaded: LoadedAdapter,
        began: Began,
    ) -> Option<Result<Arc<Adapter>, AdapterError>> {
        let mut catalog = self.catalog();
        let generation = loaded.generation;
        if !shards.counts(began, generation) {
            return None;
        }
        let of_start = order.origin == Origin::Start;
        let weights = catalog.weights(generation).unwrap_or_else(|| {
            Arc::new(Weights::new(loaded, load, of_start, shards.unused.clone()))
        });
        if let Err(error) = self.check_pages(&order.name, loaded.pages) {
            return Some(Err(error));
        }
        if !catalog.has(&order.name) && !catalog.fit_name() {
            return Some(Err(AdapterError::Names { most: MOST_NAMES }));
        }
        let most = self.host_bytes;
        let own = if of_start || catalog.weights(generation).is_some() {
            0
        } else {
            loaded.bytes
        };
        if !of_start && !most.checked_sub(own).is_some_and(|rest| catalog.fit(rest)) {
            return Some(Err(AdapterError::HostMemory { most: most >> 20 }));
        }
        Some(Ok(catalog.insert(order, weights)))
    }
}

/// What a load that has failed says to whoever asked.
fn refusal(order: &Order, error: ClientError) -> AdapterError {
    let name = order.name.clone();
    match error {
        ClientError::Shard { reason, .. } if reason == "adapter_not_found" => match order.origin {
            Origin::Start => AdapterError::Invalid {
                name,
                message: format!("{} is not there", order.source),
            },
            Origin::Loaded | Origin::Folder => AdapterError::NotFound { name },
        },
        ClientError::Shard {
            reason, message, ..
        } if ["adapter_invalid", "adapter_changed"].contains(&reason.as_str()) => {
            AdapterError::Invalid { name, message }
        }
        error => AdapterError::Shards(error.to_string()),
    }
}

/// Waits for the load of a name, which begins where there is none.
pub(super) async fn join(shared: &Arc<Shared>, order: Order) -> Result<Arc<Adapter>, AdapterError> {
    let mut outcome = {
        let mut loads = lock(&shared.loads);
        match loads.get(&order.name) {
            Some(outcome) => outcome.clone(),
            None if loads.len() >= MOST_LOADS => return Err(AdapterError::Busy),
            None => {
                let (sender, outcome) = watch::channel(None);
                loads.insert(order.name.clone(), outcome.clone());
                let shared = shared.clone();
                tokio::spawn(async move {
                    let loaded = shared.load(&order).await;
                    lock(&shared.loads).remove(&order.name);
                    sender.send_replace(Some(loaded));
                });
                outcome
            }
        }
    };
    let panicked = || Err(AdapterError::Panicked("a load".to_owned()));
    let found = outcome.wait_for(Option::is_some).await;
    found.map_or_else(
        |_| panicked(),
        |found| found.clone().unwrap_or_else(panicked),
    )
}

/// Has the shards drop what nobody holds any more, as long as there are adapters.
pub(super) fn watch_unused(shared: &Arc<Shared>, mut unused: UnboundedReceiver<u64>) {
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        while let Some(generation) = unused.recv().await {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let Some(shards) = &shared.shards else {
                return;
            };
            let _dropping = shards.dropping.lock().await;
            {
                let mut catalog = shared.catalog();
                if catalog.weights(generation).is_some() {
                    continue;
                }
                catalog.forget(generation);
                let mut drops = lock(&shards.drops);
                if shards.reads.available_permits() == READS {
                    drops.last.clear();
                }
                let count = drops.count;
                drops.last.insert(generation, count);
                drops.count += 1;
            }
            // Shards that are lost have dropped everything.
            if let Err(error) = shards.client.unload_adapter(generation).await {
                tracing::debug!(%error, "the shards were not told to drop an adapter");
            }
        }
    });
}
