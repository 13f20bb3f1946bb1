//! What must hold in every step.

use super::*;
use crate::policy::cost::StepShape;

impl World {
    /// Whether somebody would start if the running streams had got enough tokens.
    pub(super) fn could_start(&self, situation: Situation<'_>) -> bool {
        let urgent = Situation {
            decodes_since_joining: u32::MAX,
            ..situation
        };
        !plan(&urgent, &mut Candidates::of(self)).admit.is_empty()
    }

    /// Whoever could start waits for at most `max_waiting_tokens` tokens of the running streams.
    pub(super) fn check_joining(&mut self, decision: &Plan, could_start: bool) {
        let idle = decision.admit.is_empty() && decision.chunks.is_empty();
        self.refused |= idle && !could_start && !self.queue.is_empty();
        self.head_waits = match could_start {
            true => self.head_waits + u32::from(!decision.decode.is_empty()),
            false => 0,
        };
        assert!(self.head_waits <= self.limits.max_waiting_tokens.max(1));
    }

    /// Only those that follow somebody are overtaken.
    pub(super) fn check_order(&mut self, decision: &Plan, visited: &[(Order, Candidate)]) {
        let Some(last) = decision.admit.last() else {
            return;
        };
        for (index, (order, candidate)) in visited[..last.index].iter().enumerate() {
            if decision
                .admit
                .iter()
                .any(|admission| admission.index == index)
            {
                continue;
            }
            assert!(candidate.follows, "somebody was overtaken");
            let entry = self.queue.get_mut(order).unwrap();
            entry.followed += 1;
            self.report.most_followed = self.report.most_followed.max(entry.followed);
        }
    }

    /// The step keeps the promises of the limits.
    pub(super) fn check_step(&mut self, shape: &StepShape, first_chunk: Option<(u32, u32)>) {
        assert!(shape.chunk_tokens <= self.limits.max_batch_prefill_tokens);
        let (Some((first, count)), true) = (first_chunk, shape.decodes > 0) else {
            return;
        };
        assert!(self.limits.prefill_chunking, "prompts are computed alone");
        self.report.mixed_steps += 1;
        let mut least = StepShape {
            decodes: shape.decodes,
            context: shape.context,
            ..StepShape::default()
        };
        // A short prompt is computed at once; the next one then has to fit.
        least.add_chunk(first, count.min(cost::MIN_CHUNK_TOKENS));
        let least = self.cost.predict(&least).mul_f64(1.05);
        if let Some(gap) = self.limits.max_token_gap {
            assert!(self.cost.predict(shape) <= gap.max(least) + Duration::from_nanos(1));
        }
    }
}
