//! Tokens a minute, as a token bucket: it holds those of one minute, fills steadily, and begins full.
//!
//! Libraries of rate limits know a request's price beforehand. Here answers are paid for as they come, which may lead
//! into debt, and nothing is taken until it is paid.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

/// The clock is the caller's: times must not go back by much.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_minute: u32,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    /// Below zero it is in debt.
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(per_minute: u32, now: Instant) -> Self {
        let level = Level {
            tokens: f64::from(per_minute),
            at: now,
        };
        Self {
            per_minute,
            level: Mutex::new(level),
        }
    }

    pub(super) fn per_minute(&self) -> u32 {
        self.per_minute
    }

    /// Takes `count` tokens, or says how long it takes until there are as many if nobody takes any. `count` must not
    /// exceed [`per_minute`](Self::per_minute).
    pub(super) fn take(&self, count: u32, now: Instant) -> Result<(), Duration> {
        self.at(now, |level| {
            let missing = f64::from(count) - level.tokens;
            if missing > 0.0 {
                return Err(MINUTE.mul_f64(missing / f64::from(self.per_minute)));
            }
            level.tokens -= f64::from(count);
            Ok(())
        })
    }

    /// Takes `count` tokens, also where there are fewer.
    pub(super) fn charge(&self, count: u32, now: Instant) {
        self.at(now, |level| level.tokens -= f64::from(count));
    }

    /// What `change` makes of the level at this time.
    fn at<T>(&self, now: Instant, change: impl FnOnce(&mut Level) -> T) -> T {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let most = f64::from(self.per_minute);
        let passed = now.saturating_duration_since(level.at).as_secs_f64();
        level.tokens = most.min(level.tokens + most * passed / MINUTE.as_secs_f64());
        level.at = level.at.max(now);
        change(&mut level)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(count: f64) -> Duration {
        Duration::from_secs_f64(count)
    }

    #[test]
    fn a_minute_of_tokens_is_there_at_once_and_comes_back_steadily() {
        let start = Instant::now();
        let bucket = TokenBucket::new(60, start);
        assert_eq!(bucket.take(60, start), Ok(()));
        assert_eq!(bucket.take(3, start), Err(seconds(3.0)));
        assert_eq!(bucket.take(3, start + seconds(2.0)), Err(seconds(1.0)));
        assert_eq!(bucket.take(3, start + seconds(3.0)), Ok(()));
        // It never holds more than those of a minute.
        let later = start + seconds(1000.0);
        assert_eq!(bucket.take(60, later), Ok(()));
        assert_eq!(bucket.take(1, later), Err(seconds(1.0)));
    }

    #[test]
    fn answers_lead_into_debt_which_is_paid_before_the_next_request() {
        let start = Instant::now();
        let bucket = TokenBucket::new(60, start);
        bucket.take(10, start).unwrap();
        bucket.charge(80, start);
        assert_eq!(bucket.take(1, start), Err(seconds(31.0)));
        assert_eq!(bucket.take(1, start + seconds(31.0)), Ok(()));
    }

    proptest! {
        /// Whatever is asked for and when: what is granted never exceeds a minute's tokens and those of the time that
        /// has passed, and whoever waits as long as it was told gets what it asked for.
        #[test]
        fn no_more_is_granted_than_has_come(
            per_minute in 1_u32..10_000,
            requests in prop::collection::vec((0.0..90.0_f64, 0.0..1.0_f64), 1..50),
        ) {
            let start = Instant::now();
            let bucket = TokenBucket::new(per_minute, start);
            let (mut now, mut granted) = (start, 0.0);
            for (wait, part) in requests {
                now += seconds(wait);
                let count = (f64::from(per_minute) * part) as u32;
                if let Err(missing) = bucket.take(count, now) {
                    now += missing + Duration::from_micros(1);
                    prop_assert_eq!(bucket.take(count, now), Ok(()));
                }
                granted += f64::from(count);
                let come = f64::from(per_minute) * (1.0 + (now - start).as_secs_f64() / 60.0);
                prop_assert!(granted <= come + 1e-3, "{} of {}", granted, come);
            }
        }
    }
}
