//! What slots and rows of images hold: numbers that follow from all that a request has read.

use std::hash::{DefaultHasher, Hash, Hasher};

/// What one position of a request reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<'a> {
    Token(u32),
    /// A row of an image.
    Row {
        pixels: &'a [u8],
        index: u32,
    },
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What follows from the pixels of an image.
pub(crate) fn picture(pixels: &[u8]) -> u64 {
    hash(pixels)
}

/// What row `index` holds of an image, of which `picture` is known.
pub(crate) fn row(picture: u64, index: u32) -> u64 {
    hash(&(picture, index))
}

/// What a slot holds that reads `read` behind one that holds `before`.
pub(crate) fn slot(before: Option<u64>, read: u64, adapter: u32) -> u64 {
    hash(&(before, read, adapter))
}

/// [`MockRow::content`](crate::MockRow::content) of a request of the base that has `before` and reads one position more.
pub fn content_after(before: Option<u64>, read: Read<'_>) -> u64 {
    let read = match read {
        Read::Token(id) => id.into(),
        Read::Row { pixels, index } => row(picture(pixels), index),
    };
    slot(before, read, 0)
}
