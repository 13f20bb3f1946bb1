//! Families that look at a picture in tiles.

use serde_json::Value;

use super::{CONFIG, Files, ImageSpec, MOST_SIDE};
use crate::error::SpecError;
use crate::resize::{Filter, Size};
use crate::spec::geometry::{Geometry, MOST_SPLITS, Pinpoints, Slices, Splits, Square};

/// Of one picture. Lists of so many are made.
pub(super) const MOST_TILES: u32 = 256;
const MOST_PINPOINTS: usize = 256;
const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const ANYRES: &str = "anyres_max_";
/// LLaVA-OneVision has pinpoints of up to so many tiles a side where its file names none.
const ONEVISION_SIDE: u32 = 6;

impl Files<'_> {
    /// LLaVA-NeXT and Granite Vision; LLaVA-OneVision with a number of tiles that it keeps at most.
    pub(super) fn pinpoints(&self, max_tiles: Option<u32>) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let (tile, side) = self.tile_of_pinpoints()?;
        let rows = u64::from(side) * u64::from(side);
        self.check_rows(rows, MOST_TILES + 1, "size")?;
        Ok(ImageSpec {
            placeholder: "<image>",
            marker: "<image>",
            before: "",
            after: "",
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Pinpoints(Pinpoints {
                tile,
                side,
                canvases: self.canvases(tile, max_tiles)?,
                max_tiles,
            }),
            several: None,
        })
    }

    pub(super) fn onevision(&self) -> Result<ImageSpec, SpecError> {
        const KEY: &str = "vision_aspect_ratio";
        let ratio = match &self.config[KEY] {
            Value::Null => "anyres_max_9",
            value => value.as_str().unwrap_or_default(),
        };
        let tiles = ratio
            .strip_prefix(ANYRES)
            .and_then(|most| most.parse().ok());
        let tiles = tiles.filter(|tiles| (1..=MOST_TILES).contains(tiles));
        let error = SpecError::Key {
            file: CONFIG,
            key: KEY,
        };
        let spec = self.pinpoints(Some(tiles.ok_or(error)?))?;
        let (tile, side) = self.tile_of_pinpoints()?;
        let square = Square {
            tile,
            rows: side * side + 1,
            colour: self.mean()?,
        };
        Ok(ImageSpec {
            several: Some(Geometry::Square(square)),
            ..spec
        })
    }

    /// The colour that becomes 0.
    pub(super) fn mean(&self) -> Result<[u8; 3], SpecError> {
        const KEY: &str = "image_mean";
        let mean = &self.preprocessor[KEY];
        let numbers = [0, 1, 2].map(|at| match mean {
            // That of the processor of transformers.
            Value::Null => CLIP_MEAN[at],
            mean => mean[at].as_f64().unwrap_or(f64::NAN),
        });
        if numbers.iter().all(|number| (0.0..=1.0).contains(number)) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "cut off, as Python's `int`, from 0 to 255"
            )]
            let colour = numbers.map(|number| (number * 255.0) as u8);
            return Ok(colour);
        }
        let file = self.file;
        Err(SpecError::Key { file, key: KEY })
    }

    /// Pixels and rows along a side of a tile.
    fn tile_of_pinpoints(&self) -> Result<(u32, u32), SpecError> {
        let size = &self.preprocessor["size"];
        let size = match &size["shortest_edge"] {
            Value::Null => self.size(size, "size")?,
            shortest => self.size(shortest, "size")?,
        };
        let crop = match &self.preprocessor["crop_size"] {
            Value::Null => size,
            crop => self.size(crop, "crop_size")?,
        };
        if crop != size || size.height != size.width || size.height > MOST_SIDE {
            let value = format!("{} x {}", crop.height, crop.width);
            return Err(self.refused("crop_size", value));
        }
        let patch = match self.of_processor("patch_size") {
            Value::Null => self.vision_number("patch_size")?,
            patch => self.whole(patch, "patch_size")?,
        };
        if patch > size.height {
            return Err(self.refused("patch_size", patch));
        }
        Ok((size.height, size.height / patch))
    }

    fn canvases(&self, tile: u32, max_tiles: Option<u32>) -> Result<Vec<Size>, SpecError> {
        const KEY: &str = "image_grid_pinpoints";
        let canvases = match &self.preprocessor[KEY] {
            Value::Null if max_tiles.is_some() => default_canvases(tile),
            value => {
                let pairs = value.as_array().map(Vec::as_slice).unwrap_or_default();
                let pairs = pairs.iter().map(|pair| self.canvas(pair, KEY));
                pairs.collect::<Result<Vec<_>, _>>()?
            }
        };
        let fits = |canvas: &Size| {
            let (down, across) = (canvas.height / tile, canvas.width / tile);
            canvas.height.is_multiple_of(tile)
                && canvas.width.is_multiple_of(tile)
                && down * across <= MOST_TILES
        };
        if canvases.is_empty() || canvases.len() > MOST_PINPOINTS {
            return Err(SpecError::Key {
                file: self.file,
                key: KEY,
            });
        }
        match canvases.iter().find(|canvas| !fits(canvas)) {
            None => Ok(canvases),
            Some(Size { height, width }) => {
                Err(self.refused(KEY, format!("[{height}, {width}] for tiles of {tile}")))
            }
        }
    }

    fn canvas(&self, pair: &Value, key: &'static str) -> Result<Size, SpecError> {
        Ok(Size {
            height: self.whole(&pair[0], key)?,
            width: self.whole(&pair[1], key)?,
        })
    }

    /// Idefics 3 and SmolVLM.
    pub(super) fn splits(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let files = self.preprocessor;
        let longest = self.whole(&files["size"]["longest_edge"], "size")?;
        let tile = self.whole(&files["max_image_size"]["longest_edge"], "max_image_size")?;
        let scale = match &self.config["scale_factor"] {
            Value::Null => 2,
            scale => self.whole(scale, "scale_factor")?,
        };
        let step = self.vision_number("patch_size")?.saturating_mul(scale);
        if tile > MOST_SIDE || (longest + 1).div_ceil(tile) > MOST_SPLITS {
            return Err(self.refused("size", format!("{longest} for squares of {tile}")));
        }
        let rows = (tile / step).pow(2);
        self.check_rows(rows.into(), MOST_SPLITS * MOST_SPLITS + 1, "max_image_size")?;
        Ok(ImageSpec {
            placeholder: "<image>",
            marker: "<image>",
            before: "",
            after: "",
            around: ("", ""),
            filter: self.filter(Filter::Lanczos)?,
            geometry: Geometry::Splits(Splits {
                longest,
                tile,
                rows,
                is_split: files["do_image_splitting"] != Value::Bool(false),
            }),
            several: None,
        })
    }

    /// MiniCPM-V, whose `config.json` says how many rows a view makes.
    pub(super) fn slices(&self) -> Result<ImageSpec, SpecError> {
        let side = self.number("scale_resolution", 448)?;
        let patch = self.number("patch_size", 14)?;
        if side > MOST_SIDE || patch > side {
            return Err(self.refused("scale_resolution", side));
        }
        let sliced = self.preprocessor["slice_mode"] != Value::Bool(false);
        let most = self.number("max_slice_nums", 9)?;
        if most > MOST_TILES {
            return Err(self.refused("max_slice_nums", most));
        }
        let rows = self.number("image_feature_size", 64)?;
        let made = &self.config["query_num"];
        if made.as_u64().is_some_and(|made| made != u64::from(rows)) {
            return Err(self.refused("image_feature_size", rows));
        }
        self.check_rows(rows.into(), most + 1, "image_feature_size")?;
        Ok(ImageSpec {
            placeholder: "<unk>",
            marker: "(<image>./</image>)",
            before: "",
            after: "",
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Slices(Slices {
                side,
                patch,
                most: if sliced { most } else { 1 },
                rows,
                is_numbered: self.preprocessor["use_image_id"] == Value::Bool(true),
            }),
            several: None,
        })
    }

    /// A number, which InternVL gives twice, for height and width.
    pub(super) fn vision_number(&self, key: &'static str) -> Result<u32, SpecError> {
        let value = &self.config["vision_config"][key];
        let value = match value.as_array().map(Vec::as_slice) {
            Some([height, width]) if height == width => height,
            _ => value,
        };
        let value = value.as_u64().and_then(|value| u32::try_from(value).ok());
        let value = value.filter(|value| (1..=1 << 10).contains(value));
        value.ok_or(SpecError::Key { file: CONFIG, key })
    }
}

fn default_canvases(tile: u32) -> Vec<Size> {
    let sides = 1..=ONEVISION_SIDE;
    sides
        .clone()
        .flat_map(|down| {
            sides.clone().map(move |across| Size {
                height: down * tile,
                width: across * tile,
            })
        })
        .collect()
}
