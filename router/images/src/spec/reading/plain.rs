//! Families that make every picture one square, whose numbers are in `config.json`: they have no other file.

use serde_json::Value;

use super::{CONFIG, Files, ImageSpec, MOST_SIDE};
use crate::error::SpecError;
use crate::resize::{Filter, Size};
use crate::spec::geometry::Geometry;

/// Rows of Qwen-VL, where its file does not say.
const QUERIES: u32 = 256;

impl Files<'_> {
    /// Qwen-VL of 2023, which numbers the pictures of a conversation.
    pub(super) fn qwen_vl(&self) -> Result<ImageSpec, SpecError> {
        let visual = &self.config["visual"];
        let rows = match &visual["n_queries"] {
            Value::Null => QUERIES,
            queries => self.of_config(queries, "n_queries")?,
        };
        Ok(ImageSpec {
            placeholder: "<imgpad>",
            marker: "<img></img>",
            before: "<img>",
            after: "</img>",
            around: ("Picture {}:", "\n"),
            filter: Filter::Bicubic,
            geometry: self.square(&visual["image_size"], "image_size", rows)?,
            several: None,
        })
    }

    /// A square with the side that `value` of `config.json` says.
    fn square(&self, value: &Value, key: &'static str, rows: u32) -> Result<Geometry, SpecError> {
        let side = self.of_config(value, key)?;
        if side > MOST_SIDE {
            return Err(SpecError::Key { file: CONFIG, key });
        }
        let size = Size {
            height: side,
            width: side,
        };
        Ok(Geometry::Fixed { size, rows })
    }
}
