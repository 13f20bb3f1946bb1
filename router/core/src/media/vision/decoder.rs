//! Pixels of images, made when they are wanted, and once before to see that they can be.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use text_generation_images::{Header, ImageError, ItemKey, Plan};

use super::super::{Checked, MediaItem, PixelSource, Pixels};
use super::Vision;

/// Files that were decoded once are not decoded before they are wanted: so many are remembered.
const KNOWN: usize = 4096;

/// Files that are known to be whole, the last ones.
#[derive(Debug, Default)]
pub(super) struct Known {
    keys: HashSet<ItemKey>,
    order: VecDeque<ItemKey>,
}

impl Known {
    pub(super) fn has(&self, key: &ItemKey) -> bool {
        self.keys.contains(key)
    }

    pub(super) fn insert(&mut self, key: ItemKey) {
        if self.keys.insert(key) {
            self.order.push_back(key);
        }
        if self.order.len() > KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }
}

/// Decodes one image.
pub(super) struct Decoder {
    vision: Vision,
    header: Header,
    plan: Plan,
    /// What [`PixelSource::check`] has made, until it is asked for.
    first: Mutex<Option<Bytes>>,
}

impl Decoder {
    pub(super) fn new(vision: Vision, header: Header, plan: Plan) -> Self {
        let first = Mutex::default();
        Self {
            vision,
            header,
            plan,
            first,
        }
    }

    fn first(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decode(&self, item: &MediaItem) -> Pixels {
        let (vision, file) = (self.vision.clone(), item.file.clone());
        let (header, plan) = (self.header, self.plan.clone());
        Box::pin(async move {
            let (pool, spec) = (&vision.0.pool, &vision.0.spec);
            pool.prepare(spec, file, header, plan).await
        })
    }
}

impl PixelSource for Decoder {
    fn pixels(&self, item: &MediaItem) -> Pixels {
        match self.first().take() {
            Some(pixels) => Box::pin(std::future::ready(Ok(pixels))),
            None => self.decode(item),
        }
    }

    fn check<'a>(&'a self, item: &'a MediaItem) -> Checked<'a> {
        Box::pin(async move {
            let pixels = self.decode(item).await?;
            // Where many wait already, they are made again.
            *self.first() = self.vision.0.pixels.hold(pixels);
            Ok::<(), ImageError>(())
        })
    }
}
