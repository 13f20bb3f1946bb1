//! Expected output lengths.
//!
//! Few requests run to `max_new_tokens`, so slots are not reserved for that: a request is expected to become as long
//! as others did before it, given how long it is already ("Past-Future Scheduler for LLM Serving under SLA
//! Guarantees", Gong et al., 2025, the scheduler of LightLLM). [`super::peak`] makes slots of it; a wrong guess costs
//! a pause.
//!
//! What is kept is the share of outputs that get longer than a length, as Kaplan and Meier estimate it: an output that
//! was cut short (by `max_new_tokens`, or because its client left) tells only that it would have become longer. So a
//! thousand requests for 16 tokens do not make chats look short, and where every request runs to `max_new_tokens`
//! just that is expected.

use std::collections::VecDeque;

/// Outputs that are remembered.
const WINDOW: usize = 1000;

/// Lengths that are taken for granted until as many as the window holds were observed: 64 to 4,096 tokens in equal
/// ratios, half of them over 512 and a third over 1,024. With 32 to 2,048 up to ten times as many of the first requests
/// of a full pool paused.
const PRIOR: usize = 32;
const PRIOR_SHORTEST: f64 = 64.0;
const PRIOR_RATIO: f64 = 64.0;

/// Observations and steps after which the chances are computed again, which takes some 100 us.
const REFRESH: usize = 64;

/// So few of the longest outputs say nothing about how much longer an output can get. From the shortest of them on,
/// the share falls with the 4th power of the length: who got there is expected to become a third longer. Where all of
/// them were cut short, nobody knows where outputs end, and the lengths that are taken for granted say how it falls.
const TAIL: usize = 8;
const TAIL_POWER: i32 = 4;

/// Lengths are counted in buckets: as many for what was generated, and as many for what is ahead.
const BUCKETS: usize = 512;

/// Moments ahead in which chances are known, denser near now.
pub(super) const MOMENTS: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Output {
    length: u32,
    /// Whether it was cut short. Sorts behind those that ended at this length.
    cut: bool,
}

/// The distribution of output lengths, from those observed last.
///
/// The same observations always give the same answers. [`OutputLengths::default`] has observed nothing yet.
#[derive(Debug, Clone)]
pub struct OutputLengths {
    /// The oldest first.
    window: VecDeque<Output>,
    /// Observations and steps since the chances were computed.
    age: usize,
    /// Tokens of a bucket.
    width: u32,
    /// Tokens from now to each moment, and to the end of the last.
    ahead: [f32; MOMENTS + 1],
    /// By bucket of the tokens generated: the chance that a request still runs at each moment.
    chances: Vec<[f32; MOMENTS]>,
}

impl Default for OutputLengths {
    fn default() -> Self {
        let window = (0..PRIOR).map(|index| Output {
            length: (PRIOR_SHORTEST * PRIOR_RATIO.powf((index as f64 + 0.5) / PRIOR as f64)) as u32,
            cut: false,
        });
        let mut lengths = Self {
            window: window.collect(),
            age: 0,
            width: 1,
            ahead: [0.0; MOMENTS + 1],
            chances: Vec::new(),
        };
        lengths.compute([]);
        lengths
    }
}

impl OutputLengths {
    /// An output ended by itself (end of sequence, stop string) after `tokens`.
    pub fn observe(&mut self, tokens: u32) {
        self.push(tokens, false);
    }

    /// An output was cut short after `tokens`: `max_new_tokens` were generated, or nobody wanted more of it.
    pub fn observe_cut(&mut self, tokens: u32) {
        self.push(tokens, true);
    }

    /// Called once a step, before forecasts are made, with the tokens that each running request has generated: now
    /// and then the chances are computed again. Until the window is full, running requests count as outputs that got
    /// that long; without them, those that end first after a start would make all outputs look short.
    pub fn refresh(&mut self, running: impl IntoIterator<Item = u32>) {
        self.age += 1;
        if self.age >= REFRESH {
            self.compute(running);
        }
    }

    /// The chances that a request which has generated so many tokens still runs at each of [`Self::ahead`]: they
    /// start with 1 and fall. Where nothing that long was observed, they are those of the longest observed.
    pub(super) fn chances(&self, generated: u32) -> &[f32; MOMENTS] {
        let bucket = (generated / self.width) as usize;
        &self.chances[bucket.min(BUCKETS - 1)]
    }

    /// Tokens from now to each moment, and to the end of the last: they ascend from 0.
    pub(super) fn ahead(&self) -> &[f32; MOMENTS + 1] {
        &self.ahead
    }

    fn push(&mut self, length: u32, cut: bool) {
        self.window.push_back(Output { length, cut });
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        self.age += 1;
    }

    fn compute(&mut self, running: impl IntoIterator<Item = u32>) {
        self.age = 0;
        let mut outputs: Vec<Output> = self.window.iter().copied().collect();
        if outputs.len() < WINDOW {
            outputs.extend(
                running
                    .into_iter()
                    .map(|length| Output { length, cut: true }),
            );
        }
        outputs.sort_unstable();
        let tail = outputs.len() - TAIL;
        let tail_start = outputs[tail].length.max(1);
        // Half of the buckets are for lengths that were observed.
        self.width = tail_start.div_ceil(BUCKETS as u32 / 2);
        self.ahead = AHEAD.map(|buckets| (buckets as u32 * self.width) as f32);
        let unknown = outputs[tail..].iter().all(|output| output.cut);
        let longer = longer(&outputs[..tail], tail_start, unknown, self.width);
        let from = |bucket: usize| {
            let scale = 1.0 / longer[bucket];
            std::array::from_fn(|moment| (longer[bucket + AHEAD[moment]] * scale) as f32)
        };
        self.chances.clear();
        self.chances.extend((0..BUCKETS).map(from));
    }
}

/// The share of outputs that have more tokens than each multiple of `width`; falls, and never to 0. `body` are the
/// outputs but for the [`TAIL`] longest, of which the shortest has `tail_start` tokens; `unknown`: all of those were cut.
fn longer(body: &[Output], tail_start: u32, unknown: bool, width: u32) -> Vec<f64> {
    let (mut share, mut passed) = (1.0, 0);
    let tail_start = f64::from(tail_start);
    let more_than = |bucket: usize| {
        let length = bucket as u32 * width;
        while let Some(output) = body.get(passed).filter(|output| output.length <= length) {
            if !output.cut {
                share *= 1.0 - 1.0 / (body.len() + TAIL - passed) as f64;
            }
            passed += 1;
        }
        let length = f64::from(length).max(tail_start);
        let beyond = (tail_start / length).powi(TAIL_POWER);
        if unknown {
            share * beyond.max(prior_longer(length) / prior_longer(tail_start))
        } else {
            share * beyond
        }
    };
    (0..=2 * BUCKETS).map(more_than).collect()
}

/// The share of the outputs taken for granted that have more than `length` tokens, a little above 0 from the longest on.
fn prior_longer(length: f64) -> f64 {
    let passed = (length / PRIOR_SHORTEST).ln() / PRIOR_RATIO.ln();
    (1.0 - passed).clamp(1.0 / PRIOR as f64, 1.0)
}

/// Buckets from now to each moment, and to the end of the last.
const AHEAD: [usize; MOMENTS + 1] = {
    let mut ahead = [0; MOMENTS + 1];
    let mut moment = 0;
    while moment <= MOMENTS {
        ahead[moment] = (BUCKETS * moment * moment).div_ceil(MOMENTS * MOMENTS);
        moment += 1;
    }
    ahead
};

#[cfg(test)]
mod tests;
