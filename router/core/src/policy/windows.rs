//! How many tokens a decode computes of each request, where the shards draft: one, or a window of several of which the
//! right ones count.
//!
//! With a share `a` of its drafts right, a window of `w` tokens brings `1 + a + ... + a^(w - 1)` tokens, and a step takes
//! longer the more tokens it computes. The width is the one with the most tokens for each second, by the cost model of
//! steps and a correction for each width, which steps of that width teach. Beside prompts, whose time is the same at any
//! width, windows are as wide as their tokens are worth the time that they add. Text does not depend on it.

use std::time::Duration;

use super::cost::{StepCost, StepShape};
use super::{Plan, Situation};

/// Wider windows must bring so much more for each second than single tokens.
const WORTH: f64 = 1.03;
/// How much of each draft enters the share of a request's drafts that are right.
const SHARE_WEIGHT: f32 = 0.125;
/// Before anything is known of a request.
const FIRST_SHARE: f32 = 0.3;
/// The same of hints, which somebody had reason to give.
const FIRST_SHARE_OF_HINTS: f32 = 0.8;
/// How much of a measured deviation enters the correction of a width.
const WEIGHT: f64 = 0.125;
/// The correction stays within this factor.
const MOST: f64 = 4.0;
/// How much of a correction is forgotten with each step of single tokens, so that no width is lost for good.
const FORGOTTEN: f64 = 1.0 / 512.0;

/// The share of a request's drafts that are right, as its steps have shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftShare(f32);

impl Default for DraftShare {
    fn default() -> Self {
        Self(FIRST_SHARE)
    }
}

impl DraftShare {
    /// Of drafts from hints, before anything is known of them.
    pub fn of_hints() -> Self {
        Self(FIRST_SHARE_OF_HINTS)
    }

    /// Of a request without drafts.
    pub fn none() -> Self {
        Self(0.0)
    }

    /// In a step that computed `width` tokens, so many drafts were `right`, one after the other. Where fewer than `width`
    /// were, the next one was wrong, or there was none.
    pub fn observe(&mut self, width: u32, right: u32) {
        for _ in 0..right.min(width) {
            self.0 += (1.0 - self.0) * SHARE_WEIGHT;
        }
        if right < width {
            self.0 -= self.0 * SHARE_WEIGHT;
        }
    }

    /// Tokens that a window of so many is expected to bring.
    fn tokens(self, width: u32) -> f64 {
        let share = f64::from(self.0);
        let powers = std::iter::successors(Some(1.0), |power| Some(power * share));
        powers.take(width as usize).sum()
    }
}

/// What windows find in their step, beside the decodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    /// The prompts of the step, without decodes.
    pub(super) chunks: StepShape,
    /// Free slots that nobody takes.
    pub(super) free: u32,
    /// How long the step may take, where prompts are cut to keep it.
    pub(super) gap: Option<Duration>,
}

/// A width of windows above 1, with the factors by which steps take longer than the cost model says: those of decodes
/// alone, and those that compute prompts too.
#[derive(Debug, Clone, PartialEq)]
struct Width {
    tokens: u32,
    factors: [f64; 2],
}

/// What the shards can compute, and what it has shown to cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Windows {
    /// Ascending.
    widths: Vec<Width>,
    /// The most windows times their width.
    max_tokens: u32,
}

impl Windows {
    /// As the shards say; no widths: there is no speculation.
    pub fn new(widths: &[u32], max_tokens: u32) -> Self {
        let of = |&tokens: &u32| Width {
            tokens,
            factors: [1.0; 2],
        };
        let widths = widths.iter().map(of).collect();
        Self { widths, max_tokens }
    }

    /// The most tokens of a window.
    pub fn widest(&self) -> u32 {
        self.widths.last().map_or(1, |width| width.tokens)
    }

    /// How long a step of windows takes.
    pub fn predict(&self, cost: &StepCost, step: &StepShape, width: u32) -> Duration {
        let measured = cost.predict_windows(step, width);
        let predicted = measured.unwrap_or_else(|| cost.predict(&widened(step, width)));
        predicted.mul_f64(self.factor(width, step.chunk_tokens > 0))
    }

    /// Corrects later predictions: a step of this width, with prompts or without, took `measured` where
    /// [`Windows::predict`] had said `predicted`. Ignored where either is zero.
    pub fn observe(
        &mut self,
        width: u32,
        has_prompts: bool,
        predicted: Duration,
        measured: Duration,
    ) {
        if predicted.is_zero() || measured.is_zero() {
            return;
        }
        for own in &mut self.widths {
            if own.tokens == width {
                let deviation = measured.as_secs_f64() / predicted.as_secs_f64();
                let factor = &mut own.factors[usize::from(has_prompts)];
                *factor = (*factor * deviation.powf(WEIGHT)).clamp(1.0 / MOST, MOST);
            } else if width == 1 {
                for factor in &mut own.factors {
                    *factor = factor.powf(1.0 - FORGOTTEN);
                }
            }
        }
    }

    fn factor(&self, width: u32, has_prompts: bool) -> f64 {
        let found = self.widths.iter().find(|own| own.tokens == width);
        found.map_or(1.0, |own| own.factors[usize::from(has_prompts)])
    }

    /// The width of windows that pays most in this step.
    pub(super) fn width(&self, situation: &Situation<'_>, plan: &Plan, beside: &Beside) -> u32 {
        if self.widths.is_empty() || !plan.pause.is_empty() {
            return 1;
        }
        let rows = || plan.decode.iter().map(|&index| &situation.running[index]);
        let mut alone = StepShape::default();
        rows().for_each(|row| alone.add_decode(row.computed));
        let tokens = |width: u32| rows().map(|row| row.drafts.tokens(width)).sum::<f64>();
        let takes = |step: &StepShape, width| {
            let predicted = self.predict(situation.cost, step, width);
            predicted.as_secs_f64()
        };
        // Where nothing was measured, more tokens take no longer.
        let speed = |width| {
            let seconds = takes(&alone, width);
            tokens(width) / if seconds > 0.0 { seconds } else { 1.0 }
        };
        let places = plan.decode.len() + plan.chunks.len() + plan.admit.len();
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        let fits = |width: u32| {
            let missing = rows().map(|row| (width - 1).saturating_sub(row.ahead));
            width.saturating_mul(places) <= self.max_tokens
                && missing.fold(0, u32::saturating_add) <= beside.free
        };
        let widths = self.widths.iter().map(|own| own.tokens);
        let possible = widths.filter(|&width| fits(width));
        if places as usize == plan.decode.len() {
            return possible
                .map(|width| (width, speed(width)))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .filter(|&(_, best)| best > WORTH * speed(1))
                .map_or(1, |(width, _)| width);
        }
        // Time that windows take from prompts would bring decodes alone so many tokens.
        let step = StepShape {
            decodes: alone.decodes,
            context: alone.context,
            ..beside.chunks
        };
        let fastest = possible.clone().map(speed).fold(speed(1), f64::max);
        let gain = |width| tokens(width) - fastest * takes(&step, width);
        let longest = beside.gap.map_or(f64::INFINITY, |gap| gap.as_secs_f64());
        possible
            .filter(|&width| takes(&step, width) <= longest)
            .map(|width| (width, gain(width)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|&(_, best)| best > gain(1) + (WORTH - 1.0) * tokens(1))
            .map_or(1, |(width, _)| width)
    }
}

/// The step with windows of `width` tokens in place of single ones. The tokens of a window read the context together.
fn widened(step: &StepShape, width: u32) -> StepShape {
    StepShape {
        decodes: step.decodes.saturating_mul(width),
        ..*step
    }
}
