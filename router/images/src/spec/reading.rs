//! Model files to an [`ImageSpec`]: which family it is, and what its files say.

mod tiled;

use serde_json::Value;

use super::ImageSpec;
use super::geometry::{Budget, Geometry, Padded, Smart};
use crate::error::SpecError;
use crate::resize::{Filter, Size};

const CONFIG: &str = "config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";
/// In [`PROCESSOR`]: what was in [`PREPROCESSOR`] before.
const NESTED: &str = "image_processor";

/// Pixels along a side of what one row shows, and of a tile. Arithmetic behind these limits does not overflow.
const MOST_SIDE: u32 = 1 << 12;
/// Of one picture.
const MOST_ROWS: u64 = 1 << 22;
const MOST_PIXELS: u64 = 1 << 30;

pub(super) struct Files<'a> {
    config: &'a Value,
    preprocessor: &'a Value,
    /// Of `preprocessor`.
    file: &'static str,
    processor: Option<&'a Value>,
}

impl<'a> Files<'a> {
    pub(super) fn new(
        config: &'a Value,
        preprocessor: &'a Value,
        processor: Option<&'a Value>,
    ) -> Self {
        let nested = processor.map(|processor| &processor[NESTED]);
        let nested = nested.filter(|nested| nested.is_object());
        Self {
            config,
            preprocessor: nested.unwrap_or(preprocessor),
            file: if nested.is_some() {
                PROCESSOR
            } else {
                PREPROCESSOR
            },
            processor,
        }
    }

    pub(super) fn spec(&self) -> Result<Option<ImageSpec>, SpecError> {
        let family = self.config["model_type"].as_str().unwrap_or_default();
        let sees_as = self.config["vision_config"]["model_type"].as_str();
        match family {
            "llava" if sees_as == Some("pixtral") => self.pixtral().map(Some),
            "llava" => self.llava().map(Some),
            "mistral3" => self.pixtral().map(Some),
            "qwen2_vl" | "qwen2_5_vl" => self.qwen(14, (56 * 56, 28 * 28 * 1280)).map(Some),
            "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => {
                self.qwen(16, (56 * 56, 28 * 28 * 1280)).map(Some)
            }
            "glm4v" | "glm4v_moe" | "glm46v" | "glm_ocr" => self.glm().map(Some),
            "gemma3" => self.gemma3().map(Some),
            "gemma4" => self.gemma4().map(Some),
            "kimi_k25" => self.kimi().map(Some),
            "llava_next" => self.pinpoints(None).map(Some),
            "llava_onevision" => self.onevision().map(Some),
            "internvl" => self.tiles().map(Some),
            "idefics3" | "smolvlm" => self.splits().map(Some),
            _ => Ok(None),
        }
    }

    fn whole(&self, value: &Value, key: &'static str) -> Result<u32, SpecError> {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let file = self.file;
        number
            .filter(|number| (1..=1 << 16).contains(number))
            .ok_or(SpecError::Key { file, key })
    }

    /// The number of `key`, or `default` where there is none.
    fn number(&self, key: &'static str, default: u32) -> Result<u32, SpecError> {
        match &self.preprocessor[key] {
            Value::Null => Ok(default),
            value => self.whole(value, key),
        }
    }

    /// The pixels along a side of one row: a number of patches with so many pixels each.
    fn row(
        &self,
        patch: (&'static str, u32),
        merge: (&'static str, u32),
    ) -> Result<u32, SpecError> {
        let (key, default) = patch;
        let pixels = self
            .number(key, default)?
            .saturating_mul(self.number(merge.0, merge.1)?);
        if pixels > MOST_SIDE {
            return Err(self.refused(key, pixels));
        }
        Ok(pixels)
    }

    /// A limit of pixels under the first of these keys that is there.
    fn pixels(
        &self,
        places: [&Value; 2],
        default: u64,
        key: &'static str,
    ) -> Result<u64, SpecError> {
        let value = places.into_iter().find_map(Value::as_u64);
        let value = value.unwrap_or(default);
        if !(1..=MOST_PIXELS).contains(&value) {
            return Err(self.refused(key, value));
        }
        Ok(value)
    }

    fn check_rows(&self, rows: u64, views: u32, key: &'static str) -> Result<(), SpecError> {
        if rows == 0 || rows.saturating_mul(views.into()) > MOST_ROWS {
            return Err(self.refused(key, format!("of {rows} rows for each of {views} views")));
        }
        Ok(())
    }

    fn refused(&self, key: &'static str, value: impl ToString) -> SpecError {
        SpecError::Value {
            file: self.file,
            key,
            value: value.to_string(),
        }
    }

    /// A number, or an object of `height` and `width`.
    fn size(&self, value: &Value, key: &'static str) -> Result<Size, SpecError> {
        let (height, width) = if value.is_object() {
            (&value["height"], &value["width"])
        } else {
            (value, value)
        };
        Ok(Size {
            height: self.whole(height, key)?,
            width: self.whole(width, key)?,
        })
    }

    fn filter(&self, default: Filter) -> Result<Filter, SpecError> {
        match self.preprocessor["resample"].as_u64() {
            None => Ok(default),
            Some(1) => Ok(Filter::Lanczos),
            Some(2) => Ok(Filter::Bilinear),
            Some(3) => Ok(Filter::Bicubic),
            Some(other) => Err(SpecError::Value {
                file: self.file,
                key: "resample",
                value: other.to_string(),
            }),
        }
    }

    /// Switches of steps that are always made here.
    fn check_switches(&self, needed: &[&'static str]) -> Result<(), SpecError> {
        let off = needed
            .iter()
            .find(|key| self.preprocessor[**key] == Value::Bool(false));
        match off {
            None => Ok(()),
            Some(key) => Err(SpecError::Value {
                file: self.file,
                key,
                value: "false".to_owned(),
            }),
        }
    }

    fn of_vision(&self, key: &'static str) -> Option<u32> {
        let value = self.config["vision_config"][key].as_u64()?;
        u32::try_from(value).ok().filter(|value| *value > 0)
    }

    /// Of the files of a processor, the newer one first.
    fn of_processor(&self, key: &str) -> &Value {
        let newer = self.processor.map(|processor| &processor[key]);
        newer
            .filter(|value| !value.is_null())
            .unwrap_or(&self.preprocessor[key])
    }

    fn llava(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_center_crop", "do_rescale", "do_normalize"])?;
        let size = &self.preprocessor["size"];
        let shortest = if size.is_object() {
            &size["shortest_edge"]
        } else {
            size
        };
        let shortest = self.whole(shortest, "size")?;
        let crop = self.size(&self.preprocessor["crop_size"], "crop_size")?;
        if crop.height.max(crop.width) > shortest {
            return Err(SpecError::Value {
                file: self.file,
                key: "crop_size",
                value: format!("{} x {} of {shortest}", crop.height, crop.width),
            });
        }
        let patch = self.of_vision("patch_size").unwrap_or(14);
        let strategy = self.config["vision_feature_select_strategy"].as_str();
        let class = u32::from(strategy == Some("full"));
        let rows = (crop.height / patch) * (crop.width / patch) + class;
        self.check_rows(rows.into(), 1, "crop_size")?;
        Ok(ImageSpec {
            placeholder: "<image>",
            marker: "<image>",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Cropped {
                shortest,
                crop,
                rows,
            },
        })
    }

    fn pixtral(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let size = &self.preprocessor["size"];
        let longest = match &size["longest_edge"] {
            Value::Null => self.size(size, "size")?.height,
            longest => self.whole(longest, "size")?,
        };
        let patch = match self.of_processor("patch_size") {
            Value::Null => self.of_vision("patch_size").unwrap_or(16),
            patch => self.size(patch, "patch_size")?.height,
        };
        let merge = match &self.config["spatial_merge_size"] {
            Value::Null => 1,
            merge => self.whole(merge, "spatial_merge_size")?,
        };
        let patch = patch.saturating_mul(merge);
        if patch > MOST_SIDE || longest / patch > MOST_SIDE / 4 {
            return Err(self.refused("size", format!("{longest} for patches of {patch}")));
        }
        Ok(ImageSpec {
            placeholder: "[IMG]",
            marker: "[IMG]",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Longest {
                longest,
                patch,
                row_end: "[IMG_BREAK]",
                end: "[IMG_END]",
            },
        })
    }

    fn qwen(&self, patch: u32, (least, most): (u64, u64)) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let files = self.preprocessor;
        let limit = |old: &'static str, new: &str, default: u64| {
            self.pixels([&files[old], &files["size"][new]], default, old)
        };
        let factor = self.row(("patch_size", patch), ("merge_size", 2))?;
        Ok(ImageSpec {
            placeholder: "<|image_pad|>",
            marker: "<|image_pad|>",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Smart(Smart {
                factor,
                min_pixels: limit("min_pixels", "shortest_edge", least)?,
                max_pixels: limit("max_pixels", "longest_edge", most)?,
                frames: 1,
                enlarges: false,
            }),
        })
    }

    fn glm(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let factor = self.row(("patch_size", 14), ("merge_size", 2))?;
        let size = &self.preprocessor["size"];
        let limit = |key: &str, default| self.pixels([&size[key], &Value::Null], default, "size");
        Ok(ImageSpec {
            placeholder: "<|image|>",
            marker: "<|image|>",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Smart(Smart {
                factor,
                min_pixels: limit("shortest_edge", 112 * 112)?,
                max_pixels: limit("longest_edge", 28 * 28 * 15_000)?,
                frames: self.number("temporal_patch_size", 2)?,
                enlarges: true,
            }),
        })
    }

    fn gemma4(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale"])?;
        let factor = self.row(("patch_size", 16), ("pooling_kernel_size", 3))?;
        Ok(ImageSpec {
            placeholder: "<|image|>",
            marker: "<|image|>",
            before: "<|image>",
            after: "<image|>",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Budget(Budget {
                factor,
                rows: self.number("max_soft_tokens", 280)?,
            }),
        })
    }

    fn kimi(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let side = match &self.preprocessor["size"] {
            Value::Null => 512,
            size => self.whole(&size["max_height"], "size")?,
        };
        self.row(("patch_size", 14), ("merge_size", 2))?;
        if side > MOST_SIDE {
            return Err(self.refused("size", side));
        }
        Ok(ImageSpec {
            placeholder: "<|media_pad|>",
            marker: "<|media_pad|>",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Padded(Padded {
                patch: self.number("patch_size", 14)?,
                merge: self.number("merge_size", 2)?,
                max_patches: self.number("max_patches", 16_384)?,
                max_side: side,
            }),
        })
    }

    fn gemma3(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let rows = self.config["mm_tokens_per_image"].as_u64();
        let rows = rows.and_then(|rows| u32::try_from(rows).ok());
        Ok(ImageSpec {
            placeholder: "<image_soft_token>",
            marker: "<start_of_image>",
            before: "\n\n<start_of_image>",
            after: "<end_of_image>\n\n",
            filter: self.filter(Filter::Bilinear)?,
            geometry: Geometry::Fixed {
                size: self.size(&self.preprocessor["size"], "size")?,
                rows: rows.filter(|rows| *rows > 0).ok_or(SpecError::Key {
                    file: CONFIG,
                    key: "mm_tokens_per_image",
                })?,
            },
        })
    }
}
