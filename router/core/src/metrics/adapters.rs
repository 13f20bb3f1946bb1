//! How many requests of each adapter run and wait.

use std::collections::HashMap;

use metrics::{Gauge, gauge};

use super::{ADAPTER_REQUESTS_RUNNING, ADAPTER_REQUESTS_WAITING};
use crate::adapters::Adapters;

/// Gauges of all adapters, by their numbers. They are there from the start, with 0.
#[derive(Debug)]
pub(crate) struct AdapterMetrics(HashMap<u32, AdapterGauges>);

#[derive(Debug, Clone)]
struct AdapterGauges {
    running: Gauge,
    waiting: Gauge,
}

impl AdapterMetrics {
    pub(crate) fn new(adapters: &Adapters) -> Self {
        let gauges = adapters.iter().map(|adapter| {
            let name = &adapter.name;
            let running = gauge!(ADAPTER_REQUESTS_RUNNING, "adapter" => name.clone());
            let waiting = gauge!(ADAPTER_REQUESTS_WAITING, "adapter" => name.clone());
            running.set(0);
            waiting.set(0);
            (adapter.number, AdapterGauges { running, waiting })
        });
        Self(gauges.collect())
    }

    /// Counts one generation of this adapter, which waits.
    pub(crate) fn count(&self, number: u32) -> Option<AdapterLoad> {
        self.0.get(&number).cloned().map(AdapterLoad::waiting)
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
