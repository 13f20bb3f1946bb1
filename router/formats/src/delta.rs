//! Deltas: what a piece of generated text adds to the answer.

/// One step of the answer. The joined deltas do not depend on how the text was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    Reasoning(String),
    Content(String),
    /// A call begins. `index` counts the calls of one answer from 0.
    ToolStart {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the arguments. All fragments of a call are together a JSON object, or where the text was cut or stopped
    /// being one, the beginning of a JSON object.
    ToolArguments {
        index: usize,
        fragment: String,
    },
    /// The arguments are complete. A call without this was cut or broken.
    ToolEnd {
        index: usize,
    },
}
