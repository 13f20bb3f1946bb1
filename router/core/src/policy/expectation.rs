//! How long outputs get.
//!
//! Few requests run to `max_new_tokens`, so slots are not reserved for that: a request is expected to become as long
//! as others did before it, given how long it is already ("Past-Future Scheduler for LLM Serving under SLA
//! Guarantees", Gong et al., 2025, the scheduler of LightLLM). A wrong guess costs a pause.

use std::collections::VecDeque;

pub const WINDOW: usize = 1000;
const REFRESH: u32 = 32;
pub const PRIOR: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Output { length: u32, cut: bool }

#[derive(Debug, Clone)]
pub struct OutputLengths {
    window: VecDeque<Output>,
    /// (length, share of outputs that are longer)
    survival: Vec<(u32, f64)>,
    longest: u32,
    pending: u32,
    pub quantile: f64,
    pub floor: f64,
    pub mean: bool,
}

impl OutputLengths {
    pub fn new() -> Self { let (quantile, floor, mean, lo, hi) = (0.8, 0.25, false, 16.0f64, 2048.0f64);
        let window = (0..PRIOR).map(|i| {
            let share = (i as f64 + 0.5) / PRIOR as f64;
            Output { length: (lo * (hi / lo).powf(share)) as u32, cut: false }
        }).collect();
        let mut this = Self { window, survival: vec![], longest: 0, pending: 0, quantile, floor, mean };
        this.refresh();
        this
    }
    pub fn observe(&mut self, length: u32, cut: bool) {
        self.window.push_back(Output { length, cut });
        if self.window.len() > WINDOW { self.window.pop_front(); }
        self.pending += 1;
        if self.pending >= REFRESH { self.refresh(); }
    }
    fn refresh(&mut self) {
        self.pending = 0;
        let mut all: Vec<Output> = self.window.iter().copied().collect();
        all.sort_unstable_by_key(|o| (o.length, o.cut));
        self.longest = all.last().map_or(0, |o| o.length);
        self.survival.clear();
        let mut share = 1.0;
        let n = all.len();
        for (i, o) in all.iter().enumerate() {
            if o.cut { continue; }
            let at_risk = (n - i) as f64;
            share *= 1.0 - 1.0 / at_risk;
            match self.survival.last_mut() {
                Some(last) if last.0 == o.length => last.1 = share,
                _ => self.survival.push((o.length, share)),
            }
        }
    }
    pub fn remaining(&self, generated: u32, max_new_tokens: u32) -> u32 {
        let left = max_new_tokens.saturating_sub(generated);
        let at = self.survival.partition_point(|p| p.0 <= generated);
        let share = if at == 0 { 1.0 } else { self.survival[at - 1].1 };
        let length = if self.mean {
            let mut sum = 0.0; let mut prev = share;
            for p in &self.survival[at..] { sum += (prev - p.1) * p.0 as f64; prev = p.1; }
            sum += prev * self.longest.max(generated) as f64;
            if share > 0.0 { (sum / share) as u32 } else { 0 }
        } else {
            let target = share * (1.0 - self.quantile);
            let end = at + self.survival[at..].partition_point(|p| p.1 > target);
            self.survival.get(end).map_or(self.longest, |p| p.0)
        };
        let expected = length.saturating_sub(generated).max((generated as f64 * self.floor) as u32);
        expected.max(1).min(left)
    }
}
