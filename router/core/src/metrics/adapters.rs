//! How many requests of each adapter run and wait.

use std::collections::HashMap;

use metrics::{Gauge, gauge};

use super::{ADAPTER_REQUESTS_RUNNING, ADAPTER_REQUESTS_WAITING};

/// Adapters that are counted under their own names; all others together.
const MOST_NAMES: usize = 64;
/// The label of the others. No adapter has this name.
const OTHERS: &str = "";

/// Gauges of adapters, by name. Those of the start are there from then on, with 0.
#[derive(Debug)]
pub(crate) struct AdapterMetrics(HashMap<String, AdapterGauges>);

#[derive(Debug, Clone)]
struct AdapterGauges {
    running: Gauge,
    waiting: Gauge,
}

impl AdapterGauges {
    fn new(name: &str) -> Self {
        let running = gauge!(ADAPTER_REQUESTS_RUNNING, "adapter" => name.to_owned());
        let waiting = gauge!(ADAPTER_REQUESTS_WAITING, "adapter" => name.to_owned());
        running.set(0);
        waiting.set(0);
        Self { running, waiting }
    }
}

impl AdapterMetrics {
    /// Of a server that starts with these.
    pub(crate) fn new(names: impl Iterator<Item = String>) -> Self {
        let gauges = names.take(MOST_NAMES).map(|name| {
            let gauges = AdapterGauges::new(&name);
            (name, gauges)
        });
        Self(gauges.collect())
    }

    /// Counts one generation of this adapter, which waits.
    pub(crate) fn count(&mut self, name: &str) -> AdapterLoad {
        let name = match self.0.contains_key(name) || self.0.len() < MOST_NAMES {
            true => name,
            false => OTHERS,
        };
        let gauges = self.0.entry(name.to_owned());
        let gauges = gauges.or_insert_with(|| AdapterGauges::new(name));
        AdapterLoad::waiting(gauges.clone())
    }
}

/// One generation in the gauges of its adapter, until this is dropped.
#[derive(Debug)]
pub(crate) struct AdapterLoad {
    gauges: AdapterGauges,
    running: bool,
}

impl AdapterLoad {
    fn waiting(gauges: AdapterGauges) -> Self {
        gauges.waiting.increment(1);
        Self {
            gauges,
            running: false,
        }
    }

    /// It runs from now on, or waits.
    pub(crate) fn set_running(&mut self, running: bool) {
        self.gauge().decrement(1);
        self.running = running;
        self.gauge().increment(1);
    }

    fn gauge(&self) -> &Gauge {
        if self.running {
            &self.gauges.running
        } else {
            &self.gauges.waiting
        }
    }
}

impl Drop for AdapterLoad {
    fn drop(&mut self) {
        self.gauge().decrement(1);
    }
}
