//! Feed of changes of the prefix tree, to whoever publishes them. The batcher never waits for them: where they do not
//! keep up, they miss changes, and are told the whole tree once they can take it.

use tokio::sync::mpsc::Sender;

use crate::kv_pool::KvPool;
use crate::kv_pool::events::KvEvent;

/// Where changes of the prefix tree go.
#[derive(Debug, Clone)]
pub struct KvEventFeed {
    /// Takes the changes of one turn of the batcher at a time.
    pub changes: Sender<Vec<KvEvent>>,
    /// Tells the caches of models apart: replicas that serve the same one give it the same name.
    pub model: String,
}

/// The batcher's end of a feed.
#[derive(Debug)]
pub(super) struct KvFeed {
    changes: Option<Sender<Vec<KvEvent>>>,
    /// The other end does not know what is in the tree.
    missed: bool,
}

impl KvFeed {
    pub(super) fn new(feed: Option<KvEventFeed>) -> Self {
        Self {
            changes: feed.map(|feed| feed.changes),
            missed: true,
        }
    }

    /// Passes on what has changed.
    pub(super) fn forward(&mut self, pool: &mut KvPool) {
        let Some(changes) = &self.changes else {
            return;
        };
        let events = pool.take_events();
        if events.is_empty() && !self.missed {
            return;
        }
        match changes.try_reserve() {
            Ok(place) if std::mem::take(&mut self.missed) => place.send(pool.announce()),
            Ok(place) => place.send(events),
            Err(_) => self.missed = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::adapters::Adapters;
    use crate::kv_pool::RootKey;

    fn compute(pool: &mut KvPool, first: u32) {
        let ids: Vec<u32> = (first..first + 16).collect();
        let mut holding = pool.open(&RootKey::default(), &ids, 16);
        pool.grow(&mut holding, 16).unwrap();
        pool.close(holding, &ids);
    }

    fn hashes(events: &[KvEvent]) -> usize {
        let stored = events.iter().filter_map(|event| match event {
            KvEvent::Stored(stored) => Some(stored.hashes.len()),
            _ => None,
        });
        stored.sum()
    }

    #[test]
    fn who_does_not_keep_up_is_told_everything_later() {
        let (changes, mut received) = mpsc::channel(1);
        let model = "m".to_owned();
        let mut pool = KvPool::new(1000, true).noting_events(&model, Adapters::default());
        let mut feed = KvFeed::new(Some(KvEventFeed { changes, model }));
        feed.forward(&mut pool);
        // A start, of which nobody may know what was before.
        for first in [0, 100, 200] {
            compute(&mut pool, first);
            feed.forward(&mut pool);
        }
        assert_eq!(received.try_recv().unwrap(), [KvEvent::Cleared]);
        assert!(received.try_recv().is_err());
        feed.forward(&mut pool);
        let events = received.try_recv().unwrap();
        assert_eq!((&events[0], hashes(&events)), (&KvEvent::Cleared, 3));
        // What is new comes alone again, and nothing where nothing changed.
        compute(&mut pool, 300);
        feed.forward(&mut pool);
        let events = received.try_recv().unwrap();
        assert_eq!((events.len(), hashes(&events)), (1, 1));
        feed.forward(&mut pool);
        assert!(received.try_recv().is_err());
    }
}
