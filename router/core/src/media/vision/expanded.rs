//! From one token an image to all that stand for it.

use std::collections::HashMap;
use std::sync::Arc;

use text_generation_client::types::{Grid, MediaView};
use text_generation_images::{ItemKey, Segment};

use super::super::{ItemSpan, Media, MediaItem};
use super::Vision;
use super::decoder::Decoder;
use super::looked::{Looked, Seen};

/// A prompt with its images.
#[derive(Debug, Clone, Default)]
pub struct Expanded {
    pub ids: Vec<u32>,
    pub media: Media,
    /// Of each item, where it stands first in the request.
    pub(super) paths: Vec<String>,
}

impl Expanded {
    /// Without images.
    pub fn text(ids: Vec<u32>) -> Self {
        Self {
            ids,
            ..Self::default()
        }
    }
}

impl Vision {
    pub(super) fn assemble(&self, looked: &Looked, salt: &str) -> Expanded {
        let mut expanded = Expanded::default();
        let mut places: HashMap<ItemKey, usize> = HashMap::new();
        let mut next = looked.images.iter();
        let spec = self.spec_of(looked.images.len());
        for &id in &looked.ids {
            let image = (id == self.0.placeholder).then(|| next.next()).flatten();
            let Some(image) = image else {
                expanded.ids.push(id);
                continue;
            };
            let settings = spec.settings(image.detail);
            let secret = &self.0.secret;
            let key = secret.item(&image.file, settings.as_bytes(), salt.as_bytes());
            let item = *places.entry(key).or_insert_with(|| {
                expanded.media.items.push(Arc::new(self.item(image, key)));
                expanded.paths.push(image.path.clone());
                expanded.media.items.len() - 1
            });
            self.put(image, item, &mut expanded);
        }
        expanded.media.keys = self.keys(&expanded);
        expanded
    }

    fn item(&self, image: &Seen, key: ItemKey) -> MediaItem {
        let views = image.plan.views.iter().map(|view| MediaView {
            height: view.size().height,
            width: view.size().width,
        });
        let grid = image.plan.grid.map(|grid| Grid {
            height: grid.height,
            width: grid.width,
        });
        MediaItem {
            key,
            file: image.file.clone(),
            views: views.collect(),
            grid: grid.unwrap_or_default(),
            rows: image.plan.rows(),
            source: Arc::new(Decoder::new(self.clone(), image.header, image.plan.clone())),
        }
    }

    /// The segments of one image, behind `ids`.
    fn put(&self, image: &Seen, item: usize, to: &mut Expanded) {
        let mut offset = 0;
        for segment in &image.plan.segments {
            match segment {
                Segment::Rows(count) => {
                    to.media.spans.push(ItemSpan {
                        item,
                        first: u32::try_from(to.ids.len()).unwrap_or(u32::MAX),
                        length: *count,
                        offset,
                    });
                    let rows = std::iter::repeat_n(self.0.placeholder, *count as usize);
                    to.ids.extend(rows);
                    offset += count;
                }
                // All names were looked up at the start.
                Segment::Token(name) => to.ids.extend(self.0.tokens.get(name)),
                Segment::Text(text) => to.ids.extend(self.0.texts.get(text).into_iter().flatten()),
                Segment::Number => to.ids.extend(&image.number),
            }
        }
    }

    fn keys(&self, expanded: &Expanded) -> Vec<u64> {
        let end = expanded.media.end() as usize;
        let mut keys: Vec<u64> = expanded.ids[..end]
            .iter()
            .map(|id| u64::from(*id))
            .collect();
        for span in &expanded.media.spans {
            let item = &expanded.media.items[span.item];
            let positions = keys.iter_mut().skip(span.first as usize);
            for (index, key) in (span.offset..span.offset + span.length).zip(positions) {
                *key = self.0.secret.position(&item.key, index);
            }
        }
        keys
    }
}
