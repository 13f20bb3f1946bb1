//! Distributions of prompt and answer lengths, and how they are written on the command line.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand_distr::{Distribution, LogNormal};

/// How often a draw outside the bounds is repeated before the parameters count as unusable.
const MAX_DRAWS: usize = 10_000;

/// A distribution of lengths in tokens; every draw is at least 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lengths {
    /// `512`
    Fixed(u32),
    /// `uniform:100-1024`, both ends included
    Uniform { min: u32, max: u32 },
    /// `lognormal:160,1.3` or, with bounds outside of which draws are repeated, `lognormal:160,1.3,4-1024`
    LogNormal {
        median: f64,
        sigma: f64,
        min: u32,
        max: u32,
    },
}

impl Lengths {
    /// One length; `None` when the bounds leave (almost) nothing of the distribution.
    pub fn draw(self, rng: &mut impl RngExt) -> Option<u32> {
        match self {
            Self::Fixed(length) => Some(length),
            Self::Uniform { min, max } => Some(rng.random_range(min..=max)),
            Self::LogNormal {
                median,
                sigma,
                min,
                max,
            } => {
                let distribution = LogNormal::new(median.ln(), sigma).ok()?;
                (0..MAX_DRAWS)
                    .map(|_| distribution.sample(rng).round())
                    .find(|length| (f64::from(min)..=f64::from(max)).contains(length))
                    .map(|length| length as u32)
            }
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "{length}"),
            Self::Uniform { min, max } => write!(f, "uniform:{min}-{max}"),
            Self::LogNormal {
                median,
                sigma,
                min,
                max,
            } => write!(f, "lognormal:{median},{sigma},{min}-{max}"),
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.split_once(':') {
            None => text.parse().ok().map(Self::Fixed),
            Some(("uniform", bounds)) => {
                bounds_of(bounds).map(|(min, max)| Self::Uniform { min, max })
            }
            Some(("lognormal", parameters)) => log_normal(parameters),
            Some(_) => None,
        };
        let lengths = parsed.ok_or_else(|| {
            format!("`{text}` is not a length: write 512, uniform:100-1024, lognormal:MEDIAN,SIGMA or lognormal:MEDIAN,SIGMA,MIN-MAX")
        })?;
        match lengths {
            Self::Fixed(0) | Self::Uniform { min: 0, .. } | Self::LogNormal { min: 0, .. } => {
                Err(format!("`{text}`: a length is at least 1 token"))
            }
            Self::Uniform { min, max } | Self::LogNormal { min, max, .. } if min > max => Err(
                format!("`{text}`: the lower bound {min} is above the upper bound {max}"),
            ),
            Self::LogNormal { median, sigma, .. }
                if !(median >= 1.0 && median.is_finite() && sigma >= 0.0 && sigma.is_finite()) =>
            {
                Err(format!(
                    "`{text}`: the median must be at least 1 and sigma at least 0"
                ))
            }
            lengths => Ok(lengths),
        }
    }
}

fn bounds_of(text: &str) -> Option<(u32, u32)> {
    let (min, max) = text.split_once('-')?;
    Some((min.trim().parse().ok()?, max.trim().parse().ok()?))
}

fn log_normal(text: &str) -> Option<Lengths> {
    let mut parts = text.split(',').map(str::trim);
    let median = parts.next()?.parse().ok()?;
    let sigma = parts.next()?.parse().ok()?;
    let (min, max) = match parts.next() {
        Some(bounds) => bounds_of(bounds)?,
        None => (1, u32::MAX),
    };
    parts.next().is_none().then_some(Lengths::LogNormal {
        median,
        sigma,
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        for text in ["512", "uniform:100-1024", "lognormal:160,1.3,4-1024"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_lengths_say_why() {
        for (text, part) in [
            ("0", "at least 1"),
            ("uniform:0-4", "at least 1"),
            ("uniform:9-4", "above"),
            ("lognormal:0.2,1", "median"),
            ("lognormal:10,-1", "sigma"),
            ("lognormal:10,1,2-3,4", "not a length"),
            ("normal:3", "not a length"),
            ("", "not a length"),
        ] {
            let error = text.parse::<Lengths>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_log_normal_has_its_median_and_keeps_its_bounds() {
        let mut rng = StdRng::seed_from_u64(5);
        let lengths: Lengths = "lognormal:160,1.3,4-1024".parse().unwrap();
        let mut drawn: Vec<u32> = (0..4000).map(|_| lengths.draw(&mut rng).unwrap()).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= 4 && drawn[3999] <= 1024);
        // The bounds cut more of the upper tail, so the median of what is left lies a little lower.
        assert!((120..170).contains(&drawn[2000]), "median {}", drawn[2000]);
    }

    #[test]
    fn bounds_without_any_mass_are_found_out() {
        let mut rng = StdRng::seed_from_u64(5);
        let lengths: Lengths = "lognormal:10,0.1,500-600".parse().unwrap();
        assert_eq!(lengths.draw(&mut rng), None);
    }

    #[test]
    fn uniform_lengths_reach_both_ends() {
        let mut rng = StdRng::seed_from_u64(5);
        let lengths: Lengths = "uniform:3-5".parse().unwrap();
        let drawn: std::collections::BTreeSet<u32> =
            (0..100).map(|_| lengths.draw(&mut rng).unwrap()).collect();
        assert_eq!(drawn, [3, 4, 5].into());
    }
}
