//! Ovis 2: the fewest tiles that show nine tenths of the picture, which is resized to them whatever its form, and the
//! whole as one tile before them. Marks between tiles are rows of the encoder.

use super::numbers::{area, float, square};
use super::{Plan, Segment, View};
use crate::resize::Size;

/// How much of the picture tiles must show.
const ENOUGH: f64 = 0.9;
/// Around the whole picture and behind the last tile.
const MARKS: u32 = 3;

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Covered {
    /// Pixels along a side of a tile.
    pub tile: u32,
    /// Of each tile.
    pub rows: u32,
    pub max_tiles: u32,
}

impl Covered {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let (columns, lines) = self.grid(size);
        let tiles = columns * lines;
        let mut views = vec![View::whole(square(self.tile))];
        if tiles > 1 {
            views.push(View::whole(Size {
                height: lines * self.tile,
                width: columns * self.tile,
            }));
        }
        Plan {
            views,
            segments: vec![Segment::Rows(self.count(tiles))],
            grid: None,
        }
    }

    /// With a mark between any two tiles.
    fn count(&self, tiles: u32) -> u32 {
        let between = if tiles > 1 {
            tiles * self.rows + tiles - 1
        } else {
            0
        };
        self.rows + MARKS + between
    }

    /// Columns and lines. The processor takes the first number of a grid for lines where it looks at what tiles show,
    /// and for columns where it cuts.
    fn grid(&self, size: Size) -> (u32, u32) {
        let mut grids: Vec<(u32, u32)> = (1..=self.max_tiles)
            .flat_map(|first| (1..=self.max_tiles / first).map(move |second| (first, second)))
            .collect();
        grids.sort_by_key(|(first, second)| first * second);
        let shown = |(lines, columns): (u32, u32)| self.shown(size, lines, columns);
        let mut best = (1, 1);
        let mut most = f64::NEG_INFINITY;
        let mut is_enough = false;
        for grid in grids {
            let share = shown(grid);
            if is_enough && grid.0 * grid.1 > best.0 * best.1 {
                break;
            }
            let is_better = match (is_enough, share > ENOUGH) {
                (false, true) => true,
                (true, false) => false,
                _ => share > most,
            };
            if is_better {
                (best, most, is_enough) = (grid, share, share > ENOUGH);
            }
        }
        best
    }

    /// How much of the picture so many tiles show, each of which makes its part no larger than a tile.
    fn shown(&self, size: Size, lines: u32, columns: u32) -> f64 {
        let (line, column) = (size.height / lines, size.width / columns);
        let mut total = 0.0;
        for y in 0..lines {
            let bottom = if y + 1 == lines {
                size.height
            } else {
                (y + 1) * line
            };
            for x in 0..columns {
                let right = if x + 1 == columns {
                    size.width
                } else {
                    (x + 1) * column
                };
                total += self.part(right - x * column, bottom - y * line);
            }
        }
        total / float(area(size))
    }

    fn part(&self, width: u32, height: u32) -> f64 {
        let (long, short) = (f64::from(width.max(height)), f64::from(width.min(height)));
        let side = f64::from(self.tile);
        if long > side {
            side * (short / long * side)
        } else {
            long * short
        }
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let tiles = if self.max_tiles > 1 {
            self.max_tiles + 1
        } else {
            1
        };
        let pixels = u64::from(tiles) * area(square(self.tile));
        (pixels, self.count(self.max_tiles))
    }
}
