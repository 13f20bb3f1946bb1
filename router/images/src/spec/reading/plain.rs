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
            geometry: square(
                self.of_config(&visual["image_size"], "image_size")?,
                "image_size",
                rows,
            )?,
            several: None,
        })
    }

    /// InternLM-XComposer 2, whose code begins what stands behind a picture as it begins a text.
    pub(super) fn xcomposer2(&self) -> Result<ImageSpec, SpecError> {
        let side = self.of_config(&self.config["img_size"], "img_size")?;
        let across = side / self.of_vision("patch_size").unwrap_or(14);
        self.check_rows(u64::from(across) * u64::from(across), 1, "img_size")?;
        Ok(ImageSpec {
            placeholder: "<unk>",
            marker: "<unk>",
            before: "",
            after: "<s>",
            around: ("", ""),
            filter: Filter::Bicubic,
            geometry: square(side, "img_size", across * across)?,
            several: None,
        })
    }
}

/// A square with this side, which `config.json` has under `key`.
fn square(side: u32, key: &'static str, rows: u32) -> Result<Geometry, SpecError> {
    if side > MOST_SIDE {
        return Err(SpecError::Key { file: CONFIG, key });
    }
    let size = Size {
        height: side,
        width: side,
    };
    Ok(Geometry::Fixed { size, rows })
}
