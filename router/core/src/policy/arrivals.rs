//! How often requests could start, and how long their prompts are: what `auto` of `--waiting-served-ratio` expects of
//! the next ones.

use std::time::Duration;

/// Requests count for about this long.
const MEMORY: Duration = Duration::from_secs(2);

/// How much of each prompt enters the mean.
const WEIGHT: f64 = 1.0 / 16.0;

/// What is known of the requests that come. Times are since any fixed moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Arrivals {
    /// Requests that wait and have a row, when this was last looked at.
    ready: usize,
    /// Requests that became ready, of which those of [`MEMORY`] ago count 1 / e.
    recent: f64,
    last: Option<Duration>,
    /// Tokens that a request computes of its prompt, in the mean.
    prompt_tokens: Option<f64>,
}

impl Arrivals {
    /// So many requests wait and have a row now: some have come, or rows have become free.
    pub fn ready(&mut self, now: Duration, ready: usize) {
        let more = ready.saturating_sub(self.ready);
        self.ready = ready;
        if more > 0 {
            self.recent = self.remembered(now) + more as f64;
            self.last = Some(now);
        }
    }

    /// A request starts, and computes so many tokens of its prompt.
    pub fn started(&mut self, prompt_tokens: u32) {
        self.ready = self.ready.saturating_sub(1);
        let tokens = f64::from(prompt_tokens);
        let mean = self.prompt_tokens.get_or_insert(tokens);
        *mean += (tokens - *mean) * WEIGHT;
    }

    /// Requests that become ready a second. When none has for longer than they used to take, it is as if this were their
    /// distance.
    pub fn per_second(&self, now: Duration) -> f64 {
        let Some(last) = self.last else { return 0.0 };
        let expected = self.remembered(now) / MEMORY.as_secs_f64();
        let silent = now.saturating_sub(last).as_secs_f64();
        expected.min(silent.recip())
    }

    /// Tokens of a prompt that must be computed, in the mean; 0 before the first.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens.unwrap_or(0.0).round() as u32
    }

    fn remembered(&self, now: Duration) -> f64 {
        let since = self
            .last
            .map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.recent * (-since.as_secs_f64() / MEMORY.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(distance_ms: u64, count: u64) -> (Arrivals, Duration) {
        let mut arrivals = Arrivals::default();
        let mut times = (0..count).map(|index| Duration::from_millis(index * distance_ms));
        for at in times.clone() {
            arrivals.ready(at, 1);
            arrivals.started(100);
        }
        (arrivals, times.next_back().unwrap_or_default())
    }

    #[test]
    fn steady_requests_have_their_rate() {
        let (arrivals, last) = every(20, 1000);
        let rate = arrivals.per_second(last + Duration::from_millis(10));
        assert!((45.0..55.0).contains(&rate), "{rate}");
    }

    #[test]
    fn who_waits_counts_once() {
        let (mut seen, last) = every(20, 1000);
        (0..5).for_each(|_| seen.ready(last, 1));
        let mut more = seen;
        more.ready(last, 3);
        let rate = |arrivals: Arrivals| arrivals.per_second(last + Duration::from_millis(5));
        let (once, _) = every(20, 1001);
        assert!(rate(seen) < 1.01 * rate(once));
        assert!(rate(more) > rate(seen));
    }

    #[test]
    fn silence_lowers_the_rate_at_once() {
        let (arrivals, last) = every(0, 256);
        assert!(arrivals.per_second(last + Duration::from_millis(5)) > 100.0);
        assert!(arrivals.per_second(last + Duration::from_millis(500)) <= 2.0);
        assert_eq!(Arrivals::default().per_second(last), 0.0);
    }

    #[test]
    fn prompts_have_their_mean() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.prompt_tokens(), 0);
        arrivals.started(100);
        assert_eq!(arrivals.prompt_tokens(), 100);
        (0..200).for_each(|_| arrivals.started(300));
        assert_eq!(arrivals.prompt_tokens(), 300);
    }
}
