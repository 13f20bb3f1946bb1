//! What happens to images before their requests start: rows, pixels, layers of the encoder.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use text_generation_client::types::{Encode, ItemId, MediaCost, MediaInfo, MediaSpan, PutMedia};
use text_generation_client::{ClientError, ShardedClient};
use text_generation_images::{ImageError, ItemKey};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::Media;
use super::metrics::MediaMetrics;
use super::pool::{Kept, MediaLock, Pool, Progress};
use crate::policy::encode::Item;

/// Pixels that may wait on the shards to be encoded; the shards take twice as many. Those of one request always may.
const MOST_WAITING_BYTES: u64 = 128 << 20;

/// Why an item did not reach the shards.
#[derive(Debug, Clone)]
pub(crate) enum PutError {
    File(ImageError),
    Shards(ClientError),
}

/// An item has reached the shards, or never will.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) id: ItemId,
    pub(crate) key: ItemKey,
    pub(crate) result: Result<(), PutError>,
}

/// Owned by the batcher. No call waits.
#[derive(Debug)]
pub(crate) struct MediaStage {
    client: ShardedClient,
    info: MediaInfo,
    cost: MediaCost,
    pool: Pool,
    /// Items whose pixels the shards have and whose rows are not written, in the order in which they came.
    to_encode: VecDeque<ItemId>,
    /// Items that the next plan tells the shards to drop.
    forget: Vec<ItemId>,
    metrics: MediaMetrics,
    sender: UnboundedSender<Arrived>,
    arrivals: UnboundedReceiver<Arrived>,
}

impl MediaStage {
    pub(crate) fn new(client: ShardedClient, info: MediaInfo, cost: MediaCost, rows: u32) -> Self {
        let (sender, arrivals) = mpsc::unbounded_channel();
        Self {
            client,
            info,
            cost,
            pool: Pool::new(rows),
            to_encode: VecDeque::new(),
            forget: Vec::new(),
            metrics: MediaMetrics::new(rows),
            sender,
            arrivals,
        }
    }

    /// Shows how much of the pool is in use.
    pub(crate) fn publish(&self) {
        self.metrics.rows_used.set(f64::from(self.pool.used()));
    }

    /// A step took so long for images.
    pub(crate) fn took(&self, encode: Duration) {
        self.metrics.step(encode);
    }

    /// Whether chunks of prompts must not end within an image.
    pub(crate) fn has_whole_spans(&self) -> bool {
        self.info.whole_spans
    }

    /// The next item that arrives.
    pub(crate) async fn arrival(&mut self) -> Arrived {
        match self.arrivals.recv().await {
            Some(arrived) => arrived,
            // It holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// Gives a request whose first `cached` positions are computed locks of all items that it still reads, and has their
    /// pixels brought to the shards. `false` where there is no room: the request then holds nothing.
    pub(crate) fn prepare(
        &mut self,
        media: &Media,
        cached: u32,
        locks: &mut Vec<MediaLock>,
    ) -> bool {
        let missing = media
            .needed(cached)
            .filter(|item| self.pool.peek(&item.key).is_none());
        let missing: u64 = missing.map(|item| item.bytes()).sum();
        let waiting = self.pool.waiting_bytes();
        if missing > 0 && waiting > 0 && waiting + missing > MOST_WAITING_BYTES {
            return false;
        }
        if self.lock_all(media, cached, locks) {
            return true;
        }
        locks.clear();
        // Its own items may lie so that the others find no neighbouring rows between them.
        if !self.pool.is_unlocked() {
            return false;
        }
        self.pool.clear(&mut self.forget);
        self.lock_all(media, cached, locks)
    }

    fn lock_all(&mut self, media: &Media, cached: u32, locks: &mut Vec<MediaLock>) -> bool {
        let mut reused = 0;
        for item in media.needed(cached) {
            if locks.iter().any(|lock| lock.key == item.key) {
                continue;
            }
            if let Some(kept) = self.pool.get(&item.key) {
                reused += u64::from(kept.progress == Progress::Encoded);
                locks.push(kept.lock());
                continue;
            }
            let Some(kept) = self.pool.insert(item, &mut self.forget) else {
                return false;
            };
            locks.push(kept.lock());
            put(&self.client, &self.sender, kept);
        }
        self.metrics.reused.increment(reused);
        true
    }

    /// Whether a request that holds `locks` can start where its first `cached` positions are computed.
    pub(crate) fn is_ready(&self, media: &Media, cached: u32, locks: &[MediaLock]) -> bool {
        media.needed(cached).all(|item| {
            locks.iter().any(|lock| lock.key == item.key)
                && self
                    .pool
                    .peek(&item.key)
                    .is_some_and(|kept| kept.progress == Progress::Encoded)
        })
    }

    /// Notes that an item has arrived. Returns why it has not, where its requests have to fail.
    pub(crate) fn arrived(&mut self, arrived: &Arrived) -> Option<PutError> {
        let Some(kept) = self.pool.by_id(arrived.id) else {
            // It went while its pixels were on their way, which nobody will encode.
            self.forget.push(arrived.id);
            return None;
        };
        match &arrived.result {
            Ok(()) => {
                kept.progress = Progress::Put { layers: 0 };
                self.to_encode.push_back(arrived.id);
                None
            }
            Err(PutError::Shards(error)) if error.is_group_lost() => {
                // It is put again when they serve again.
                kept.progress = Progress::Lost;
                Some(PutError::Shards(error.clone()))
            }
            Err(error) => {
                self.metrics.failed.increment(1);
                // Some ranks may have taken it.
                self.forget.extend(self.pool.remove(&arrived.key));
                Some(error.clone())
            }
        }
    }

    /// What can be encoded now, in order. Items that nobody waits for any more are forgotten.
    pub(crate) fn pending(&mut self) -> Vec<Item> {
        let (pool, forget) = (&mut self.pool, &mut self.forget);
        self.to_encode.retain(|id| match pool.by_id(*id) {
            Some(kept) if kept.is_locked() => true,
            Some(kept) => {
                let key = kept.item.key;
                forget.extend(pool.remove(&key));
                false
            }
            None => false,
        });
        let layers = self.info.layers;
        let time = |pixels| layer_time(&self.cost, layers, pixels);
        let most = self.cost.pixels.last().copied().map_or(0, u64::from);
        let mut pending = Vec::with_capacity(self.to_encode.len());
        // Pixels of the whole items with which the next one is encoded.
        let mut together = 0;
        for id in &self.to_encode {
            let Some(kept) = self.pool.by_id(*id) else {
                continue;
            };
            let (done, pixels) = (done(kept), kept.item.bytes() / 3);
            let packed = self.info.packs && done == 0 && together > 0 && together + pixels <= most;
            let layer = if packed {
                time(together + pixels).saturating_sub(time(together))
            } else {
                together = 0;
                time(pixels)
            };
            if done == 0 {
                together += pixels;
            }
            pending.push(Item {
                layers: layers - done,
                layer,
                packed,
            });
        }
        pending
    }

    /// Makes ranges of layers for the first items of [`MediaStage::pending`], `layers[i]` of item `i`. The rows of those
    /// that are complete may be read from the plan on that carries them.
    pub(crate) fn encode(&mut self, layers: &[u32]) -> Vec<Encode> {
        let mut ranges = Vec::with_capacity(layers.len());
        for &count in layers {
            let Some(kept) = self.to_encode.front().and_then(|id| self.pool.by_id(*id)) else {
                break;
            };
            let first_layer = done(kept);
            let count = count.min(self.info.layers - first_layer);
            ranges.push(Encode {
                item: kept.id,
                first_layer,
                layers: count,
                row: kept.row,
                rows: kept.item.rows,
            });
            if first_layer + count < self.info.layers {
                kept.progress = Progress::Put {
                    layers: first_layer + count,
                };
                break;
            }
            kept.progress = Progress::Encoded;
            self.metrics.encoded.increment(1);
            self.to_encode.pop_front();
        }
        ranges
    }

    /// Whether the shards have to be told to drop items.
    pub(crate) fn has_forgotten(&self) -> bool {
        !self.forget.is_empty()
    }

    /// Items that the next plan tells the shards to drop.
    pub(crate) fn take_forgotten(&mut self) -> Vec<ItemId> {
        std::mem::take(&mut self.forget)
    }

    /// The shards have forgotten everything.
    pub(crate) fn reset(&mut self) {
        self.pool.reset();
        self.to_encode.clear();
        self.forget.clear();
    }

    /// After a [`reset`](Self::reset): the shards can be given pixels again.
    pub(crate) fn put_again(&mut self) {
        for kept in self.pool.lost() {
            kept.progress = Progress::Putting;
            put(&self.client, &self.sender, kept);
        }
    }

    /// Spans of a request as the shards get to know them.
    pub(crate) fn spans(media: &Media, locks: &[MediaLock]) -> Vec<MediaSpan> {
        let spans = media.spans.iter().map(|span| {
            let item = &media.items[span.item];
            let lock = locks.iter().find(|lock| lock.key == item.key);
            MediaSpan {
                first: span.first,
                length: span.length,
                // Nobody reads rows of positions that are computed.
                row: lock.map_or(0, |lock| lock.row + span.offset),
                grid: item.grid,
            }
        });
        spans.collect()
    }
}

/// Straight lines between what warm-up measured; as the largest beyond it.
fn layer_time(cost: &MediaCost, layers: u32, pixels: u64) -> Duration {
    let points = cost.pixels.iter().zip(&cost.times_ms);
    let mut before = (0.0, 0.0);
    let mut time = 0.0;
    for (&at, &takes) in points {
        let (at, takes) = (f64::from(at), f64::from(takes));
        let slope = (takes - before.1) / (at - before.0).max(1.0);
        time = before.1 + slope * (pixels as f64 - before.0);
        before = (at, takes);
        if pixels as f64 <= at {
            break;
        }
    }
    let layer = time.max(0.0) / 1e3 / f64::from(layers.max(1));
    Duration::try_from_secs_f64(layer).unwrap_or_default()
}

fn done(kept: &Kept) -> u32 {
    match kept.progress {
        Progress::Put { layers } => layers,
        Progress::Lost | Progress::Putting | Progress::Encoded => 0,
    }
}

/// Makes the pixels of an item and brings them to the shards.
fn put(client: &ShardedClient, sender: &UnboundedSender<Arrived>, kept: &Kept) {
    let (client, sender) = (client.clone(), sender.clone());
    let (id, item) = (kept.id, Arc::clone(&kept.item));
    tokio::spawn(async move {
        let result = match item.source.pixels(&item).await {
            Err(error) => Err(PutError::File(error)),
            Ok(pixels) => {
                let put = PutMedia {
                    item: id,
                    views: item.views.clone(),
                    grid: item.grid,
                    rows: item.rows,
                    pixels,
                };
                client.put_media(put).await.map_err(PutError::Shards)
            }
        };
        let key = item.key;
        // The batcher may have gone.
        let _ = sender.send(Arrived { id, key, result });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_layer_follows_the_points() {
        let cost = MediaCost {
            pixels: vec![100, 300],
            times_ms: vec![10.0, 20.0],
        };
        let micros = |pixels| layer_time(&cost, 10, pixels).as_micros();
        assert_eq!(micros(50), 500);
        assert_eq!(micros(100), 1000);
        assert_eq!(micros(200), 1500);
        assert_eq!(micros(500), 3000);
    }
}
