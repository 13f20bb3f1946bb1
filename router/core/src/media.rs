//! Images of requests: what a request has of them, rows of the encoder's pool, and what has to be encoded before a
//! request starts.
//!
//! The router owns the bookkeeping. An image is an item: its pixels are put on the shards, plans encode it in ranges of
//! layers, and the last of them writes its rows of the media pool, which chunks of prompts read in place of token
//! embeddings. A request is started when all rows that its prompt reads are encoded, or are by the plan that starts it.

mod metrics;
mod pool;
mod room;
mod stage;
mod vision;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use text_generation_client::types::{Grid, MediaView};
use text_generation_images::{ImageError, ItemKey};

pub(crate) use self::pool::MediaLock;
pub(crate) use self::stage::{Arrived, MediaStage, PutError};
pub use self::vision::{Expanded, Looked, Vision, VisionLimits};

/// An image as the model sees it.
#[derive(Clone)]
pub struct MediaItem {
    pub key: ItemKey,
    /// The file as it came, from which pixels are made again when the shards have lost them.
    pub file: Bytes,
    pub views: Vec<MediaView>,
    pub grid: Grid,
    /// Of the media pool.
    pub rows: u32,
    /// Where the pixels come from.
    pub source: Arc<dyn PixelSource>,
}

impl MediaItem {
    /// Of its pixels.
    pub(crate) fn bytes(&self) -> u64 {
        let views = self.views.iter();
        let pixels = views.map(|view| u64::from(view.height) * u64::from(view.width));
        pixels.sum::<u64>() * 3
    }
}

/// Nothing of its contents.
impl fmt::Debug for MediaItem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MediaItem")
            .field("views", &self.views)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// Positions of a prompt that read rows of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemSpan {
    /// In [`Media::items`].
    pub item: usize,
    pub first: u32,
    pub length: u32,
    /// Rows of the item before these.
    pub offset: u32,
}

/// All images of a prompt. Of most prompts it is empty.
#[derive(Debug, Clone, Default)]
pub struct Media {
    /// Each image once, however often it is in the prompt.
    pub items: Vec<Arc<MediaItem>>,
    /// Ascending and apart.
    pub spans: Vec<ItemSpan>,
    /// Of the positions up to the end of the last span, as the prefix tree compares them.
    pub keys: Vec<u64>,
}

impl Media {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Rows of all items.
    pub fn rows(&self) -> u32 {
        let rows = self.items.iter().map(|item| item.rows);
        rows.fold(0, u32::saturating_add)
    }

    /// Those that a request reads whose first `cached` positions are computed.
    pub(crate) fn needed(&self, cached: u32) -> impl Iterator<Item = &Arc<MediaItem>> {
        let mut read = vec![false; self.items.len()];
        for span in &self.spans {
            read[span.item] |= span.first + span.length > cached;
        }
        let items = self.items.iter().zip(read);
        items.filter_map(|(item, read)| read.then_some(item))
    }

    /// Where the last span ends.
    pub(crate) fn end(&self) -> u32 {
        self.spans.last().map_or(0, |span| span.first + span.length)
    }
}

/// Pixels on their way, or why there are none.
pub type Pixels = Pin<Box<dyn Future<Output = Result<Bytes, ImageError>> + Send>>;
/// Whether there are pixels.
pub type Checked<'a> = Pin<Box<dyn Future<Output = Result<(), ImageError>> + Send + 'a>>;

/// Makes the pixels of one item.
pub trait PixelSource: Send + Sync {
    /// The pixels of all views of `item`, one after the other, a byte each for red, green and blue.
    fn pixels(&self, item: &MediaItem) -> Pixels;

    /// Makes them and keeps them until they are asked for.
    fn check<'a>(&'a self, item: &'a MediaItem) -> Checked<'a>;
}
