//! Sizes: what a picture of `height` x `width` is resized to, what is cut out of it, and how many rows that makes.
//!
//! The rounding is that of the processors of transformers 5.24, on whose counts models depend.

use super::{Plan, Segment, View};
use crate::error::ImageError;
use crate::resize::{Size, Window};

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
    Fixed { size: Size, rows: u32 },
    /// Sides are rounded to `factor`, and the area is kept between limits (Qwen's `smart_resize`).
    Smart {
        factor: u32,
        min_pixels: u64,
        max_pixels: u64,
    },
    /// Pictures with a side above `longest` shrink; sides are rounded up to `patch` (Pixtral).
    Longest {
        longest: u32,
        patch: u32,
        row_end: &'static str,
        end: &'static str,
    },
}

const MAX_ASPECT: u32 = 200;

fn one(resized: Size) -> Vec<View> {
    vec![View {
        resized,
        window: Window::whole(resized),
    }]
}

impl Geometry {
    pub(super) fn plan(&self, size: Size, detail: Detail) -> Result<Plan, ImageError> {
        let size = match detail {
            Detail::High => size,
            Detail::Low => within(size, LOW),
        };
        match *self {
            Self::Cropped {
                shortest,
                crop,
                rows,
            } => {
                let resized = shortest_side(size, shortest);
                let window = middle(resized, crop);
                Ok(Plan {
                    views: vec![View { resized, window }],
                    segments: vec![Segment::Rows(rows)],
                    grid: None,
                })
            }
            Self::Fixed { size, rows } => Ok(Plan {
                views: one(size),
                segments: vec![Segment::Rows(rows)],
                grid: None,
            }),
            Self::Smart {
                factor,
                min_pixels,
                max_pixels,
            } => {
                let resized = smart(size, factor, min_pixels, max_pixels)?;
                let grid = Size {
                    height: resized.height / factor,
                    width: resized.width / factor,
                };
                Ok(Plan {
                    views: one(resized),
                    segments: vec![Segment::Rows(grid.height * grid.width)],
                    grid: Some(grid),
                })
            }
            Self::Longest {
                longest,
                patch,
                row_end,
                end,
            } => Ok(lines(size, longest, patch, row_end, end)),
        }
    }

    pub(super) fn largest(&self, max_pixels: u64) -> (u64, u32) {
        let area = |size: Size| u64::from(size.height) * u64::from(size.width);
        match *self {
            Self::Cropped { crop, rows, .. } => (area(crop), rows),
            Self::Fixed { size, rows } => (area(size), rows),
            Self::Smart {
                factor,
                min_pixels,
                max_pixels: most,
            } => {
                // Rounding up goes beyond the input by one factor a side at most, and never beyond `most`.
                let factor = u64::from(factor);
                let pixels = most.min(max_pixels.max(min_pixels) * 5 / 4 + factor * factor);
                (pixels, narrowed(pixels / (factor * factor)))
            }
            Self::Longest { longest, patch, .. } => {
                let side = u64::from(longest.div_ceil(patch) * patch);
                let rows = longest.div_ceil(patch);
                (side * side, rows * rows)
            }
        }
    }
}

fn narrowed(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Scaled down to fit into a square, never up.
fn within(size: Size, side: u32) -> Size {
    let longer = size.height.max(size.width);
    if longer <= side {
        return size;
    }
    let scaled = |length: u32| {
        let scaled =
            (u64::from(length) * u64::from(side) + u64::from(longer) / 2) / u64::from(longer);
        narrowed(scaled).max(1)
    };
    Size {
        height: scaled(size.height),
        width: scaled(size.width),
    }
}

/// The shorter side becomes `shortest`, the longer one is cut off to a whole number. Sides saturate far above what any
/// window reaches into: a picture of 1 x 25,000,000 has its middle as any other.
fn shortest_side(size: Size, shortest: u32) -> Size {
    let (short, long) = (size.height.min(size.width), size.height.max(size.width));
    let long = narrowed(u64::from(shortest) * u64::from(long) / u64::from(short));
    if size.width <= size.height {
        Size {
            height: long,
            width: shortest,
        }
    } else {
        Size {
            height: shortest,
            width: long,
        }
    }
}

/// The crop is at most as large as the picture: [`super::reading`] checks that of every file.
fn middle(resized: Size, crop: Size) -> Window {
    Window {
        top: resized.height.saturating_sub(crop.height) / 2,
        left: resized.width.saturating_sub(crop.width) / 2,
        size: crop,
    }
}

/// Numbers here are far below 2^52, so they are whole in `f64`.
fn whole(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion saturates"
    )]
    let whole = x as u32;
    whole
}

fn smart(size: Size, factor: u32, min_pixels: u64, max_pixels: u64) -> Result<Size, ImageError> {
    let Size { height, width } = size;
    let (short, long) = (height.min(width), height.max(width));
    if u64::from(long) > u64::from(short) * u64::from(MAX_ASPECT) {
        let max = MAX_ASPECT;
        return Err(ImageError::Aspect { width, height, max });
    }
    let (h, w, f) = (f64::from(height), f64::from(width), f64::from(factor));
    // Half-way cases go to the even neighbour, as in Python.
    let rounded = |x: f64| whole((x / f).round_ties_even()) * factor;
    let (by_height, by_width) = (rounded(h), rounded(w));
    let area = u64::from(by_height) * u64::from(by_width);
    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^52")]
    let (min, max) = (min_pixels as f64, max_pixels as f64);
    let (height, width) = if area > max_pixels {
        let beta = (h * w / max).sqrt();
        let floored = |x: f64| (whole((x / beta / f).floor()) * factor).max(factor);
        (floored(h), floored(w))
    } else if area < min_pixels {
        let beta = (min / (h * w)).sqrt();
        let raised = |x: f64| whole((x * beta / f).ceil()) * factor;
        (raised(h), raised(w))
    } else {
        (by_height, by_width)
    };
    Ok(Size { height, width })
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
        views: one(Size {
            height: rows * patch,
            width: columns * patch,
        }),
        segments,
        grid: None,
    }
}
