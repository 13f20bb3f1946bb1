//! Charges of tenants for the tokens of a plan, so that they are served in turn: see `queue/turns.rs`.

use text_generation_client::types::{Chunk, Row};

use super::Batcher;
use crate::queue::Entry;
use crate::queue::turns::{OUTPUT_TOKEN, PROMPT_TOKEN};

/// What a chunk of so many tokens costs. What is computed again, because the request paused or the shards lost it, is not
/// its tenant's doing.
pub(super) fn prompt_cost(entry: &Entry, count: u32) -> u64 {
    if entry.generated > 0 {
        return 0;
    }
    u64::from(count) * PROMPT_TOKEN
}

impl Batcher {
    /// Charges the owner of a row for the tokens of its window beyond the first, which its plan has charged.
    pub(super) fn charge_window(&mut self, row: Row, count: u32) {
        let turns = &mut self.queue.turns;
        if count < 2 || !turns.is_contended() {
            return;
        }
        if let Some(Some(running)) = self.rows.get(row.index()) {
            turns.charge(running.entry.tenant(), u64::from(count - 1) * OUTPUT_TOKEN);
            turns.lift();
        }
    }

    /// Charges the owners of a plan's `chunks`, and of the rows that get `tokens`. It costs nothing where no tenant waits
    /// for another.
    pub(super) fn charge(&mut self, chunks: &[Chunk], tokens: &[Row]) {
        let turns = &mut self.queue.turns;
        if !turns.is_contended() {
            return;
        }
        let prompts = chunks.iter().map(|chunk| (chunk.row, Some(chunk.count)));
        for (row, count) in prompts.chain(tokens.iter().map(|&row| (row, None))) {
            let Some(Some(running)) = self.rows.get(row.index()) else {
                continue;
            };
            let entry = &running.entry;
            let cost = count.map_or(OUTPUT_TOKEN, |count| prompt_cost(entry, count));
            turns.charge(entry.tenant(), cost);
        }
        turns.lift();
    }
}
