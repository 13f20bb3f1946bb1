//! Pictures of any form as one view, whose area is kept between limits: Qwen and GLM, Gemma 4, Kimi.

use super::numbers::{area, float, narrowed, square, whole};
use super::{Plan, Segment, View};
use crate::error::ImageError;
use crate::resize::{Size, Window};

const MAX_ASPECT: u32 = 200;

/// A view of one row for every `factor` x `factor` pixels.
fn gridded(view: View, factor: u32) -> Plan {
    let grid = Size {
        height: view.window.size.height / factor,
        width: view.window.size.width / factor,
    };
    Plan {
        views: vec![view],
        segments: vec![Segment::Rows(grid.height * grid.width)],
        grid: Some(grid),
    }
}

/// Sides are rounded to `factor`, and the area is kept between limits (`smart_resize` of Qwen and GLM).
#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Smart {
    pub factor: u32,
    /// Of all frames.
    pub min_pixels: u64,
    pub max_pixels: u64,
    /// As so many frames a picture counts.
    pub frames: u32,
    /// Whether pictures with a side below `factor` are made larger first.
    pub enlarges: bool,
}

impl Smart {
    pub(super) fn plan(&self, size: Size) -> Result<Plan, ImageError> {
        Ok(gridded(View::whole(self.resized(size)?), self.factor))
    }

    fn resized(&self, given: Size) -> Result<Size, ImageError> {
        let size = self.enlarged(given);
        let (short, long) = (size.height.min(size.width), size.height.max(size.width));
        if u64::from(long) > u64::from(short) * u64::from(MAX_ASPECT) {
            let (Size { height, width }, max) = (given, MAX_ASPECT);
            return Err(ImageError::Aspect { width, height, max });
        }
        let (h, w) = (f64::from(size.height), f64::from(size.width));
        let (frames, f) = (f64::from(self.frames), f64::from(self.factor));
        // Half-way cases go to the even neighbour, as in Python.
        let rounded = |x: f64| whole((x / f).round_ties_even()) * self.factor;
        let (height, width) = (rounded(h), rounded(w));
        let pixels = area(Size { height, width }) * u64::from(self.frames);
        let (height, width) = if pixels > self.max_pixels {
            let beta = (frames * h * w / float(self.max_pixels)).sqrt();
            let floored = |x: f64| (whole((x / beta / f).floor()) * self.factor).max(self.factor);
            (floored(h), floored(w))
        } else if pixels < self.min_pixels {
            let beta = (float(self.min_pixels) / (frames * h * w)).sqrt();
            let raised = |x: f64| whole((x * beta / f).ceil()) * self.factor;
            (raised(h), raised(w))
        } else {
            (height, width)
        };
        Ok(Size { height, width })
    }

    fn enlarged(&self, size: Size) -> Size {
        if !self.enlarges || size.height.min(size.width) >= self.factor {
            return size;
        }
        let (h, w) = (f64::from(size.height), f64::from(size.width));
        let factor = f64::from(self.factor);
        let scale = (factor / h).max(factor / w);
        Size {
            height: whole(h * scale),
            width: whole(w * scale),
        }
    }

    pub(super) fn largest(&self, max_pixels: u64) -> (u64, u32) {
        // Rounding up goes beyond the input by one factor a side at most, and never beyond the most pixels.
        let (factor, frames) = (u64::from(self.factor), u64::from(self.frames));
        let unit = factor * factor;
        let least = self.min_pixels / frames;
        let most = (self.max_pixels / frames).max(unit * u64::from(MAX_ASPECT));
        let pixels = most.min(max_pixels.max(least) * 5 / 4 + unit * u64::from(MAX_ASPECT));
        (pixels, narrowed(pixels / unit))
    }
}

/// The largest size of the same form within a number of rows (Gemma 4).
#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Budget {
    /// Pixels along a side of what becomes one row.
    pub factor: u32,
    pub rows: u32,
}

impl Budget {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let (h, w) = (f64::from(size.height), f64::from(size.width));
        let step = f64::from(self.factor);
        let pixels = u64::from(self.rows) * area(square(self.factor));
        let scale = (float(pixels) / float(area(size))).sqrt();
        let steps = |side: f64| whole((scale * side / step).floor());
        let (rows, columns) = match (steps(h), steps(w)) {
            (0, _) => (1, whole((w / h).floor()).min(self.rows)),
            (_, 0) => (whole((h / w).floor()).min(self.rows), 1),
            both => both,
        };
        let resized = Size {
            height: rows.max(1) * self.factor,
            width: columns.max(1) * self.factor,
        };
        gridded(View::whole(resized), self.factor)
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let pixels = u64::from(self.rows) * area(square(self.factor));
        (pixels, self.rows)
    }
}

/// Never made larger, and padded to whole rows at the bottom and on the right (Kimi).
#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Padded {
    pub patch: u32,
    /// Patches along a side of what becomes one row.
    pub merge: u32,
    pub max_patches: u32,
    /// Patches along a side of a picture.
    pub max_side: u32,
}

impl Padded {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let (h, w) = (f64::from(size.height), f64::from(size.width));
        let count = |side: u32| f64::from((side / self.patch).max(1));
        let patches = count(size.height) * count(size.width);
        let most = self.max_side * self.patch;
        let scale = (f64::from(self.max_patches) / patches)
            .sqrt()
            .min(f64::from(most) / h)
            .min(f64::from(most) / w)
            .min(1.0);
        let side = |side: f64| whole(side * scale).clamp(1, most);
        let resized = Size {
            height: side(h),
            width: side(w),
        };
        let factor = self.patch * self.merge;
        let padded = |side: u32| side.div_ceil(factor) * factor;
        let window = Window::whole(Size {
            height: padded(resized.height),
            width: padded(resized.width),
        });
        gridded(View::part(resized, window), factor)
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let (patches, side) = (u64::from(self.max_patches), u64::from(self.max_side));
        // Patches are counted without the rest of a side, which is a part of one at most; and no side is longer than
        // `side`, so that the other one has `patches / side` where all are too many.
        let whole = patches + 2 * side + side * side / patches.max(1);
        let merge = u64::from(self.merge);
        let padding = 2 * merge * (side + merge);
        let rounded = side.div_ceil(merge) * merge;
        let most = (whole + padding).min(rounded * rounded);
        let pixels = most * area(square(self.patch));
        (pixels, narrowed(most / (merge * merge)))
    }
}
