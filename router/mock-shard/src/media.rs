//! Images of one mock rank: items, layers and rows, with the checks that a real shard makes.

use std::collections::BTreeMap;

use text_generation_proto::v1::{self, put_media_request::Source};

use crate::content::{picture, row};

/// An item whose pixels came.
#[derive(Debug)]
struct Item {
    rows: u32,
    /// That were encoded.
    layers: u32,
    /// Follows from its pixels.
    content: u64,
}

/// What one rank knows of images.
#[derive(Debug, Default)]
pub(crate) struct Media {
    items: BTreeMap<u64, Item>,
    /// By row: what it holds.
    rows: BTreeMap<u32, u64>,
    /// How many items came.
    pub(crate) puts: usize,
    /// The next item is refused.
    pub(crate) refuses: bool,
    /// How often an item was encoded to its end.
    pub(crate) encoded: usize,
}

impl Media {
    /// Takes an item. Says what is wrong with it otherwise.
    pub(crate) fn put(&mut self, request: &v1::PutMediaRequest) -> Result<(), String> {
        let Some(Source::Pixels(pixels)) = &request.source else {
            return Err("pixels come within the call here".to_owned());
        };
        let views = request.views.iter();
        let wanted: u64 = views
            .map(|view| u64::from(view.height) * u64::from(view.width) * 3)
            .sum();
        if wanted != pixels.len() as u64 {
            return Err(format!("{} bytes of {wanted} came", pixels.len()));
        }
        if std::mem::take(&mut self.refuses) {
            return Err("no memory is left for images".to_owned());
        }
        self.puts += 1;
        self.items.insert(
            request.item,
            Item {
                rows: request.rows,
                layers: 0,
                content: picture(pixels),
            },
        );
        Ok(())
    }

    /// Items whose pixels are here.
    pub(crate) fn waiting(&self) -> usize {
        self.items.len()
    }

    /// Drops and encodes what a plan says; returns what is wrong with it.
    pub(crate) fn execute(&mut self, plan: &v1::StepPlan, layers: u32, rows: u32) -> Vec<String> {
        for item in &plan.forget {
            self.items.remove(item);
        }
        let encode = plan.encode.iter();
        encode
            .filter_map(|encode| self.encode(encode, layers, rows).err())
            .collect()
    }

    fn encode(&mut self, encode: &v1::Encode, layers: u32, rows: u32) -> Result<(), String> {
        let number = encode.item;
        let under_way = self.items.iter().find(|(_, item)| item.layers > 0);
        if let Some((other, _)) = under_way.filter(|(other, _)| **other != number) {
            return Err(format!(
                "item {number} is encoded while {other} is under way"
            ));
        }
        let item = self
            .items
            .get_mut(&number)
            .ok_or(format!("item {number} is encoded and never came"))?;
        let end = encode.first_layer + encode.layers;
        if encode.layers == 0 || encode.first_layer != item.layers || end > layers {
            return Err(format!(
                "item {number} is encoded from layer {} to {end} and stands at {}",
                encode.first_layer, item.layers
            ));
        }
        if encode.rows != item.rows || encode.row + encode.rows > rows {
            return Err(format!(
                "item {number} has {} rows, not {}",
                item.rows, encode.rows
            ));
        }
        item.layers = end;
        if end < layers {
            return Ok(());
        }
        let content = item.content;
        self.items.remove(&number);
        self.encoded += 1;
        let written = (0..encode.rows).map(|index| (encode.row + index, row(content, index)));
        self.rows.extend(written);
        Ok(())
    }

    /// What a row holds.
    pub(crate) fn row(&self, row: u32) -> Option<u64> {
        self.rows.get(&row).copied()
    }

    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.rows.clear();
    }
}
