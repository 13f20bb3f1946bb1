//! How many tokens a decode computes of each request, where the shards draft: one, or a window of several of which the
//! right ones count.
//!
//! With a share `a` of its drafts right, a window of `w` tokens brings `1 + a + ... + a^(w - 1)` tokens, and a step takes
//! longer the more tokens it computes. The width is the one with the most tokens for each second, by the cost model of
//! steps and one correction for each width, which steps of that width teach. Text does not depend on it.

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

/// What the shards can compute, and what it has shown to cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Windows {
    /// Ascending, each above 1, with the factor by which steps of this width take longer than the cost model says.
    widths: Vec<(u32, f64)>,
    /// The most windows times their width.
    max_tokens: u32,
}

impl Windows {
    /// As the shards say; no widths: there is no speculation.
    pub fn new(widths: &[u32], max_tokens: u32) -> Self {
        let widths = widths.iter().map(|&width| (width, 1.0)).collect();
        Self { widths, max_tokens }
    }

    /// The most tokens of a window.
    pub fn widest(&self) -> u32 {
        self.widths.last().map_or(1, |(width, _)| *width)
    }

    /// How long a step of windows takes.
    pub fn predict(&self, cost: &StepCost, step: &StepShape, width: u32) -> Duration {
        let predicted = cost.predict(&widened(step, width));
        predicted.mul_f64(self.factor(width))
    }

    /// Corrects later predictions: a step of this width took `measured` where [`Windows::predict`] had said `predicted`.
    /// Ignored where either is zero.
    pub fn observe(&mut self, width: u32, predicted: Duration, measured: Duration) {
        if predicted.is_zero() || measured.is_zero() {
            return;
        }
        for (own, factor) in &mut self.widths {
            if *own == width {
                let deviation = measured.as_secs_f64() / predicted.as_secs_f64();
                *factor = (*factor * deviation.powf(WEIGHT)).clamp(1.0 / MOST, MOST);
            } else if width == 1 {
                *factor = factor.powf(1.0 - FORGOTTEN);
            }
        }
    }

    fn factor(&self, width: u32) -> f64 {
        let found = self.widths.iter().find(|(own, _)| *own == width);
        found.map_or(1.0, |(_, factor)| *factor)
    }

    /// The width of windows that brings the most tokens for each second, where `free` slots are left.
    pub(super) fn width(&self, situation: &Situation<'_>, plan: &Plan, free: u32) -> u32 {
        if self.widths.is_empty() {
            return 1;
        }
        let rows = plan.decode.iter().map(|&index| &situation.running[index]);
        let Some(shares) = rows
            .clone()
            .map(|row| row.drafts)
            .collect::<Option<Vec<_>>>()
        else {
            return 1;
        };
        let mut step = StepShape::default();
        rows.clone().for_each(|row| step.add_decode(row.computed));
        let speed = |width: u32| {
            let tokens: f64 = shares.iter().map(|share| share.tokens(width)).sum();
            let takes = self.predict(situation.cost, &step, width).as_secs_f64();
            // Where nothing was measured, more tokens take no longer.
            tokens / if takes > 0.0 { takes } else { 1.0 }
        };
        let fits = |width: u32| {
            let missing = rows
                .clone()
                .map(|row| (width - 1).saturating_sub(row.ahead));
            let tokens = width.saturating_mul(u32::try_from(shares.len()).unwrap_or(u32::MAX));
            tokens <= self.max_tokens && missing.fold(0, u32::saturating_add) <= free
        };
        let possible = self.widths.iter().map(|&(width, _)| width);
        let timed = possible
            .filter(|&width| fits(width))
            .map(|width| (width, speed(width)));
        timed
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|&(_, best)| best > WORTH * speed(1))
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
