//! What the shards of a world compute: a pure function of ids and seed, so each answer is known beforehand.

use text_generation_core::types::FinishReason;
use text_generation_mock_shard::MockRow;

/// Token ids; each is one character of text.
pub const VOCAB: u32 = 90;

/// Ends a text.
pub const END: u32 = 0;

/// A prompt that begins with it ends the shards that compute it.
pub const POISON: u32 = VOCAB - 1;

/// What one generation is asked for.
#[derive(Debug, Clone)]
pub struct Task {
    pub prompt: Vec<u32>,
    /// Of a request that samples.
    pub seed: Option<u64>,
    pub max_new_tokens: u32,
    pub ignore_eos: bool,
    /// Its character ends the text.
    pub stop: Option<u32>,
    /// It wants the log-probabilities of its prompt too.
    pub scored: bool,
}

/// The token after `ids`. One of 40 ends the text.
fn next(ids: &[u32], seed: u64) -> u32 {
    let mut hash = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ ids.len() as u64;
    for &id in &ids[ids.len().saturating_sub(4)..] {
        hash = (hash ^ u64::from(id)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^= hash >> 29;
    }
    if hash.is_multiple_of(40) {
        END
    } else {
        1 + (hash / 40 % u64::from(VOCAB - 1)) as u32
    }
}

/// What a row of the mock chooses.
pub fn choose(row: &MockRow) -> u32 {
    let seed = if row.parameters.do_sample {
        row.seed
    } else {
        0
    };
    next(&row.ids, seed)
}

/// How many drafts of a row are right, of so many: all for some rows, any number for others.
pub fn right_drafts(row: &MockRow, drafts: u32) -> u32 {
    if row.request_id.is_multiple_of(3) {
        return drafts;
    }
    (row.ids.len() as u32 * 31 + row.request_id as u32) % (drafts + 1)
}

/// Whether a row ends its shards.
pub fn is_poison(row: &MockRow) -> bool {
    row.input_ids.first() == Some(&POISON)
}

/// The tokens that the task gets alone, and why they end.
pub fn alone(task: &Task) -> (Vec<u32>, FinishReason) {
    let mut ids = task.prompt.clone();
    loop {
        let token = next(&ids, task.seed.unwrap_or(0));
        ids.push(token);
        let generated = &ids[task.prompt.len()..];
        let finish = if token == END && !task.ignore_eos {
            Some(FinishReason::EosToken)
        } else if Some(token) == task.stop {
            Some(FinishReason::StopSequence)
        } else if generated.len() == task.max_new_tokens as usize {
            Some(FinishReason::Length)
        } else {
            None
        };
        if let Some(finish) = finish {
            return (generated.to_vec(), finish);
        }
    }
}

/// The text of a token: printable ASCII.
pub fn character(id: u32) -> char {
    char::from(b'!' + id as u8)
}
