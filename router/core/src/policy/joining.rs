//! When waiting prompts join the requests that decode.
//!
//! A step with prompts takes longer than one without, and every running stream waits for it. Prompts that are computed
//! in one step share a part of that: reading the weights, and the rows that fill up a CUDA graph. So requests may be
//! held back until enough of them wait.
//!
//! `--waiting-served-ratio` says how many must wait for each stream that decodes, and `--max-waiting-tokens` how many
//! tokens these streams get at most before others join, as in TGI. With `auto` the ratio follows from what steps cost
//! and how often requests come: `n` that join together, of `rate` requests a second, wait `n / (2 * rate)` seconds each
//! in the mean, and cost each of `d` streams `shared / n` seconds, where `shared` is what a step with prompts costs
//! beside its tokens. With `w` seconds between tokens worth one before the first token, the sum is least for
//!
//! ```text
//! n = sqrt(2 * rate * shared * d / w)
//! ```
//!
//! the economic order quantity (Harris, 1913). It is below 2 for few streams and for rare requests, which start at once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::cost::StepShape;
use super::{Joined, Situation};

/// A second before the first token is worth so many between tokens: the objectives of services, such as those of MLPerf
/// Inference for Llama 2 70B (2 s and 200 ms; 450 and 40 ms), differ by about as much.
const FIRST_TOKEN_WEIGHT: f64 = 10.0;

/// How many requests must wait for each one that decodes before they join.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WaitingServedRatio {
    /// As many as pays, by what steps cost and how often requests come.
    Auto,
    /// TGI's meaning. A negative one counts as 0.
    Fixed(f32),
}

impl FromStr for WaitingServedRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        match text.parse() {
            Ok(ratio) if f32::is_finite(ratio) && ratio >= 0.0 => Ok(Self::Fixed(ratio)),
            _ => Err("must be `auto` or a number >= 0".to_owned()),
        }
    }
}

impl fmt::Display for WaitingServedRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(ratio) => ratio.fmt(f),
        }
    }
}

impl WaitingServedRatio {
    /// Before anything waits: with [`Self::Auto`] requests start at once.
    pub fn initial(self) -> f32 {
        match self {
            Self::Auto => 0.0,
            Self::Fixed(ratio) => ratio,
        }
    }

    /// A ratio in force as the decimal that people read: the one that was given, or four places of what was found.
    pub fn shown(self, ratio: f32) -> f64 {
        match self {
            Self::Auto => (f64::from(ratio) * 1e4).round() / 1e4,
            Self::Fixed(_) => ratio.to_string().parse().unwrap_or(f64::from(ratio)),
        }
    }

    /// The ratio in force beside the decodes of `step`, where prompts may take so many tokens and so much time.
    pub(super) fn in_force(self, situation: &Situation<'_>, decodes: u32, step: &Room) -> f32 {
        match self {
            Self::Fixed(ratio) => ratio,
            Self::Auto if decodes == 0 => 0.0,
            Self::Auto => step.fewest(situation, decodes) / decodes as f32,
        }
    }
}

/// What a step has room for, beside what it computes anyway.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) shape: StepShape,
    pub(super) tokens: u32,
    pub(super) gap: Option<Duration>,
}

impl Room {
    /// How many requests that join together cost running and waiting ones least, not more than fill the step.
    fn fewest(&self, situation: &Situation<'_>, decodes: u32) -> f32 {
        let prompt = situation.arrivals.prompt_tokens().max(1);
        let most = self.tokens;
        let room = situation
            .cost
            .chunk_tokens_within(&self.shape, 0, most, self.gap);
        if room / prompt < 2 {
            return 0.0;
        }
        let shared = self.shared(situation, prompt);
        let rate = situation.arrivals.per_second(situation.now);
        let best = (2.0 * rate * shared * f64::from(decodes) / FIRST_TOKEN_WEIGHT).sqrt();
        best.min(f64::from(room / prompt)) as f32
    }

    /// Seconds that two prompts of so many tokens take less in one step than in two.
    fn shared(&self, situation: &Situation<'_>, prompt: u32) -> f64 {
        let takes = |prompts: usize| {
            let mut shape = self.shape;
            (0..prompts).for_each(|_| shape.add_chunk(0, prompt));
            situation.cost.predict(&shape).as_secs_f64()
        };
        (2.0 * takes(1) - takes(0) - takes(2)).max(0.0)
    }
}

/// Whether `waiting` requests may join `decodes` that decode, and why.
pub(super) fn joins(
    situation: &Situation<'_>,
    ratio: f32,
    decodes: usize,
    waiting: usize,
) -> Option<Joined> {
    if waiting == 0 {
        return None;
    }
    // TGI counts 1 after a prefill, and one more after each decode.
    if situation.decodes_since_joining.saturating_add(1) >= situation.limits.max_waiting_tokens {
        return Some(Joined::WaitExceeded);
    }
    // The conversion saturates; a negative ratio counts as 0.
    let wanted = (decodes as f32 * ratio).floor() as usize;
    (waiting >= wanted.max(1)).then_some(Joined::Backpressure)
}
