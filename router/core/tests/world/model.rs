//! What the shards of a world compute: a pure function of ids and seed, so each answer is known beforehand.

use text_generation_core::types::FinishReason;
use text_generation_mock_shard::{MockRow, Read, content_after};

use super::pictures::{IMAGE, Picture};

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
    /// One for each [`IMAGE`] of the prompt.
    pub pictures: Vec<Picture>,
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
    let seen = match row.ids.contains(&IMAGE) {
        true => row.content,
        false => 0,
    };
    next(&row.ids, seed ^ seen)
}

/// How many drafts of a row are right, of so many: all for some rows, any number for others.
pub fn right_drafts(row: &MockRow, drafts: u32) -> u32 {
    if row.request_id.is_multiple_of(3) {
        return drafts;
    }
    (row.ids.len() as u32 * 31 + row.request_id as u32) % (drafts + 1)
}

/// What a client says that the answer may be: nothing, the answer itself, one that leaves it now and then, or any other
/// text.
pub fn prediction(task: &Task) -> Option<Vec<u32>> {
    let mut answer = alone(task).0;
    let salt = task.prompt.len() as u32 + task.max_new_tokens;
    match salt % 4 {
        0 => return None,
        1 => {}
        2 => {
            let places = (salt as usize % 7..answer.len()).step_by(13);
            for place in places.collect::<Vec<_>>().into_iter().rev() {
                match place % 3 {
                    0 => answer[place] = 1 + (answer[place] + 1) % (VOCAB - 1),
                    1 => drop(answer.remove(place)),
                    _ => answer.insert(place, 1 + salt % (VOCAB - 1)),
                }
            }
        }
        _ => answer = task.prompt.iter().cycle().take(80).copied().collect(),
    }
    Some(answer)
}

/// Whether a row ends its shards.
pub fn is_poison(row: &MockRow) -> bool {
    row.input_ids.first() == Some(&POISON)
}

/// What a row has read.
#[derive(Default)]
struct Reader {
    ids: Vec<u32>,
    content: Option<u64>,
}

impl Reader {
    fn read(&mut self, id: u32, read: Read<'_>) {
        self.ids.push(id);
        self.content = Some(content_after(self.content, read));
    }

    fn see(&mut self, picture: &Picture) {
        let pixels = &picture.pixels();
        for index in 0..Picture::ROWS {
            self.read(IMAGE, Read::Row { pixels, index });
        }
    }
}

/// The tokens that the task gets alone, and why they end.
pub fn alone(task: &Task) -> (Vec<u32>, FinishReason) {
    let mut reader = Reader::default();
    let mut pictures = task.pictures.iter();
    for &id in &task.prompt {
        match (id == IMAGE).then(|| pictures.next()).flatten() {
            Some(picture) => reader.see(picture),
            None => reader.read(id, Read::Token(id)),
        }
    }
    let prompt = reader.ids.len();
    loop {
        let seen = if task.pictures.is_empty() {
            0
        } else {
            reader.content.unwrap_or_default()
        };
        let token = next(&reader.ids, task.seed.unwrap_or(0) ^ seen);
        reader.read(token, Read::Token(token));
        let generated = &reader.ids[prompt..];
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
