//! Families that look at a picture as a whole.

use serde_json::Value;

use super::{CONFIG, Files, ImageSpec, MOST_SIDE};
use crate::error::SpecError;
use crate::resize::Filter;
use crate::spec::geometry::{Budget, Filled, Geometry, Padded, Smart};

impl Files<'_> {
    pub(super) fn llava(&self) -> Result<ImageSpec, SpecError> {
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
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Cropped {
                shortest,
                crop,
                rows,
            },
            several: None,
        })
    }

    pub(super) fn pixtral(&self) -> Result<ImageSpec, SpecError> {
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
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Longest {
                longest,
                patch,
                row_end: "[IMG_BREAK]",
                end: "[IMG_END]",
            },
            several: None,
        })
    }

    pub(super) fn qwen(
        &self,
        patch: u32,
        (least, most): (u64, u64),
    ) -> Result<ImageSpec, SpecError> {
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
            around: ("<|vision_start|>", "<|vision_end|>"),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Smart(Smart {
                factor,
                min_pixels: limit("min_pixels", "shortest_edge", least)?,
                max_pixels: limit("max_pixels", "longest_edge", most)?,
                frames: 1,
                enlarges: false,
            }),
            several: None,
        })
    }

    /// Aria, whose `config.json` says how many rows a square of so many patches makes.
    pub(super) fn filled(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_rescale", "do_normalize"])?;
        let key = "split_image";
        if self.preprocessor[key] == Value::Bool(true) {
            return Err(self.refused(key, "true"));
        }
        let longest = self.number("max_image_size", 980)?;
        let shortest = self.number("min_image_size", 336)?;
        let patch = self.vision_number("patch_size")?;
        if longest > MOST_SIDE || !longest.is_multiple_of(patch) {
            return Err(self.refused("max_image_size", longest));
        }
        if shortest > longest {
            return Err(self.refused("min_image_size", shortest));
        }
        let (file, key) = (CONFIG, "projector_patch_to_query_dict");
        let patches = (longest / patch) * (longest / patch);
        let rows = match (&self.config[key], patches) {
            (Value::Null, 1225) => Some(128),
            (Value::Null, 4900) => Some(256),
            (counts, _) => counts[patches.to_string().as_str()].as_u64(),
        };
        let rows = rows.and_then(|rows| u32::try_from(rows).ok());
        let rows = rows.ok_or(SpecError::Key { file, key })?;
        self.check_rows(rows.into(), 1, key)?;
        Ok(ImageSpec {
            placeholder: "<|img|>",
            marker: "<|img|>",
            before: "",
            after: "",
            around: ("<fim_prefix>", "<fim_suffix>"),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Filled(Filled {
                longest,
                shortest,
                patch,
                rows,
            }),
            several: None,
        })
    }

    pub(super) fn minimax(&self) -> Result<ImageSpec, SpecError> {
        Ok(ImageSpec {
            placeholder: "]<]image[>[",
            marker: "]<]image[>[",
            before: "]<]start of image[>[",
            after: "]<]end of image[>[",
            around: ("", ""),
            ..self.qwen(14, (4 * 28 * 28, 28 * 28 * 576))?
        })
    }

    pub(super) fn glm(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let factor = self.row(("patch_size", 14), ("merge_size", 2))?;
        let size = &self.preprocessor["size"];
        let limit = |key: &str, default| self.pixels([&size[key], &Value::Null], default, "size");
        Ok(ImageSpec {
            placeholder: "<|image|>",
            marker: "<|image|>",
            before: "",
            after: "",
            around: ("<|begin_of_image|>", "<|end_of_image|>"),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Smart(Smart {
                factor,
                min_pixels: limit("shortest_edge", 112 * 112)?,
                max_pixels: limit("longest_edge", 28 * 28 * 15_000)?,
                frames: self.number("temporal_patch_size", 2)?,
                enlarges: true,
            }),
            several: None,
        })
    }

    pub(super) fn gemma4(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale"])?;
        let factor = self.row(("patch_size", 16), ("pooling_kernel_size", 3))?;
        Ok(ImageSpec {
            placeholder: "<|image|>",
            marker: "<|image|>",
            before: "<|image>",
            after: "<image|>",
            around: ("", ""),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Budget(Budget {
                factor,
                rows: self.number("max_soft_tokens", 280)?,
            }),
            several: None,
        })
    }

    /// With the keys of transformers, or those of the authors' own code, which stand apart.
    pub(super) fn kimi(&self) -> Result<ImageSpec, SpecError> {
        const OWN: &str = "media_proc_cfg";
        let files = self.preprocessor;
        let own = &files[OWN];
        let number = |new: &'static str, old: &str, default: u32| {
            let value = if own.is_object() {
                &own[old]
            } else {
                &files[new]
            };
            if value.is_null() {
                return Ok(default);
            }
            self.whole(value, if own.is_object() { OWN } else { new })
        };
        if !own.is_object() {
            self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        }
        if !own["fixed_output_tokens"].is_null() {
            return Err(self.refused(OWN, "with fixed_output_tokens"));
        }
        let max_side = match &files["size"]["max_height"] {
            Value::Null => number("size", "patch_limit_on_one_side", 512)?,
            side => self.whole(side, "size")?,
        };
        let padded = Padded {
            patch: number("patch_size", "patch_size", 14)?,
            merge: number("merge_size", "merge_kernel_size", 2)?,
            max_patches: number("max_patches", "in_patch_limit", 16_384)?,
            max_side,
        };
        self.padded(padded, "<|media_begin|>image<|media_content|>")
    }

    /// Its authors' code alone, which takes no more patches along a side than there are positions.
    pub(super) fn kimi_vl(&self) -> Result<ImageSpec, SpecError> {
        const POSITIONS: u32 = 512;
        let (merge, pads) = ("merge_kernel_size", "pad_input");
        if self.preprocessor[pads] == Value::Bool(false) {
            return Err(self.refused(pads, "false"));
        }
        let merge = match &self.preprocessor[merge] {
            Value::Null => 2,
            value => self.whole(&value[0], merge)?,
        };
        let padded = Padded {
            patch: self.number("patch_size", 14)?,
            merge,
            max_patches: self.number("in_token_limit", 4096)?,
            max_side: (POSITIONS - 1) / merge * merge,
        };
        if padded.max_side == 0 {
            return Err(self.refused("merge_kernel_size", merge));
        }
        self.padded(padded, "<|media_start|>image<|media_content|>")
    }

    fn padded(&self, padded: Padded, before: &'static str) -> Result<ImageSpec, SpecError> {
        let row = padded.patch.saturating_mul(padded.merge);
        if row > MOST_SIDE || padded.max_side > MOST_SIDE {
            return Err(self.refused("patch_size", padded.patch));
        }
        Ok(ImageSpec {
            placeholder: "<|media_pad|>",
            marker: "<|media_pad|>",
            before: "",
            after: "",
            around: (before, "<|media_end|>"),
            filter: self.filter(Filter::Bicubic)?,
            geometry: Geometry::Padded(padded),
            several: None,
        })
    }

    pub(super) fn gemma3(&self) -> Result<ImageSpec, SpecError> {
        self.check_switches(&["do_resize", "do_rescale", "do_normalize"])?;
        let rows = self.config["mm_tokens_per_image"].as_u64();
        let rows = rows.and_then(|rows| u32::try_from(rows).ok());
        Ok(ImageSpec {
            placeholder: "<image_soft_token>",
            marker: "<start_of_image>",
            before: "\n\n<start_of_image>",
            after: "<end_of_image>\n\n",
            around: ("", ""),
            filter: self.filter(Filter::Bilinear)?,
            geometry: Geometry::Fixed {
                size: self.size(&self.preprocessor["size"], "size")?,
                rows: rows.filter(|rows| *rows > 0).ok_or(SpecError::Key {
                    file: CONFIG,
                    key: "mm_tokens_per_image",
                })?,
            },
            several: None,
        })
    }
}
