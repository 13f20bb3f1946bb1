//! LLaVA-NeXT, LLaVA-OneVision and Granite Vision: the picture in the size of the tower, and once more larger, on the
//! best of several canvases, from which the encoder cuts tiles. Rows of the black frame are left out.

use super::numbers::{area, float, narrowed, square, whole};
use super::{Plan, Segment, View, one};
use crate::error::ImageError;
use crate::resize::{Size, Squared, Window};

/// Above this ratio OneVision makes the grid smaller.
const SMALLEST_RATIO: f64 = 1.1;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Pinpoints {
    /// Pixels along a side of a tile.
    pub tile: u32,
    /// Rows along a side of a tile.
    pub side: u32,
    /// Sizes in pixels, multiples of `tile`.
    pub canvases: Vec<Size>,
    /// Of how many tiles the encoder keeps the rows at most, where that is limited (OneVision).
    pub max_tiles: Option<u32>,
}

impl Pinpoints {
    pub(super) fn plan(&self, size: Size) -> Result<Plan, ImageError> {
        let canvas = self.best(size);
        let most = self.rows_of(canvas);
        let grid = unframed(size, most);
        let kept = self.kept(grid);
        if kept.height.min(kept.width).min(grid.height).min(grid.width) == 0 {
            let Size { height, width } = size;
            let max = if width > height {
                most.width
            } else {
                most.height
            };
            return Err(ImageError::Aspect { width, height, max });
        }
        let resized = fitted(size, canvas);
        let window = Window {
            top: -i64::from((canvas.height - resized.height) / 2),
            left: -i64::from((canvas.width - resized.width) / 2),
            size: canvas,
        };
        // A row of the encoder stands behind each line.
        let rows = self.side * self.side + kept.height * (kept.width + 1);
        Ok(Plan {
            views: vec![View::whole(square(self.tile)), View::part(resized, window)],
            segments: vec![Segment::Rows(rows)],
            grid: Some(grid),
        })
    }

    /// The canvas that shows the most pixels of the picture, and of these the smallest.
    fn best(&self, size: Size) -> Size {
        let shown = |canvas: &Size| {
            let (h, w) = (f64::from(size.height), f64::from(size.width));
            let scale = (f64::from(canvas.width) / w).min(f64::from(canvas.height) / h);
            let scaled = Size {
                height: whole(h * scale),
                width: whole(w * scale),
            };
            area(scaled).min(area(size))
        };
        // The first of equals.
        let canvases = self.canvases.iter().rev();
        let best = canvases.max_by_key(|canvas| (shown(canvas), std::cmp::Reverse(area(**canvas))));
        best.copied().unwrap_or(square(self.tile))
    }

    fn rows_of(&self, canvas: Size) -> Size {
        Size {
            height: canvas.height / self.tile * self.side,
            width: canvas.width / self.tile * self.side,
        }
    }

    /// The grid that the decoder reads.
    fn kept(&self, grid: Size) -> Size {
        let Some(tiles) = self.max_tiles else {
            return grid;
        };
        let most = u64::from(tiles) * area(square(self.side));
        let ratio = (float(area(grid)) / float(most)).sqrt();
        if ratio <= SMALLEST_RATIO {
            return grid;
        }
        Size {
            height: floor_division(grid.height.into(), ratio),
            width: floor_division(grid.width.into(), ratio),
        }
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let pixels = self.canvases.iter().map(|canvas| area(*canvas));
        let pixels = pixels.max().unwrap_or(0) + area(square(self.tile));
        let rows = self.canvases.iter().map(|canvas| {
            let grid = self.rows_of(*canvas);
            let most = self.max_tiles.map_or(u64::MAX, |tiles| {
                // 1.1 squared.
                u64::from(tiles) * area(square(self.side)) * 121 / 100 + 1
            });
            area(grid).min(most) + u64::from(grid.height)
        });
        let rows = rows.max().unwrap_or(0) + area(square(self.side));
        (pixels, narrowed(rows))
    }
}

/// A picture of LLaVA 1.5, and each of several pictures of OneVision, of which one row stands behind it: in the size of
/// the tower alone.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Square {
    pub tile: u32,
    pub rows: u32,
    /// Around the picture.
    pub colour: [u8; 3],
}

impl Square {
    pub(super) fn plan(&self) -> Plan {
        let view = View {
            squared: Some(Squared::Middle(self.colour)),
            ..View::whole(square(self.tile))
        };
        one(view, self.rows)
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        (area(square(self.tile)), self.rows)
    }
}

/// As large as `canvas` shows all of it.
fn fitted(size: Size, canvas: Size) -> Size {
    let (h, w) = (f64::from(size.height), f64::from(size.width));
    let (by_height, by_width) = (f64::from(canvas.height) / h, f64::from(canvas.width) / w);
    if by_width < by_height {
        Size {
            height: whole((h * by_width).ceil()).clamp(1, canvas.height),
            width: canvas.width,
        }
    } else {
        Size {
            height: canvas.height,
            width: whole((w * by_height).ceil()).clamp(1, canvas.width),
        }
    }
}

/// The rows and columns of `grid` that show a picture of this form.
fn unframed(size: Size, grid: Size) -> Size {
    let (h, w) = (f64::from(size.height), f64::from(size.width));
    let (rows, columns) = (f64::from(grid.height), f64::from(grid.width));
    let without_frame = |whole: u32, inner: u32| whole - whole.saturating_sub(inner) / 2 * 2;
    if w / h > columns / rows {
        let inner = nearly_whole(h * (columns / w));
        Size {
            height: without_frame(grid.height, inner),
            width: grid.width,
        }
    } else {
        let inner = nearly_whole(w * (rows / h));
        Size {
            height: grid.height,
            width: without_frame(grid.width, inner),
        }
    }
}

/// Python's `int(round(x, 7))`.
fn nearly_whole(x: f64) -> u32 {
    if x.floor() + 1.0 - x <= 5e-8 {
        whole(x) + 1
    } else {
        whole(x)
    }
}

/// Python's `a // b`.
fn floor_division(a: f64, b: f64) -> u32 {
    let quotient = (a - a % b) / b;
    let floor = quotient.floor();
    whole(if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    })
}
