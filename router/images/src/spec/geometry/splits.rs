//! Idefics 3 and SmolVLM: the picture is made as long as the model sees, cut into squares with marks between them, and
//! followed by the whole as one square.

use super::numbers::{area, narrowed, square, whole};
use super::tiles::cut;
use super::{Plan, Segment, View};
use crate::resize::Size;

/// Rows and columns for which tokenizers have marks.
pub(in crate::spec) const MOST_SPLITS: u32 = 6;
/// No side is made longer, whatever the files say.
const MOST_PIXELS: u32 = 4096;

const AROUND: &str = "<fake_token_around_image>";
const GLOBAL: &str = "<global-img>";
const LINE: &str = "\n";
/// Behind the last line, before the whole picture.
const LAST_LINE: &str = "\n\n";
const MARKS: [[&str; 6]; 6] = [
    [
        "<row_1_col_1>",
        "<row_1_col_2>",
        "<row_1_col_3>",
        "<row_1_col_4>",
        "<row_1_col_5>",
        "<row_1_col_6>",
    ],
    [
        "<row_2_col_1>",
        "<row_2_col_2>",
        "<row_2_col_3>",
        "<row_2_col_4>",
        "<row_2_col_5>",
        "<row_2_col_6>",
    ],
    [
        "<row_3_col_1>",
        "<row_3_col_2>",
        "<row_3_col_3>",
        "<row_3_col_4>",
        "<row_3_col_5>",
        "<row_3_col_6>",
    ],
    [
        "<row_4_col_1>",
        "<row_4_col_2>",
        "<row_4_col_3>",
        "<row_4_col_4>",
        "<row_4_col_5>",
        "<row_4_col_6>",
    ],
    [
        "<row_5_col_1>",
        "<row_5_col_2>",
        "<row_5_col_3>",
        "<row_5_col_4>",
        "<row_5_col_5>",
        "<row_5_col_6>",
    ],
    [
        "<row_6_col_1>",
        "<row_6_col_2>",
        "<row_6_col_3>",
        "<row_6_col_4>",
        "<row_6_col_5>",
        "<row_6_col_6>",
    ],
];

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Splits {
    /// What the longer side of every picture becomes.
    pub longest: u32,
    /// Pixels along a side of a square.
    pub tile: u32,
    /// Of each square.
    pub rows: u32,
    pub is_split: bool,
}

impl Splits {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let first = self.first(size);
        let tile = square(self.tile);
        let second = self.multiple(first);
        let grid = Size {
            height: second.height / self.tile,
            width: second.width / self.tile,
        };
        let before = |sizes: &[Size], view: View| View {
            before: sizes.to_vec(),
            ..view
        };
        if !self.is_split || area(grid) == 1 {
            return Plan {
                views: vec![before(&[first], View::whole(tile))],
                segments: self
                    .square_of(GLOBAL)
                    .into_iter()
                    .chain([Segment::Token(AROUND)])
                    .collect(),
                grid: None,
            };
        }
        let tiles = cut(second, tile, grid).into_iter();
        let mut views: Vec<View> = tiles.map(|view| before(&[first], view)).collect();
        views.push(before(&[first, second], View::whole(tile)));
        Plan {
            views,
            segments: self.segments(grid),
            grid: None,
        }
    }

    /// The longer side becomes as long as the model sees, the other one even.
    fn first(&self, size: Size) -> Size {
        let longest = self.longest;
        let (h, w) = (f64::from(size.height), f64::from(size.width));
        let aspect = w / h;
        let even = |side: f64| whole(side).next_multiple_of(2).max(1);
        let scaled = if size.width >= size.height {
            Size {
                height: even(f64::from(longest) / aspect),
                width: longest,
            }
        } else {
            Size {
                height: longest,
                width: even(f64::from(longest) * aspect),
            }
        };
        below(scaled, MOST_PIXELS)
    }

    /// Both sides are rounded up to whole squares.
    fn multiple(&self, size: Size) -> Size {
        let aspect = f64::from(size.width) / f64::from(size.height);
        let up = |side: u32| side.max(1).next_multiple_of(self.tile);
        if size.width >= size.height {
            let width = up(size.width);
            let height = up(whole(f64::from(width) / aspect));
            Size { height, width }
        } else {
            let height = up(size.height);
            let width = up(whole(f64::from(height) * aspect));
            Size { height, width }
        }
    }

    fn square_of(&self, mark: &'static str) -> [Segment; 3] {
        [
            Segment::Token(AROUND),
            Segment::Token(mark),
            Segment::Rows(self.rows),
        ]
    }

    fn segments(&self, grid: Size) -> Vec<Segment> {
        let mut segments = Vec::new();
        for (row, marks) in (1..=grid.height).zip(MARKS) {
            for mark in marks.into_iter().take(grid.width as usize) {
                segments.extend(self.square_of(mark));
            }
            let end = if row == grid.height { LAST_LINE } else { LINE };
            segments.push(Segment::Text(end));
        }
        segments.extend(self.square_of(GLOBAL));
        segments.push(Segment::Token(AROUND));
        segments
    }

    /// Squares along the longer side.
    fn most(&self) -> u32 {
        // A side that is rounded to an even number may be one pixel longer than the longest.
        if self.is_split {
            (self.longest + 1).min(MOST_PIXELS).div_ceil(self.tile)
        } else {
            1
        }
    }

    pub(super) fn tokens(&self) -> Vec<&'static str> {
        let most = self.most() as usize;
        let marks = MARKS.into_iter().take(most);
        let marks = marks.flat_map(|row| row.into_iter().take(most));
        let marks = marks.filter(|_| most > 1);
        [AROUND, GLOBAL].into_iter().chain(marks).collect()
    }

    pub(super) fn texts(&self) -> Vec<&'static str> {
        if self.most() > 1 {
            vec![LINE, LAST_LINE]
        } else {
            Vec::new()
        }
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let most = self.most();
        let squares = if most > 1 { most * most + 1 } else { 1 };
        let pixels = u64::from(squares) * area(square(self.tile));
        (pixels, narrowed(u64::from(squares) * u64::from(self.rows)))
    }
}

/// Scaled down where a side is longer than `most`.
fn below(size: Size, most: u32) -> Size {
    let Size { height, width } = size;
    let aspect = f64::from(width) / f64::from(height);
    if width >= height && width > most {
        Size {
            height: whole(f64::from(most) / aspect).max(1),
            width: most,
        }
    } else if height > width && height > most {
        Size {
            height: most,
            width: whole(f64::from(most) * aspect).max(1),
        }
    } else {
        size
    }
}
