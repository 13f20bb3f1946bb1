//! Budget of one sample: what its tokens may cost together, in CPU time of the threads that find them.
//!
//! Each token of an ambiguous grammar may stay below the limit of one, and all of them together keep everybody else's
//! steps waiting for seconds. CPU time is counted, so that a loaded machine ends nobody.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time that is left: each token adds to it, up to where it began.
#[derive(Debug)]
pub(crate) struct Budget {
    most: Duration,
    per_token: Duration,
    left: Duration,
}

impl Budget {
    /// `per_token` for each token, and `most` beyond that.
    pub fn new(most: Duration, per_token: Duration) -> Self {
        Self {
            most,
            per_token,
            left: most,
        }
    }

    /// A token has come.
    pub fn earn(&mut self) {
        self.left = self.left.saturating_add(self.per_token).min(self.most);
    }

    /// Takes what a step has cost.
    ///
    /// # Errors
    /// The reason, where that is more than is left.
    pub fn spend(&mut self, taken: Duration) -> Result<(), String> {
        match self.left.checked_sub(taken) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(format!(
                "its tokens take more than {} ms each, and {} ms together beyond that",
                self.per_token.as_millis(),
                self.most.as_millis()
            )),
        }
    }
}

/// CPU time of this thread so far. Where the system does not tell it stays 0, and only the clock ends what takes long.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// The first of a thousand tokens that is too much, where the tokens cost what `cost` says of their numbers.
    fn ends(cost: impl Fn(u64) -> Duration) -> Option<u64> {
        let mut budget = Budget::new(ms(1000), ms(10));
        (0..1000).find(|&token| {
            budget.earn();
            budget.spend(cost(token)).is_err()
        })
    }

    #[test]
    fn tokens_that_cost_ever_more_end_while_each_is_still_cheap() {
        // It would cost 55 ms, and all of them 1.5 s.
        assert_eq!(ends(ms), Some(55));
    }

    #[test]
    fn dear_tokens_between_cheap_ones_end_nothing() {
        assert_eq!(ends(|_| ms(10)), None);
        assert_eq!(ends(|token| ms(if token % 8 == 0 { 75 } else { 0 })), None);
    }

    #[test]
    fn cheap_tokens_save_up_for_no_more_than_the_beginning_had() {
        let end = ends(|token| ms(if token < 500 { 0 } else { 510 }));
        assert_eq!(end, Some(501));
    }
}
