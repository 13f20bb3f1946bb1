//! MiniCPM-V: the whole picture with about so many pixels, and slices of a larger one in a grid whose form is nearest to
//! that of the picture.

use super::numbers::{narrowed, square, whole};
use super::tiles::cut;
use super::{Plan, Segment, View};
use crate::error::ImageError;
use crate::resize::Size;

const NUMBER: &str = "<image_id>";
const NUMBER_END: &str = "</image_id>";
const START: &str = "<image>";
const END: &str = "</image>";
const PART: &str = "<slice>";
const PART_END: &str = "</slice>";
const LINE: &str = "\n";

/// Views of thinner pictures would have a side of a pixel and more than their share of patches.
const MAX_ASPECT: u32 = 200;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Slices {
    /// A view has about as many pixels as a square with this side.
    pub side: u32,
    pub patch: u32,
    /// Beside the whole picture; below 2 none.
    pub most: u32,
    /// Of each view.
    pub rows: u32,
    /// Whether the prompt says how many pictures stood before this one.
    pub is_numbered: bool,
}

impl Slices {
    pub(super) fn plan(&self, given: Size) -> Result<Plan, ImageError> {
        let (short, long) = (given.height.min(given.width), given.height.max(given.width));
        if u64::from(long) > u64::from(short) * u64::from(MAX_ASPECT) {
            let (Size { height, width }, max) = (given, MAX_ASPECT);
            return Err(ImageError::Aspect { width, height, max });
        }
        let (height, width) = (f64::from(given.height), f64::from(given.width));
        let mut views = vec![View::whole(self.scaled(height, width))];
        let grid = self.grid(given);
        if let Some(grid) = grid {
            let part = self.part(given, grid);
            let resized = Size {
                height: part.height * grid.height,
                width: part.width * grid.width,
            };
            views.extend(cut(resized, part, grid));
        }
        Ok(Plan {
            views,
            segments: self.segments(grid),
            grid: None,
        })
    }

    /// The size with as many pixels as a view has and sides of whole patches.
    fn scaled(&self, height: f64, width: f64) -> Size {
        let aspect = width / height;
        let down = (f64::from(self.side) / aspect.sqrt()).floor();
        Size {
            height: rounded(down, self.patch),
            width: rounded((down * aspect).floor(), self.patch),
        }
    }

    /// Of each slice.
    fn part(&self, given: Size, grid: Size) -> Size {
        let shared =
            |side: u32, parts: u32| f64::from(rounded(f64::from(side), parts)) / f64::from(parts);
        self.scaled(
            shared(given.height, grid.height),
            shared(given.width, grid.width),
        )
    }

    /// Rows and columns of slices; none where the whole picture shows enough.
    fn grid(&self, size: Size) -> Option<Size> {
        let area = u64::from(size.height) * u64::from(size.width);
        let needed = area.div_ceil(u64::from(self.side) * u64::from(self.side));
        let needed = narrowed(needed).min(self.most);
        if needed <= 1 {
            return None;
        }
        let form = (f64::from(size.width) / f64::from(size.height)).ln();
        let (mut best, mut least) = (square(1), f64::INFINITY);
        let counts = (needed - 1..=needed + 1).filter(|count| *count > 1 && *count <= self.most);
        let grids = counts.flat_map(|count| {
            let widths = (1..=count).filter(move |width| count.is_multiple_of(*width));
            widths.map(move |width| Size {
                height: count / width,
                width,
            })
        });
        for grid in grids {
            let off = (form - (f64::from(grid.width) / f64::from(grid.height)).ln()).abs();
            if off < least {
                (best, least) = (grid, off);
            }
        }
        Some(best)
    }

    fn segments(&self, grid: Option<Size>) -> Vec<Segment> {
        let mut segments = Vec::new();
        if self.is_numbered {
            segments.extend([
                Segment::Token(NUMBER),
                Segment::Number,
                Segment::Token(NUMBER_END),
            ]);
        }
        let view = |start, end| {
            [
                Segment::Token(start),
                Segment::Rows(self.rows),
                Segment::Token(end),
            ]
        };
        segments.extend(view(START, END));
        let Some(grid) = grid else {
            return segments;
        };
        for row in 0..grid.height {
            if row > 0 {
                segments.push(Segment::Text(LINE));
            }
            for _ in 0..grid.width {
                segments.extend(view(PART, PART_END));
            }
        }
        segments
    }

    pub(super) fn tokens(&self) -> Vec<&'static str> {
        let number: &[_] = if self.is_numbered {
            &[NUMBER, NUMBER_END]
        } else {
            &[]
        };
        let parts: &[_] = if self.most > 1 {
            &[PART, PART_END]
        } else {
            &[]
        };
        [&[START, END], number, parts].concat()
    }

    pub(super) fn texts(&self) -> Vec<&'static str> {
        if self.most > 1 {
            vec![LINE]
        } else {
            Vec::new()
        }
    }

    /// A side is rounded to the next patch, up where it is shorter than one.
    pub(super) fn largest(&self) -> (u64, u32) {
        let (side, patch) = (u64::from(self.side), u64::from(self.patch));
        // The sides of the thinnest view are these roots as long, and as short, as those of a square; the root of 200
        // is below 15.
        let both = side * 15 + side;
        let pixels = side * side + patch * both + patch * patch;
        let views = if self.most > 1 { self.most + 1 } else { 1 };
        let rows = narrowed(u64::from(views) * u64::from(self.rows));
        (u64::from(views) * pixels, rows)
    }
}

/// A multiple of `step`, at least one.
fn rounded(length: f64, step: u32) -> u32 {
    let steps = (length / f64::from(step)).round_ties_even();
    whole(steps).max(1) * step
}
