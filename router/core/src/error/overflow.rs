//! Sizes of a request that does not fit into the context.

/// How far a request is too long for the context, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overflow {
    /// The most of prompt and answer together.
    pub context: u32,
    /// The most of a prompt.
    pub most_input: u32,
    pub inputs: PromptTokens,
    /// Of the answer, where the request says how many.
    pub new: Option<u32>,
}

/// The tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptTokens {
    Exactly(usize),
    /// It was not tokenised.
    AtLeast(usize),
    /// As many as there is room for.
    Cut,
}
