//! Model files to an [`ImageSpec`]: which family it is, and what its files say.

mod original;
mod plain;
mod shuffled;
mod single;
mod tiled;

use serde_json::Value;

use super::ImageSpec;
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
        if self.config["mm_vision_tower"].is_string() {
            return self.original_llava().map(Some);
        }
        if self.config["visual"].is_object() && family == "qwen" {
            return self.qwen_vl().map(Some);
        }
        if self.config["architectures"][0] == "InternLMXComposer2ForCausalLM" {
            return self.xcomposer2().map(Some);
        }
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
            "kimi_vl" => self.kimi_vl().map(Some),
            "llava_next" => self.pinpoints(None).map(Some),
            "llava_onevision" => self.onevision().map(Some),
            "internvl" => self.tiles().map(Some),
            "internvl_chat" => self.chat_tiles().map(Some),
            "aria" => self.filled().map(Some),
            "minicpmv" => self.slices().map(Some),
            "minimax_m3_vl" => self.minimax().map(Some),
            "step3p7" => self.windows().map(Some),
            "ovis2" => self.covered().map(Some),
            "llama4" => self.chunks().map(Some),
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

    /// A number of `config.json`.
    fn of_config(&self, value: &Value, key: &'static str) -> Result<u32, SpecError> {
        let error = SpecError::Key { file: CONFIG, key };
        self.whole(value, key).map_err(|_| error)
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
}
