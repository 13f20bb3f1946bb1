//! What the answer of a chat may be, as OpenAI's predicted outputs say it.

use serde::Deserialize;
use utoipa::ToSchema;

use super::sampling::check;
use crate::error::ApiError;

/// What the answer of a chat may be.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PredictionBody {
    /// `content`.
    #[schema(example = "content")]
    pub r#type: String,
    pub content: PredictedContent,
}

/// A text, or parts of one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a string or a list of parts of the type `text`"
)]
pub enum PredictedContent {
    Text(String),
    Parts(Vec<PredictedPart>),
}

/// A part of a text.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PredictedPart {
    /// `text`.
    #[schema(example = "text")]
    pub r#type: String,
    pub text: String,
}

impl PredictionBody {
    /// The whole text.
    ///
    /// # Errors
    /// 422 for another type than there is.
    pub fn into_text(self) -> Result<String, ApiError> {
        check(self.r#type == "content", || {
            format!(
                "`prediction.type` must be \"content\". Given: {:?}",
                self.r#type
            )
        })?;
        let parts = match self.content {
            PredictedContent::Text(text) => return Ok(text),
            PredictedContent::Parts(parts) => parts,
        };
        let mut text = String::new();
        for (index, part) in parts.iter().enumerate() {
            check(part.r#type == "text", || {
                let given = &part.r#type;
                format!("`prediction.content[{index}].type` must be \"text\". Given: {given:?}")
            })?;
            text.push_str(&part.text);
        }
        Ok(text)
    }
}
