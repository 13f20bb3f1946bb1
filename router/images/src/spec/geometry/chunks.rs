//! Llama 4: the picture keeps its form on a canvas of tiles with marks between them, black at the right and below,
//! followed by the whole as one tile.

use super::numbers::{area, narrowed, square, whole};
use super::tiles::cut;
use super::{Plan, Segment, View};
use crate::resize::Size;

const START: &str = "<|image_start|>";
const END: &str = "<|image_end|>";
const WHOLE: &str = "<|image|>";
const BETWEEN_COLUMNS: &str = "<|tile_x_separator|>";
const LINE: &str = "<|tile_y_separator|>";

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Chunks {
    /// Pixels along a side of a tile.
    pub tile: u32,
    /// Of each tile.
    pub rows: u32,
    pub max_tiles: u32,
    /// Whether small pictures are made as large as their canvas.
    pub fills: bool,
}

impl Chunks {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let canvas = self.canvas(size);
        let resized = self.resized(size, canvas);
        let grid = Size {
            height: canvas.height / self.tile,
            width: canvas.width / self.tile,
        };
        let mut views = cut(resized, square(self.tile), grid);
        if views.len() > 1 {
            views.push(View::whole(square(self.tile)));
        }
        Plan {
            views,
            segments: self.segments(grid),
            grid: None,
        }
    }

    /// The canvas that makes the picture least larger, or else least smaller, and of these the smallest. Scales are
    /// compared with the 32 bits that torch has.
    fn canvas(&self, size: Size) -> Size {
        let canvases = (1..=self.max_tiles).flat_map(|height| {
            (1..=self.max_tiles / height).map(move |width| Size {
                height: height * self.tile,
                width: width * self.tile,
            })
        });
        let scale = |canvas: Size| {
            let down = single(canvas.height) / single(size.height);
            down.min(single(canvas.width) / single(size.width))
        };
        let order = |a: Size, b: Size| {
            let (a_scale, b_scale) = (scale(a), scale(b));
            let by_scale = if a_scale >= 1.0 && b_scale >= 1.0 && !self.fills {
                a_scale.total_cmp(&b_scale)
            } else {
                b_scale.total_cmp(&a_scale)
            };
            by_scale.then(area(a).cmp(&area(b)))
        };
        canvases
            .min_by(|a, b| order(*a, *b))
            .unwrap_or(square(self.tile))
    }

    /// As large as fits on the canvas in its own form; no larger than it is, or than a tile.
    fn resized(&self, size: Size, canvas: Size) -> Size {
        let along = |length: u32, canvas: u32| {
            let wanted = if self.fills {
                canvas
            } else {
                length.max(self.tile)
            };
            Target {
                length: wanted.min(canvas),
                is_single: self.fills || canvas < wanted,
            }
        };
        let (down, across) = (
            along(size.height, canvas.height),
            along(size.width, canvas.width),
        );
        let (scale_h, scale_w) = (down.scale(size.height), across.scale(size.width));
        let (height, width) = if scale_w.is_below(scale_h) {
            (scale_w.times(size.height).min(down.length), across.length)
        } else {
            (down.length, scale_h.times(size.width).min(across.length))
        };
        Size {
            height: height.max(1),
            width: width.max(1),
        }
    }

    fn segments(&self, grid: Size) -> Vec<Segment> {
        let mut segments = vec![Segment::Token(START)];
        if area(grid) > 1 {
            for _ in 0..grid.height {
                for column in 0..grid.width {
                    if column > 0 {
                        segments.push(Segment::Token(BETWEEN_COLUMNS));
                    }
                    segments.push(Segment::Rows(self.rows));
                }
                segments.push(Segment::Token(LINE));
            }
        }
        segments.extend([
            Segment::Token(WHOLE),
            Segment::Rows(self.rows),
            Segment::Token(END),
        ]);
        segments
    }

    pub(super) fn tokens() -> Vec<&'static str> {
        vec![START, BETWEEN_COLUMNS, LINE, WHOLE, END]
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let most = if self.max_tiles > 1 {
            self.max_tiles + 1
        } else {
            1
        };
        (
            u64::from(most) * area(square(self.tile)),
            narrowed(u64::from(most) * u64::from(self.rows)),
        )
    }
}

/// What a side may become. Where it is a length of the canvas, the processor counts on with 32 bits.
#[derive(Clone, Copy)]
struct Target {
    length: u32,
    is_single: bool,
}

impl Target {
    fn scale(self, length: u32) -> Scale {
        if self.is_single {
            Scale::Single(single(self.length) / single(length))
        } else {
            Scale::Double(f64::from(self.length) / f64::from(length))
        }
    }
}

#[derive(Clone, Copy)]
enum Scale {
    Single(f32),
    Double(f64),
}

impl Scale {
    fn times(self, length: u32) -> u32 {
        match self {
            Self::Single(scale) => whole(f64::from((single(length) * scale).floor())),
            Self::Double(scale) => whole((f64::from(length) * scale).floor()),
        }
    }

    fn is_below(self, other: Self) -> bool {
        match (self, other) {
            (Self::Double(a), Self::Double(b)) => a < b,
            (a, b) => a.single() < b.single(),
        }
    }

    fn single(self) -> f32 {
        match self {
            Self::Single(scale) => scale,
            #[expect(clippy::cast_possible_truncation, reason = "rounded, as by torch")]
            Self::Double(scale) => scale as f32,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "rounded, as by torch")]
fn single(length: u32) -> f32 {
    length as f32
}
