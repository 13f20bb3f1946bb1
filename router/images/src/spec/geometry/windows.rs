//! Step 3.7: windows of a picture, whose side depends on its form, and the whole picture behind them.

use super::numbers::{area, narrowed, square, whole};
use super::{Plan, Segment, View};
use crate::error::ImageError;
use crate::resize::{Size, Squared, Window};

const START: &str = "<im_start>";
const END: &str = "<im_end>";
const PART: &str = "<patch_start>";
const PART_END: &str = "<patch_end>";
const LINE: &str = "<patch_newline>";

/// A thin picture of this form has as many windows as the largest one.
const MAX_ASPECT: u32 = 35;
/// Pictures with a side below this become square, unless their form is ordinary.
const THIN: u32 = 32;
const ORDINARY: u32 = 4;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Windows {
    /// Pixels along a side of the view of the whole picture, and rows of it.
    pub whole: (u32, u32),
    /// The same of a window.
    pub part: (u32, u32),
    /// Pixels along the longer side of a picture; larger ones are made smaller.
    pub longest: u32,
}

impl Windows {
    pub(super) fn plan(&self, given: Size) -> Result<Plan, ImageError> {
        let (short, long) = sides(given);
        let squared = (short < THIN && long > short * ORDINARY).then_some(Squared::Corner);
        if squared.is_none() && u64::from(long) > u64::from(short) * u64::from(MAX_ASPECT) {
            let (Size { height, width }, max) = (given, MAX_ASPECT);
            return Err(ImageError::Aspect { width, height, max });
        }
        let picture = if squared.is_some() {
            square(long)
        } else {
            given
        };
        let scaled = self.scaled(picture);
        let before = (scaled != picture).then_some(scaled);
        let mut views = self.parts(scaled, squared);
        let lines = views.iter().filter(|view| view.window.left == 0).count();
        let segments = self.segments(views.len(), lines);
        views.push(View {
            before: before.into_iter().collect(),
            squared,
            ..View::whole(square(self.whole.0))
        });
        Ok(Plan {
            views,
            segments,
            grid: None,
        })
    }

    fn scaled(&self, size: Size) -> Size {
        let (_, long) = sides(size);
        if long <= self.longest {
            return size;
        }
        let scale = f64::from(self.longest) / f64::from(long);
        let scaled = |side: u32| whole(f64::from(side) * scale).max(1);
        Size {
            height: scaled(size.height),
            width: scaled(size.width),
        }
    }

    /// Pixels along a side of a window; none where the whole picture shows enough.
    fn side(&self, size: Size) -> Option<u32> {
        let (short, long) = sides(size);
        if long <= self.whole.0 {
            // Half as long again.
            (2 * long > 3 * short).then_some(short)
        } else if long > ORDINARY * short {
            Some(short.min(self.part.0))
        } else {
            Some(self.part.0)
        }
    }

    fn parts(&self, size: Size, squared: Option<Squared>) -> Vec<View> {
        let Some(side) = self.side(size) else {
            return Vec::new();
        };
        let canvas = Size {
            height: snapped(size.height, side),
            width: snapped(size.width, side),
        };
        let columns = (0..canvas.width).step_by(side as usize);
        let rows = (0..canvas.height).step_by(side as usize);
        rows.flat_map(|top| columns.clone().map(move |left| (top, left)))
            .map(|(top, left)| {
                let size = Size {
                    height: side.min(canvas.height - top),
                    width: side.min(canvas.width - left),
                };
                let (top, left) = (top.into(), left.into());
                View {
                    before: vec![canvas],
                    last: Some(square(self.part.0)),
                    squared,
                    ..View::part(canvas, Window { top, left, size })
                }
            })
            .collect()
    }

    fn segments(&self, parts: usize, lines: usize) -> Vec<Segment> {
        let across = parts / lines.max(1);
        let mut segments = Vec::with_capacity(parts * 4 + 3);
        for part in 1..=parts {
            segments.extend([
                Segment::Token(PART),
                Segment::Rows(self.part.1),
                Segment::Token(PART_END),
            ]);
            if part % across == 0 && part < parts {
                segments.push(Segment::Token(LINE));
            }
        }
        segments.extend([
            Segment::Token(START),
            Segment::Rows(self.whole.1),
            Segment::Token(END),
        ]);
        segments
    }

    pub(super) fn tokens() -> Vec<&'static str> {
        vec![START, END, PART, PART_END, LINE]
    }

    /// Of a square picture, or of the thinnest one, which has a window for each time that it is longer than wide.
    pub(super) fn largest(&self) -> (u64, u32) {
        let along = snapped(self.longest, self.part.0).div_ceil(self.part.0);
        let shortest = (self.longest / MAX_ASPECT).max(1);
        let of_thin = (self.longest / shortest).max(MAX_ASPECT) + 1;
        let most = (along * along).max(of_thin);
        let pixels = u64::from(most) * area(square(self.part.0)) + area(square(self.whole.0));
        let rows = u64::from(most) * u64::from(self.part.1) + u64::from(self.whole.1);
        (pixels, narrowed(rows))
    }
}

/// A number of windows. A rest of more than a fifth of one counts, and so does a length that is no window.
fn snapped(length: u32, side: u32) -> u32 {
    match length / side {
        0 => length,
        count => side * (count + u32::from(length % side * 5 > side)),
    }
}

/// The shorter and the longer side.
fn sides(size: Size) -> (u32, u32) {
    (size.height.min(size.width), size.height.max(size.width))
}
