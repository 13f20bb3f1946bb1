//! Arrival times of requests in an open loop.

use std::time::Duration;

use clap::ValueEnum;
use rand::RngExt;
use rand_distr::{Distribution, Exp1};

/// How arrivals are spread around their rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arrival {
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// A rate that goes from `from` to `to` (requests per second, both above 0) in a straight line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ramp {
    pub from: f64,
    pub to: f64,
}

impl Ramp {
    pub fn constant(rate: f64) -> Self {
        Self {
            from: rate,
            to: rate,
        }
    }

    pub fn mean(self) -> f64 {
        f64::midpoint(self.from, self.to)
    }
}

/// The first `count` arrivals after zero, in order, of a process whose rate goes along `ramp` in the time that `count`
/// arrivals take at its mean rate.
///
/// Unit-rate arrivals are mapped through the inverse of the integrated rate (time change of a Poisson process), so one
/// formula serves constant rates and ramps.
pub fn schedule(
    arrival: Arrival,
    ramp: Ramp,
    count: usize,
    rng: &mut impl RngExt,
) -> Vec<Duration> {
    let length = count as f64 / ramp.mean();
    let slope = (ramp.to - ramp.from) / length;
    let mut unit_time = 0.0;
    (0..count)
        .map(|_| {
            unit_time += match arrival {
                Arrival::Poisson => {
                    let gap: f64 = Exp1.sample(rng);
                    gap
                }
                Arrival::Constant => 1.0,
            };
            Duration::from_secs_f64(when(unit_time, ramp, slope, length))
        })
        .collect()
}

/// The time at which the integral of the rate reaches `arrivals`; after `length` the rate stays at its end.
fn when(arrivals: f64, ramp: Ramp, slope: f64, length: f64) -> f64 {
    let within = ramp.mean() * length;
    if arrivals >= within {
        return length + (arrivals - within) / ramp.to;
    }
    // from * t + slope * t^2 / 2 = arrivals, in the form that is stable for slope 0.
    2.0 * arrivals
        / (ramp.from
            + (ramp.from * ramp.from + 2.0 * slope * arrivals)
                .max(0.0)
                .sqrt())
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn gaps(times: &[Duration]) -> Vec<f64> {
        std::iter::once(times[0].as_secs_f64())
            .chain(
                times
                    .windows(2)
                    .map(|pair| (pair[1] - pair[0]).as_secs_f64()),
            )
            .collect()
    }

    #[test]
    fn a_constant_rate_has_equal_gaps() {
        let mut rng = StdRng::seed_from_u64(1);
        let times = schedule(Arrival::Constant, Ramp::constant(4.0), 8, &mut rng);
        for gap in gaps(&times) {
            assert!((gap - 0.25).abs() < 1e-9);
        }
    }

    #[test]
    fn a_poisson_process_has_the_rate_and_the_variance_of_one() {
        let mut rng = StdRng::seed_from_u64(7);
        let gaps = gaps(&schedule(
            Arrival::Poisson,
            Ramp::constant(5.0),
            20_000,
            &mut rng,
        ));
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.2).abs() < 0.006, "mean {mean}");
        // An exponential gap has a standard deviation equal to its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals() {
        let times = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            schedule(Arrival::Poisson, Ramp::constant(2.0), 50, &mut rng)
        };
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
    }

    #[test]
    fn a_ramp_ends_after_the_time_of_its_mean_rate_and_speeds_up() {
        let mut rng = StdRng::seed_from_u64(1);
        let ramp = Ramp { from: 2.0, to: 8.0 };
        let times = schedule(Arrival::Constant, ramp, 100, &mut rng);
        assert!((times[99].as_secs_f64() - 20.0).abs() < 1e-9);
        // Integral of the rate over the first half: 2 * 10 + 0.3 * 10^2 / 2 = 35.
        let first_half = times
            .iter()
            .filter(|time| time.as_secs_f64() <= 10.0 + 1e-9);
        assert_eq!(first_half.count(), 35);
        let gaps = gaps(&times);
        assert!((1.0 / gaps[99] - 8.0).abs() < 0.1);
    }

    #[test]
    fn arrivals_never_go_back_in_time() {
        let mut rng = StdRng::seed_from_u64(11);
        let ramp = Ramp { from: 9.0, to: 0.5 };
        let times = schedule(Arrival::Poisson, ramp, 500, &mut rng);
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
