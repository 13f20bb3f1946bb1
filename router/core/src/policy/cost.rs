//! Cost model of steps: how long one takes, and how large a chunk of a prompt may be so that running streams keep their
//! inter-token latency.
//!
//! The shard measures itself at warm-up: the time of a step by its number of tokens, and the time that attention adds
//! for each position that is attended to. Steps of requests correct the prediction by one factor. All functions are
//! pure but for [`StepCost::observe`], and none looks at a clock.

use std::time::Duration;

use text_generation_client::types::StepCost as MeasuredCost;

use self::times::{Times, usable};

/// The fewest tokens of a prompt that a step computes, even when its decodes alone take longer than is promised:
/// so every prompt gets on. As few as these cost next to nothing beside decodes, which wait for the weights.
pub const MIN_CHUNK_TOKENS: u32 = 32;

/// Where the promise cannot be kept, the chunk may make the step this much longer than the smallest chunk would:
/// a CUDA graph computes the rows that pad it anyway.
const FILL: f64 = 1.05;

/// A number of tokens is efficient where each of them takes at most this much longer than at the best one.
const EFFICIENT: f32 = 1.03;

/// How much of each measured deviation enters the correction; half of a lasting one is corrected after 11 steps.
const WEIGHT: f64 = 1.0 / 16.0;

/// A single step counts as at most this many times faster or slower than predicted, so that an outlier moves the
/// correction by less than 5 %.
const OUTLIER: f64 = 2.0;

/// The correction stays within this factor of what warm-up measured.
const MAX_CORRECTION: f64 = 4.0;

/// What one step computes, as far as its time depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Requests that decode one token.
    pub decodes: u32,
    /// Positions that these attend to, all together.
    pub context: u64,
    /// Tokens of prompts.
    pub chunk_tokens: u32,
    /// Pairs of a token of a prompt and a position that it attends to, itself included.
    pub pairs: u64,
    /// What encoding images takes, before the forward pass.
    pub encode: Duration,
}

impl StepShape {
    /// A request decodes one token, which attends to `positions`.
    pub fn add_decode(&mut self, positions: u32) {
        self.decodes = self.decodes.saturating_add(1);
        self.context = self.context.saturating_add(u64::from(positions));
    }

    /// A request computes `count` tokens of its prompt from position `first` on; each attends to all up to itself.
    pub fn add_chunk(&mut self, first: u32, count: u32) {
        let (first, count) = (u64::from(first), u64::from(count));
        let pairs = count * first + count * (count + 1) / 2;
        self.chunk_tokens = self.chunk_tokens.saturating_add(count as u32);
        self.pairs = self.pairs.saturating_add(pairs);
    }

    /// The same step with one more chunk.
    fn with_chunk(mut self, first: u32, count: u32) -> Self {
        self.add_chunk(first, count);
        self
    }

    /// Tokens of decodes and chunks together.
    fn tokens(&self) -> u32 {
        self.decodes.saturating_add(self.chunk_tokens)
    }
}

/// What a step takes, as measured at warm-up and corrected since.
///
/// Where nothing was measured every prediction is zero, so no promise ever makes a chunk smaller.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCost {
    /// Of a step by its number of tokens.
    times: Times,
    /// Of decodes alone, where each computes a window of several tokens, or one. Empty: nothing was measured.
    windows: Vec<WindowTimes>,
    /// Nanoseconds for each pair of [`StepShape::pairs`].
    pair_ns: f32,
    /// Nanoseconds for each position of [`StepShape::context`].
    context_ns: f32,
    /// Tokens for which a step with chunks replays a graph, ascending.
    graph_tokens: Vec<u32>,
    /// Steps take this many times what was measured at warm-up.
    correction: f64,
}

/// Of decodes alone, each of which computes a window of `width` tokens.
#[derive(Debug, Clone, PartialEq)]
struct WindowTimes {
    width: u32,
    /// By the number of requests.
    times: Times,
    /// Nanoseconds for each position of [`StepShape::context`].
    context_ns: f32,
}

/// What steps cost, as warm-up measured it.
impl From<&MeasuredCost> for StepCost {
    fn from(measured: &MeasuredCost) -> Self {
        let windows = measured.windows.iter();
        let windows = windows.map(|each| WindowTimes {
            width: each.width,
            times: Times::new(&each.rows, &each.times_ms),
            context_ns: non_negative(each.context_ns),
        });
        Self {
            windows: windows.collect(),
            ..Self::new(
                &measured.tokens,
                &measured.times_ms,
                measured.pair_ns,
                measured.context_ns,
                &measured.graph_tokens,
            )
        }
    }
}

impl StepCost {
    /// From what a shard reports: `times_ms[i]` is the time of a step of `tokens[i]` tokens.
    pub fn new(
        tokens: &[u32],
        times_ms: &[f32],
        pair_ns: f32,
        context_ns: f32,
        graph_tokens: &[u32],
    ) -> Self {
        let mut graph_tokens = graph_tokens.to_vec();
        graph_tokens.sort_unstable();
        Self {
            times: Times::new(tokens, times_ms),
            windows: Vec::new(),
            pair_ns: non_negative(pair_ns),
            context_ns: non_negative(context_ns),
            graph_tokens,
            correction: 1.0,
        }
    }

    /// How long a step takes that computes so many tokens of a prompt, from its beginning on, and nothing else.
    pub fn prompt(&self, tokens: u32) -> Duration {
        self.predict(&StepShape::default().with_chunk(0, tokens))
    }

    /// How long this step will take.
    pub fn predict(&self, shape: &StepShape) -> Duration {
        Duration::try_from_secs_f64(self.predict_ms(shape) / 1e3).unwrap_or(Duration::MAX)
    }

    /// The same of a step of decodes alone, each of which computes a window of `width` tokens and reads its context once.
    /// `None` where no such step was measured.
    pub fn predict_windows(&self, shape: &StepShape, width: u32) -> Option<Duration> {
        let own = self.windows.iter().find(|own| own.width == width)?;
        if shape.chunk_tokens > 0 || own.times.points().is_empty() {
            return None;
        }
        let context_ms = f64::from(own.context_ns) * shape.context as f64 / 1e6;
        let encode_ms = shape.encode.as_secs_f64() * 1e3;
        let ms = (own.times.at(shape.decodes) + context_ms + encode_ms) * self.correction;
        Duration::try_from_secs_f64(ms / 1e3).ok()
    }

    /// How many tokens of a prompt, of which `first` positions are computed, may join the step so that it takes no
    /// longer than `gap`; `most` are left of the prompt or allowed in this step. `None` promises nothing.
    ///
    /// A chunk that must be cut ends where the step fills a graph, if more tokens are computed each second that way.
    /// The first chunk of a step has at least [`MIN_CHUNK_TOKENS`] (or `most`), whatever it takes; a later one may
    /// get 0.
    pub fn chunk_tokens_within(
        &self,
        shape: &StepShape,
        first: u32,
        most: u32,
        gap: Option<Duration>,
    ) -> u32 {
        let Some(gap) = gap else { return most };
        let time = |count| self.predict_ms(&shape.with_chunk(first, count));
        let mut limit = gap.as_secs_f64() * 1e3;
        let mut least = 0;
        if shape.chunk_tokens == 0 {
            least = MIN_CHUNK_TOKENS.min(most);
            limit = limit.max(time(least) * FILL);
        }
        // `least` is taken anyway; the longest chunk within the limit is in `least..=longest`.
        let (mut count, mut longest) = (least, most);
        while count < longest {
            let middle = count + (longest - count).div_ceil(2);
            if time(middle) <= limit {
                count = middle;
            } else {
                longest = middle - 1;
            }
        }
        if count == most {
            return count;
        }
        match self.filling(shape, count) {
            Some(filling) if filling >= least && faster(filling, count, time) => filling,
            _ => count,
        }
    }

    /// What may be encoded beside these decodes so that the step takes no longer than `gap`, in the time that warm-up
    /// measured for it. The chunk that a step may have in any case fits beside it.
    pub fn room_within(&self, decodes: &StepShape, gap: Duration) -> Duration {
        let others = self.predict_ms(&decodes.with_chunk(0, MIN_CHUNK_TOKENS));
        let room = (gap.as_secs_f64() * 1e3 / FILL - others) / self.correction;
        Duration::try_from_secs_f64(room / 1e3).unwrap_or_default()
    }

    /// Corrects later predictions: a step took `measured` where [`StepCost::predict`] had said `predicted`.
    ///
    /// Ignored where either is zero: nothing can be learnt from it.
    pub fn observe(&mut self, predicted: Duration, measured: Duration) {
        if predicted.is_zero() || measured.is_zero() {
            return;
        }
        let deviation = measured.as_secs_f64() / predicted.as_secs_f64();
        let step = deviation.clamp(1.0 / OUTLIER, OUTLIER).powf(WEIGHT);
        self.correction = (self.correction * step).clamp(1.0 / MAX_CORRECTION, MAX_CORRECTION);
    }

    /// How many tokens make a step efficient: the fewest of those measured at which the time for each token is within
    /// 3 % of the best. `None` where nothing was measured.
    pub fn efficient_tokens(&self) -> Option<u32> {
        let each = |&(tokens, time): &(u32, f32)| time / tokens as f32;
        let points = self.times.points();
        let best = points.iter().map(each).min_by(f32::total_cmp)?;
        points
            .iter()
            .find(|point| each(point) <= best * EFFICIENT)
            .map(|point| point.0)
    }

    fn predict_ms(&self, shape: &StepShape) -> f64 {
        let tokens = if shape.chunk_tokens > 0 {
            self.padded(shape.tokens())
        } else {
            shape.tokens()
        };
        let attention_ns = f64::from(self.pair_ns) * shape.pairs as f64
            + f64::from(self.context_ns) * shape.context as f64;
        let encode_ms = shape.encode.as_secs_f64() * 1e3;
        (self.times.at(tokens) + attention_ns / 1e6 + encode_ms) * self.correction
    }

    /// The tokens that a step with chunks computes: those of its graph.
    fn padded(&self, tokens: u32) -> u32 {
        let graph = self.graph_tokens.partition_point(|&size| size < tokens);
        self.graph_tokens.get(graph).copied().unwrap_or(tokens)
    }

    /// The longest chunk of at most `count` tokens with which the step fills a graph. `None` where there is none, or
    /// where the step is beyond all graphs and has no padding.
    fn filling(&self, shape: &StepShape, count: u32) -> Option<u32> {
        let tokens = shape.tokens().saturating_add(count);
        let larger = self.graph_tokens.partition_point(|&size| size <= tokens);
        if larger == self.graph_tokens.len() {
            return None;
        }
        let full = *self.graph_tokens.get(larger.checked_sub(1)?)?;
        full.checked_sub(shape.tokens())
    }
}

fn non_negative(ns: f32) -> f32 {
    if usable(ns) { ns } else { 0.0 }
}

/// Whether chunks of `a` tokens get through a prompt at least as fast as chunks of `b`.
fn faster(a: u32, b: u32, time: impl Fn(u32) -> f64) -> bool {
    f64::from(a) * time(b) >= f64::from(b) * time(a)
}

#[cfg(test)]
mod tests;
mod times;
