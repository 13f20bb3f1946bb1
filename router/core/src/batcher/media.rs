//! Images of requests that wait: their rows, their pixels on the way to the shards, and layers that steps encode.

use text_generation_client::types::Encode;
use tokio::time::Duration;

use super::Batcher;
use crate::error::{InferError, ValidationError};
use crate::media::{Arrived, MediaStage, PutError};
use crate::policy::cost::StepShape;
use crate::policy::{self, encode};
use crate::queue::Entry;

/// Requests whose images are brought to the shards before their turn.
const AHEAD: usize = 32;

/// The next image that arrives at the shards; never, where no images are served.
pub(super) async fn arrival(media: &mut Option<MediaStage>) -> Arrived {
    match media {
        Some(media) => media.arrival().await,
        None => std::future::pending().await,
    }
}

impl Batcher {
    /// Gives those that wait, in turn, rows for their images, as far as there are any.
    pub(super) fn prepare_images(&mut self) {
        let Some(media) = &mut self.media else {
            return;
        };
        let mut turns = self.queue.in_turn();
        let mut orders = Vec::new();
        while let Some(order) = turns.next(0) {
            let entry = self.queue.get(order);
            if entry.is_some_and(|entry| !entry.request.media.is_empty()) {
                orders.push(order);
            }
            if orders.len() == AHEAD {
                break;
            }
        }
        for order in orders {
            let Some(entry) = self.queue.get_mut(order) else {
                continue;
            };
            let found = self.pool.probe(&entry.root, entry.cacheable());
            let request = entry.request.clone();
            if !media.prepare(&request.media, found.length, &mut entry.media) {
                break;
            }
        }
    }

    /// Whether all rows that a request reads behind its first `cached` positions are encoded.
    pub(super) fn has_images(&self, entry: &Entry, cached: u32) -> bool {
        let needed = &entry.request.media;
        needed.is_empty()
            || self
                .media
                .as_ref()
                .is_some_and(|media| media.is_ready(needed, cached, &entry.media))
    }

    /// Layers that the next step encodes, and how long they take.
    pub(super) fn encode(&mut self, running: &[policy::Running]) -> (Vec<Encode>, Duration) {
        let Some(media) = &mut self.media else {
            return (Vec::new(), Duration::ZERO);
        };
        let pending = media.pending();
        if pending.is_empty() {
            return (Vec::new(), Duration::ZERO);
        }
        let mut decodes = StepShape::default();
        for request in running.iter().filter(|request| request.decodes) {
            decodes.add_decode(request.computed.saturating_add(1));
        }
        let gap = self.limits.max_token_gap.filter(|_| decodes.decodes > 0);
        let room = gap.map(|gap| self.cost.room_within(&decodes, gap));
        let layers = encode::layers(&pending, room);
        let takes = layers.iter().zip(&pending);
        let takes = takes.map(|(count, item)| item.layer * *count).sum();
        (media.encode(&layers), takes)
    }

    /// An image is on the shards, or its requests fail.
    pub(super) fn arrived(&mut self, arrived: &Arrived) {
        let Some(media) = &mut self.media else {
            return;
        };
        let Some(error) = media.arrived(arrived) else {
            return;
        };
        let error = match error {
            PutError::File(error) => InferError::Validation(ValidationError::ImageFile(error)),
            PutError::Shards(error) if error.is_group_lost() => {
                return self.lose(Vec::new(), &error);
            }
            PutError::Shards(error) => error.into(),
        };
        let key = arrived.key;
        self.queue.fail_where(
            |entry| entry.media.iter().any(|lock| lock.key == key),
            &error,
        );
    }

    /// After everything on the shards was cleared.
    pub(super) fn put_images_again(&mut self) {
        if let Some(media) = &mut self.media {
            media.put_again();
        }
    }
}
