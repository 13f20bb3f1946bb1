//! Families whose tiles become rows of several patches each: InternVL, Llama 4, Ovis 2 and Step 3.7.

use serde_json::Value;

use super::tiled::MOST_TILES;
use super::{CONFIG, Files, ImageSpec, MOST_SIDE};
use crate::error::SpecError;
use crate::resize::{Filter, Size};
use crate::spec::geometry::{Chunks, Covered, Geometry, Tiles, Windows};

impl Files<'_> {
    /// Llama 4.
    pub(super) fn chunks(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let tile = match &self.preprocessor["size"] {
            Value::Null => Size {
                height: 336,
                width: 336,
            },
            size => self.size(size, "size")?,
        };
        let patch = self.vision_number("patch_size")?;
        let key = "pixel_shuffle_ratio";
        let step = patch * self.merged(&self.config["vision_config"][key], key)?;
        let side = self.side_of(tile, step)?;
        let max_tiles = self.number("max_patches", 16)?;
        self.check_tiles(max_tiles)?;
        self.check_rows(u64::from(side) * u64::from(side), max_tiles + 1, "size")?;
        Ok(ImageSpec {
            placeholder: "<|patch|>",
            marker: "<|image|>",
            before: "",
            after: "",
            around: ("", ""),
            filter: self.filter(Filter::Bilinear)?,
            geometry: Geometry::Chunks(Chunks {
                tile: tile.height,
                rows: side * side,
                max_tiles,
                fills: self.preprocessor["resize_to_max_canvas"] == Value::Bool(true),
            }),
            several: None,
        })
    }

    /// Step 3.7, whose processor knows by itself that 4 x 4 patches become a row.
    pub(super) fn windows(&self) -> Result<ImageSpec, SpecError> {
        const MERGED: u32 = 4;
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let step = self.of_vision("patch_size").unwrap_or(14);
        let step = step.saturating_mul(MERGED);
        let size = match &self.preprocessor["size"] {
            Value::Null => Size {
                height: 728,
                width: 728,
            },
            size => self.size(size, "size")?,
        };
        let whole = self.side_of(size, step)?;
        let key = "patch_size";
        let part = self.number(key, 504)?;
        if !part.is_multiple_of(step) || part > MOST_SIDE {
            return Err(self.refused(key, part));
        }
        let key = "max_image_size";
        let longest = self.number(key, 3024)?;
        let along = longest / part + 1;
        if longest > MOST_SIDE || along * along > MOST_TILES {
            return Err(self.refused(key, longest));
        }
        let rows = |side: u32| u64::from(side) * u64::from(side);
        self.check_rows(rows(whole), 1, "size")?;
        self.check_rows(rows(part / step), MOST_TILES, "patch_size")?;
        Ok(ImageSpec {
            placeholder: "<im_patch>",
            marker: "<im_patch>",
            before: "",
            after: "",
            around: ("", ""),
            filter: self.filter(Filter::Bilinear)?,
            geometry: Geometry::Windows(Windows {
                whole: (size.height, whole * whole),
                part: (part, (part / step) * (part / step)),
                longest,
            }),
            several: None,
        })
    }

    /// Ovis 2.
    pub(super) fn covered(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&[
            "do_resize",
            "do_rescale",
            "do_normalize",
            "use_covering_area_grid",
        ])?;
        let tile = self.size(&self.preprocessor["size"], "size")?;
        let key = "hidden_stride";
        let merge = match &self.config["vision_config"][key] {
            Value::Null => 1,
            value => self.of_config(value, key)?,
        };
        let step = self.vision_number("patch_size")?.saturating_mul(merge);
        let side = self.side_of(tile, step)?;
        let max_tiles = match self.preprocessor["crop_to_patches"] {
            Value::Bool(true) => self.number("max_patches", 12)?,
            _ => 1,
        };
        self.check_tiles(max_tiles)?;
        self.check_rows(u64::from(side) * u64::from(side), max_tiles + 1, "size")?;
        Ok(ImageSpec {
            placeholder: "<IMG_ATOM>",
            marker: "<image>",
            before: "",
            after: "",
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Covered(Covered {
                tile: tile.height,
                rows: side * side,
                max_tiles,
            }),
            several: None,
        })
    }

    /// Rows along a side of a square tile, each of so many pixels.
    fn side_of(&self, tile: Size, step: u32) -> Result<u32, SpecError> {
        let is_square = tile.height == tile.width && tile.height.is_multiple_of(step);
        if !is_square || tile.height > MOST_SIDE {
            return Err(self.refused("size", format!("{} x {}", tile.height, tile.width)));
        }
        Ok(tile.height / step)
    }

    fn check_tiles(&self, max_tiles: u32) -> Result<(), SpecError> {
        if max_tiles > MOST_TILES {
            return Err(self.refused("max_patches", max_tiles));
        }
        Ok(())
    }

    /// Patches along a side of what one row shows.
    fn merged(&self, ratio: &Value, key: &'static str) -> Result<u32, SpecError> {
        let merge = (1.0 / ratio.as_f64().unwrap_or(0.5)).round();
        if !(1.0..=64.0).contains(&merge) {
            return Err(SpecError::Key { file: CONFIG, key });
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small whole number"
        )]
        let merge = merge as u32;
        Ok(merge)
    }

    /// InternVL.
    pub(super) fn tiles(&self) -> Result<ImageSpec, SpecError> {
        let tile = self.size(&self.preprocessor["size"], "size")?;
        self.tiles_of(
            tile,
            self.number("min_patches", 1)?,
            self.number("max_patches", 12)?,
        )
    }

    /// InternVL with the keys of its authors' own code, which are in `config.json`.
    pub(super) fn chat_tiles(&self) -> Result<ImageSpec, SpecError> {
        let (force, max) = ("force_image_size", "max_dynamic_patch");
        let side = match &self.config[force] {
            Value::Null => self.vision_number("image_size")?,
            side => self.of_config(side, force)?,
        };
        let number = |key: &'static str, default| match &self.config[key] {
            Value::Null => Ok(default),
            value => self.of_config(value, key),
        };
        let is_on = |key: &str| self.config[key] == Value::Bool(true);
        let most = if is_on("dynamic_image_size") {
            number(max, 6)?
        } else {
            1
        };
        let key = "use_thumbnail";
        if most > 1 && !is_on(key) {
            return Err(SpecError::Key { file: CONFIG, key });
        }
        let key = "pad2square";
        if is_on(key) {
            return Err(SpecError::Key { file: CONFIG, key });
        }
        let tile = Size {
            height: side,
            width: side,
        };
        self.tiles_of(tile, number("min_dynamic_patch", 1)?.min(most), most)
    }

    fn tiles_of(&self, tile: Size, min_tiles: u32, max_tiles: u32) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let patch = self.vision_number("patch_size")?;
        let key = "downsample_ratio";
        let step = patch * self.merged(&self.config[key], key)?;
        self.check_tiles(max_tiles)?;
        if tile.height.max(tile.width) > MOST_SIDE {
            return Err(self.refused("size", format!("{} x {}", tile.height, tile.width)));
        }
        let rows = (tile.height / step) * (tile.width / step);
        self.check_rows(rows.into(), max_tiles + 1, "size")?;
        Ok(ImageSpec {
            placeholder: "<IMG_CONTEXT>",
            marker: "<IMG_CONTEXT>",
            before: "<img>",
            after: "</img>",
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Tiles(Tiles {
                tile,
                min_tiles,
                max_tiles,
                rows,
            }),
            several: None,
        })
    }
}
