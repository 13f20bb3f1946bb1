//! What is recorded of how the tokens of steps spread over shards that have whole experts each.

use std::sync::OnceLock;

use metrics::{Histogram, histogram};

use super::names::EXPERT_LOAD_IMBALANCE;

/// Records the imbalance of steps of one method.
#[derive(Debug)]
pub(crate) struct ExpertMetrics {
    method: &'static str,
    /// Made by the first step that has loads: without expert parallelism the metric is not on the page.
    imbalance: OnceLock<Histogram>,
}

impl ExpertMetrics {
    pub(crate) fn new(method: &'static str) -> Self {
        Self {
            method,
            imbalance: OnceLock::new(),
        }
    }

    /// The loads of a step: of each layer that is counted, those of all shards.
    pub(crate) fn record(&self, loads: &[Vec<u32>]) {
        if let Some(imbalance) = imbalance(loads) {
            self.imbalance
                .get_or_init(|| histogram!(EXPERT_LOAD_IMBALANCE, "method" => self.method))
                .record(imbalance);
        }
    }
}

/// The load of the busiest shard over the mean of all, added up over the layers: the shards wait for the busiest one in
/// each layer, which need not be the same. `None` where nothing was computed.
fn imbalance(loads: &[Vec<u32>]) -> Option<f64> {
    let busiest = |load: &Vec<u32>| f64::from(load.iter().copied().max().unwrap_or_default());
    let mean = |load: &Vec<u32>| {
        load.iter().copied().map(f64::from).sum::<f64>() / load.len().max(1) as f64
    };
    let even: f64 = loads.iter().map(mean).sum();
    (even > 0.0).then(|| loads.iter().map(busiest).sum::<f64>() / even)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_wait_for_their_own_busiest_shard() {
        assert_eq!(imbalance(&[vec![8, 8, 8]]), Some(1.0));
        assert_eq!(imbalance(&[vec![24, 0, 0]]), Some(3.0));
        // Added up first, the loads would be even.
        assert_eq!(imbalance(&[vec![30, 10], vec![10, 30]]), Some(1.5));
    }

    #[test]
    fn without_tokens_there_is_no_imbalance() {
        for loads in [vec![], vec![vec![0, 0]], vec![vec![]]] {
            assert_eq!(imbalance(&loads), None);
        }
    }
}
