//! Limit on how often the shards may be lost before the server gives up.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The losses of the last `window`. With so many of them the server ends.
#[derive(Debug)]
pub struct Losses {
    most: usize,
    window: Duration,
    recent: VecDeque<Instant>,
}

/// What a loss leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The group is started again; so many losses are within the window.
    StartAgain { losses: usize },
    /// The last loss that was allowed; `losses` counts those within the window.
    GiveUp { losses: usize },
}

impl Losses {
    /// Gives up with loss number `most` (at least 1) within `window`.
    pub fn new(most: usize, window: Duration) -> Self {
        Self {
            most,
            window,
            recent: VecDeque::new(),
        }
    }

    /// Counts a loss at `now`, which is not before the last one. Losses that are `window` old are forgotten.
    pub fn count(&mut self, now: Instant) -> Verdict {
        self.recent
            .retain(|earlier| now.duration_since(*earlier) < self.window);
        self.recent.push_back(now);
        match self.recent.len() {
            losses if losses < self.most => Verdict::StartAgain { losses },
            losses => Verdict::GiveUp { losses },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{GiveUp, StartAgain};
    use super::*;

    /// What losses after these seconds lead to.
    fn verdicts(most: usize, window: u64, seconds: &[u64]) -> Vec<Verdict> {
        let begin = Instant::now();
        let mut losses = Losses::new(most, Duration::from_secs(window));
        let at = |after: &u64| begin + Duration::from_secs(*after);
        seconds
            .iter()
            .map(|after| losses.count(at(after)))
            .collect()
    }

    #[test]
    fn so_many_losses_within_the_window_end_the_server() {
        let again = |losses| StartAgain { losses };
        assert_eq!(verdicts(1, 600, &[0]), [GiveUp { losses: 1 }]);
        assert_eq!(
            verdicts(3, 600, &[0, 0, 599]),
            [again(1), again(2), GiveUp { losses: 3 }]
        );
    }

    #[test]
    fn losses_outside_the_window_are_forgotten() {
        let again = |losses| StartAgain { losses };
        assert_eq!(
            verdicts(3, 600, &[0, 300, 600, 900, 901]),
            [again(1), again(2), again(2), again(2), GiveUp { losses: 3 }]
        );
    }
}
