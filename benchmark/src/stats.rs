//! Statistics of samples.

use serde::{Deserialize, Serialize};

/// Summary of samples of one quantity, all in the same unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    pub count: usize,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Distribution {
    /// `None` when there is no sample. Exact: the samples are sorted, not binned.
    pub fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*samples.first()?, *samples.last()?);
        Some(Self {
            count: samples.len(),
            mean: samples.iter().sum::<f64>() / samples.len() as f64,
            min,
            p50: quantile(&samples, 0.50),
            p90: quantile(&samples, 0.90),
            p95: quantile(&samples, 0.95),
            p99: quantile(&samples, 0.99),
            max,
        })
    }
}

/// The `q`-quantile (0 to 1) of sorted samples, linear between neighbours (Hyndman and Fan, 1996, type 7; the default
/// of numpy). NaN when there is no sample.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        // numpy.percentile([1, 2, 4, 8], [0, 50, 90, 100])
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&sorted, 0.0), 1.0);
        assert_eq!(quantile(&sorted, 0.5), 3.0);
        assert!((quantile(&sorted, 0.9) - 6.8).abs() < 1e-12);
        assert_eq!(quantile(&sorted, 1.0), 8.0);
    }

    #[test]
    fn a_distribution_does_not_depend_on_order() {
        let summary = Distribution::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((summary.count, summary.mean), (3, 2.0));
        assert_eq!((summary.min, summary.p50, summary.max), (1.0, 2.0, 3.0));
    }

    #[test]
    fn one_sample_is_every_percentile() {
        let summary = Distribution::of(vec![7.0]).unwrap();
        assert_eq!(
            (summary.min, summary.p50, summary.p99, summary.max),
            (7.0, 7.0, 7.0, 7.0)
        );
    }

    #[test]
    fn no_samples_have_no_distribution() {
        assert_eq!(Distribution::of(Vec::new()), None);
    }
}
