//! Measured times of steps by what they compute, and straight lines between them.

/// Milliseconds by a number of tokens or requests: both ascend.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Times(Vec<(u32, f32)>);

impl Times {
    /// `times_ms[i]` is the time of `counts[i]`.
    ///
    /// Values that cannot be times are left out. A point that is faster than one with fewer tokens is noise of the
    /// measurement and counts as equally slow, so that more tokens never seem to take less time.
    pub(super) fn new(counts: &[u32], times_ms: &[f32]) -> Self {
        let mut points: Vec<(u32, f32)> = counts
            .iter()
            .copied()
            .zip(times_ms.iter().copied())
            .filter(|&(count, time)| count > 0 && usable(time))
            .collect();
        points.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        points.dedup_by_key(|point| point.0);
        let mut slowest = 0.0;
        for (_, time) in &mut points {
            slowest = time.max(slowest);
            *time = slowest;
        }
        Self(points)
    }

    pub(super) fn points(&self) -> &[(u32, f32)] {
        &self.0
    }

    /// Steps that are smaller than all that were measured take as long as the smallest of those, as each reads all
    /// weights; beyond the largest, time grows as it did before it.
    pub(super) fn at(&self, count: u32) -> f64 {
        let point = |index: usize| {
            let (count, time) = self.0[index];
            (f64::from(count), f64::from(time))
        };
        let above = self.0.partition_point(|point| point.0 < count);
        let ((x0, y0), (x1, y1)) = match self.0.len() {
            0 => return 0.0,
            _ if above == 0 => return if count == 0 { 0.0 } else { point(0).1 },
            1 => ((0.0, 0.0), point(0)),
            len => {
                let above = above.min(len - 1);
                (point(above - 1), point(above))
            }
        };
        y0 + (y1 - y0) * (f64::from(count) - x0) / (x1 - x0)
    }
}

pub(super) fn usable(value: f32) -> bool {
    value.is_finite() && value >= 0.0
}
