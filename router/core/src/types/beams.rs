//! Beam search, as a request asks for it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the most probable texts are looked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beams {
    /// Texts that are written side by side.
    pub width: u32,
    /// A text's score is the sum of its log-probabilities, divided by its length to this power.
    pub length_penalty: f32,
    pub early_stopping: EarlyStopping,
}

/// When a search ends before its longest text, in the words of transformers: `true` as soon as there are as many finished
/// texts as beams; `false` when no text that is being written scores better, at the length that it has, than the worst
/// finished one; `"never"` when none could at any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected true, false or \"never\"")]
pub enum EarlyStopping {
    Flag(bool),
    Word(Never),
}

/// The word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Never {
    Never,
}

/// The first of these fields that says something of a search, as none does where it is left out or has its default.
pub fn field_of_beams(
    length_penalty: Option<f32>,
    early_stopping: Option<EarlyStopping>,
) -> Option<&'static str> {
    if length_penalty.is_some_and(|given| given != 1.0) {
        return Some("length_penalty");
    }
    let stopping = early_stopping.unwrap_or_default() != EarlyStopping::default();
    stopping.then_some("early_stopping")
}

impl EarlyStopping {
    /// As many finished texts as beams are enough.
    pub fn is_eager(self) -> bool {
        self == Self::Flag(true)
    }

    /// A text is given up only where it cannot become better.
    pub fn is_never(self) -> bool {
        self == Self::Word(Never::Never)
    }
}

impl Default for EarlyStopping {
    fn default() -> Self {
        Self::Flag(false)
    }
}
