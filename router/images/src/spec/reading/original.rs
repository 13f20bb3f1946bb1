//! LLaVA in the layout of its authors, whose one file says the same as those of transformers with other keys.

use serde_json::json;

use super::{CONFIG, Files, ImageSpec};
use crate::error::SpecError;
use crate::spec::geometry::{Geometry, Square};

/// Of CLIP, which no file repeats.
const MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
/// Tokenizers have no token for images.
const PLACEHOLDER: &str = "<unk>";

impl Files<'_> {
    pub(super) fn original_llava(&self) -> Result<ImageSpec, SpecError> {
        let config = self.config;
        let name = config["mm_vision_tower"].as_str().unwrap_or_default();
        let side = match config["vision_config"]["image_size"].as_u64() {
            Some(side) => side,
            None if name.ends_with("-336") => 336,
            None => 224,
        };
        let patch = self.of_vision("patch_size").unwrap_or(14);
        let feature = config["mm_vision_select_feature"].as_str();
        let newer = json!({
            "vision_config": {"patch_size": patch},
            "vision_feature_select_strategy": if feature == Some("cls_patch") { "full" } else { "default" },
        });
        let preprocessor = json!({
            "size": {"shortest_edge": side},
            "crop_size": {"height": side, "width": side},
            "image_grid_pinpoints": config["image_grid_pinpoints"],
            "image_mean": MEAN,
        });
        let files = Files::new(&newer, &preprocessor, None);
        let key = "image_aspect_ratio";
        let spec = match config[key].as_str() {
            Some("anyres") => files.pinpoints(None)?,
            Some("pad") => files.padded_llava()?,
            None | Some("square") if config[key].is_null() || config[key].is_string() => {
                files.llava()?
            }
            _ => return Err(SpecError::Key { file: CONFIG, key }),
        };
        Ok(ImageSpec {
            placeholder: PLACEHOLDER,
            ..spec
        })
    }

    /// The picture within a square of the colour that becomes 0.
    fn padded_llava(&self) -> Result<ImageSpec, SpecError> {
        let spec = self.llava()?;
        let Geometry::Cropped { shortest, rows, .. } = spec.geometry else {
            return Ok(spec);
        };
        let geometry = Geometry::Square(Square {
            tile: shortest,
            rows,
            colour: self.mean()?,
        });
        Ok(ImageSpec { geometry, ..spec })
    }
}
