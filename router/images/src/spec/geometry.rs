//! Sizes: what a picture of `height` x `width` is resized to, what is cut out of it, and how many rows that makes.
//!
//! The rounding is that of the processors of transformers 5.24, on whose counts models depend.

mod chunks;
mod covered;
mod filled;
mod numbers;
mod pinpoints;
mod slices;
mod smart;
mod splits;
mod tiles;
mod windows;

pub(super) use self::chunks::Chunks;
pub(super) use self::covered::Covered;
pub(super) use self::filled::Filled;
use self::numbers::{area, middle, shortest_side, whole, within};
pub(super) use self::pinpoints::{Pinpoints, Square};
pub(super) use self::slices::Slices;
pub(super) use self::smart::{Budget, Padded, Smart};
pub(super) use self::splits::{MOST_SPLITS, Splits};
pub(super) use self::tiles::Tiles;
pub(super) use self::windows::Windows;
use super::{Plan, Segment, View};
use crate::error::ImageError;
use crate::resize::Size;

/// How closely a client wants a picture to be looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Detail {
    /// As closely as the model can.
    #[default]
    High,
    /// As if it had been made to fit into 512 x 512 before.
    Low,
}

const LOW: u32 = 512;

/// A family of processors.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Geometry {
    /// The shorter side becomes `shortest`, and the middle is cut out.
    Cropped {
        shortest: u32,
        crop: Size,
        rows: u32,
    },
    /// Every picture becomes one size, whatever its form.
    Fixed {
        size: Size,
        rows: u32,
    },
    /// Pictures with a side above `longest` shrink; sides are rounded up to `patch` (Pixtral).
    Longest {
        longest: u32,
        patch: u32,
        row_end: &'static str,
        end: &'static str,
    },
    Smart(Smart),
    Budget(Budget),
    Padded(Padded),
    Pinpoints(Pinpoints),
    Square(Square),
    Tiles(Tiles),
    Splits(Splits),
    Chunks(Chunks),
    Covered(Covered),
    Filled(Filled),
    Windows(Windows),
    Slices(Slices),
}

impl Geometry {
    pub(super) fn plan(&self, size: Size, detail: Detail) -> Result<Plan, ImageError> {
        let size = match detail {
            Detail::High => size,
            Detail::Low => within(size, LOW),
        };
        match self {
            Self::Cropped {
                shortest,
                crop,
                rows,
            } => {
                let resized = shortest_side(size, *shortest);
                Ok(one(View::part(resized, middle(resized, *crop)), *rows))
            }
            Self::Fixed { size, rows } => Ok(one(View::whole(*size), *rows)),
            Self::Longest {
                longest,
                patch,
                row_end,
                end,
            } => Ok(lines(size, *longest, *patch, row_end, end)),
            Self::Smart(smart) => smart.plan(size),
            Self::Budget(budget) => Ok(budget.plan(size)),
            Self::Padded(padded) => Ok(padded.plan(size)),
            Self::Pinpoints(pinpoints) => pinpoints.plan(size),
            Self::Square(square) => Ok(square.plan()),
            Self::Tiles(tiles) => Ok(tiles.plan(size)),
            Self::Splits(splits) => Ok(splits.plan(size)),
            Self::Chunks(chunks) => Ok(chunks.plan(size)),
            Self::Covered(covered) => Ok(covered.plan(size)),
            Self::Filled(filled) => Ok(filled.plan(size)),
            Self::Windows(windows) => windows.plan(size),
            Self::Slices(slices) => slices.plan(size),
        }
    }

    pub(super) fn tokens(&self) -> Vec<&'static str> {
        match self {
            Self::Longest { row_end, end, .. } => vec![row_end, end],
            Self::Splits(splits) => splits.tokens(),
            Self::Chunks(_) => Chunks::tokens(),
            Self::Windows(_) => Windows::tokens(),
            Self::Slices(slices) => slices.tokens(),
            _ => Vec::new(),
        }
    }

    pub(super) fn texts(&self) -> Vec<&'static str> {
        match self {
            Self::Splits(splits) => splits.texts(),
            Self::Slices(slices) => slices.texts(),
            _ => Vec::new(),
        }
    }

    pub(super) fn largest(&self, max_pixels: u64) -> (u64, u32) {
        match self {
            Self::Cropped { crop, rows, .. } => (area(*crop), *rows),
            Self::Fixed { size, rows } => (area(*size), *rows),
            Self::Longest { longest, patch, .. } => {
                let side = u64::from(longest.div_ceil(*patch) * patch);
                let rows = longest.div_ceil(*patch);
                (side * side, rows * rows)
            }
            Self::Smart(smart) => smart.largest(max_pixels),
            Self::Budget(budget) => budget.largest(),
            Self::Padded(padded) => padded.largest(),
            Self::Pinpoints(pinpoints) => pinpoints.largest(),
            Self::Square(square) => square.largest(),
            Self::Tiles(tiles) => tiles.largest(),
            Self::Splits(splits) => splits.largest(),
            Self::Chunks(chunks) => chunks.largest(),
            Self::Covered(covered) => covered.largest(),
            Self::Filled(filled) => filled.largest(),
            Self::Windows(windows) => windows.largest(),
            Self::Slices(slices) => slices.largest(),
        }
    }
}

/// One view, whose rows are no grid.
fn one(view: View, rows: u32) -> Plan {
    Plan {
        views: vec![view],
        segments: vec![Segment::Rows(rows)],
        grid: None,
    }
}

fn lines(size: Size, longest: u32, patch: u32, row_end: &'static str, end: &'static str) -> Plan {
    let (h, w, most) = (
        f64::from(size.height),
        f64::from(size.width),
        f64::from(longest),
    );
    let ratio = (h / most).max(w / most);
    let (height, width) = if ratio > 1.0 {
        (whole((h / ratio).floor()), whole((w / ratio).floor()))
    } else {
        (size.height, size.width)
    };
    let steps = |length: u32| length.max(1).div_ceil(patch);
    let (rows, columns) = (steps(height), steps(width));
    let mut segments = Vec::with_capacity(rows as usize * 2);
    for row in 1..=rows {
        segments.push(Segment::Rows(columns));
        segments.push(Segment::Token(if row == rows { end } else { row_end }));
    }
    Plan {
        views: vec![View::whole(Size {
            height: rows * patch,
            width: columns * patch,
        })],
        segments,
        grid: None,
    }
}
