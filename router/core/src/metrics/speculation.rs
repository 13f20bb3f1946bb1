//! What is recorded of drafts.

use metrics::{Counter, counter};
use text_generation_client::types::Drafted;

use super::names::{
    SPECULATION_ACCEPTED, SPECULATION_ACCEPTED_PER_POSITION, SPECULATION_DRAFTS,
    SPECULATION_WINDOWS,
};

/// Handles of what the batcher records of windows with drafts.
#[derive(Debug)]
pub(crate) struct SpeculationMetrics {
    windows: Counter,
    drafts: Counter,
    accepted: Counter,
    /// By the place in the window.
    by_position: Vec<Counter>,
}

impl SpeculationMetrics {
    /// For windows of at most so many tokens.
    pub(crate) fn new(widest: u32) -> Self {
        let at = |position: u32| counter!(SPECULATION_ACCEPTED_PER_POSITION, "position" => position.to_string());
        Self {
            windows: counter!(SPECULATION_WINDOWS),
            drafts: counter!(SPECULATION_DRAFTS),
            accepted: counter!(SPECULATION_ACCEPTED),
            by_position: (0..widest.saturating_sub(1)).map(at).collect(),
        }
    }

    /// A row got `count` tokens of a step whose window had these drafts.
    pub(crate) fn record(&self, count: u32, drafts: Drafted) {
        if drafts.checked == 0 {
            return;
        }
        let accepted = count.saturating_sub(1);
        self.windows.increment(1);
        self.drafts.increment(u64::from(drafts.checked));
        self.accepted.increment(u64::from(accepted));
        for counter in self.by_position.iter().take(accepted as usize) {
            counter.increment(1);
        }
    }
}
