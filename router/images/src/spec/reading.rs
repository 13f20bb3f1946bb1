//! Model files to an [`ImageSpec`]: which family it is, and what its files say.

use serde_json::Value;

use super::ImageSpec;
use super::geometry::Geometry;
use crate::error::SpecError;
use crate::resize::{Filter, Size};

const CONFIG: &str = "config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";

pub(super) struct Files<'a> {
    pub config: &'a Value,
    pub preprocessor: &'a Value,
    pub processor: Option<&'a Value>,
}

impl Files<'_> {
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
            "gemma3" => self.gemma3().map(Some),
            _ => Ok(None),
        }
    }

    fn whole(&self, value: &Value, key: &'static str) -> Result<u32, SpecError> {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let file = PREPROCESSOR;
        number
            .filter(|number| (1..=1 << 16).contains(number))
            .ok_or(SpecError::Key { file, key })
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
                file: PREPROCESSOR,
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
                file: PREPROCESSOR,
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
                file: PREPROCESSOR,
                key: "crop_size",
                value: format!("{} x {} of {shortest}", crop.height, crop.width),
            });
        }
        let patch = self.of_vision("patch_size").unwrap_or(14);
        let strategy = self.config["vision_feature_select_strategy"].as_str();
        let class = u32::from(strategy == Some("full"));
        Ok(ImageSpec {
            placeholder: "<image>",
            marker: "<image>",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Cropped {
                shortest,
                crop,
                rows: (crop.height / patch) * (crop.width / patch) + class,
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
        Ok(ImageSpec {
            placeholder: "[IMG]",
            marker: "[IMG]",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Longest {
                longest,
                patch: patch * merge,
                row_end: "[IMG_BREAK]",
                end: "[IMG_END]",
            },
        })
    }

    fn qwen(&self, patch: u32, (least, most): (u64, u64)) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let files = self.preprocessor;
        let limit = |old: &str, new: &str, default: u64| {
            let value = files[old].as_u64().or_else(|| files["size"][new].as_u64());
            value.unwrap_or(default).max(1)
        };
        let number = |key: &'static str, default: u32| match &files[key] {
            Value::Null => Ok(default),
            value => self.whole(value, key),
        };
        let factor = number("patch_size", patch)? * number("merge_size", 2)?;
        Ok(ImageSpec {
            placeholder: "<|image_pad|>",
            marker: "<|image_pad|>",
            before: "",
            after: "",
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Smart {
                factor,
                min_pixels: limit("min_pixels", "shortest_edge", least),
                max_pixels: limit("max_pixels", "longest_edge", most),
            },
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
