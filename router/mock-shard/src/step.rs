//! A step, as the mock and its tests speak of it.

use text_generation_proto::v1;

/// What one step was asked to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MockStep {
    /// Parts of prompts, and their tokens.
    pub chunks: usize,
    pub chunk_tokens: u32,
    pub decodes: usize,
    /// Rows with a mask.
    pub constrained: usize,
    /// Of the encoder of images.
    pub layers: u32,
    /// The most tokens that a decode may get.
    pub width: u32,
    /// Rows that got a hint.
    pub hints: usize,
}

impl MockStep {
    pub(crate) fn of(plan: &v1::StepPlan) -> Self {
        Self {
            chunks: plan.chunks.len(),
            chunk_tokens: plan.chunks.iter().map(|chunk| chunk.count).sum(),
            decodes: plan.decode.len(),
            constrained: plan.constrained.len(),
            layers: plan.encode.iter().map(|encode| encode.layers).sum(),
            width: plan.widths.iter().copied().max().unwrap_or(1),
            hints: plan.hints.len(),
        }
    }
}
