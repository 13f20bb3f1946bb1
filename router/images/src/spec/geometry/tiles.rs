//! InternVL: square tiles of a canvas whose form is nearest to that of the picture, and the whole picture as one tile.

use super::numbers::{area, narrowed, square};
use super::{Plan, Segment, View};
use crate::resize::{Size, Window};

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Tiles {
    /// Pixels of a tile.
    pub tile: Size,
    pub min_tiles: u32,
    pub max_tiles: u32,
    /// Of each tile.
    pub rows: u32,
}

impl Tiles {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let grid = self.grid(size);
        let whole = Size {
            height: grid.height * self.tile.height,
            width: grid.width * self.tile.width,
        };
        let mut views = cut(whole, self.tile, grid);
        if views.len() > 1 {
            views.push(View::whole(self.tile));
        }
        let count = narrowed(views.len() as u64);
        Plan {
            views,
            segments: vec![Segment::Rows(count * self.rows)],
            grid: None,
        }
    }

    /// Tiles down and across.
    fn grid(&self, size: Size) -> Size {
        let aspect = f64::from(size.width) / f64::from(size.height);
        let mut grids: Vec<Size> = (1..=self.max_tiles)
            .flat_map(|width| {
                (1..=self.max_tiles / width).map(move |height| Size { height, width })
            })
            .filter(|grid| area(*grid) >= self.min_tiles.into())
            .collect();
        grids.sort_by_key(|grid| area(*grid));
        let (mut best, mut least) = (square(1), f64::INFINITY);
        for grid in grids {
            let difference = (aspect - f64::from(grid.width) / f64::from(grid.height)).abs();
            // Of equals the one with more tiles, up to twice the pixels of the picture.
            let is_filled = 2 * area(size) > area(self.tile) * area(grid);
            if difference < least {
                (best, least) = (grid, difference);
            } else if difference <= least && is_filled {
                best = grid;
            }
        }
        best
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        let most = if self.max_tiles > 1 {
            self.max_tiles + 1
        } else {
            1
        };
        (u64::from(most) * area(self.tile), most * self.rows)
    }
}

/// The tiles of a picture at size `whole`, row by row.
pub(super) fn cut(whole: Size, tile: Size, grid: Size) -> Vec<View> {
    let rows = (0..grid.height).map(|row| i64::from(row * tile.height));
    rows.flat_map(|top| {
        let columns = (0..grid.width).map(|column| i64::from(column * tile.width));
        columns.map(move |left| {
            let size = tile;
            View::part(whole, Window { top, left, size })
        })
    })
    .collect()
}
