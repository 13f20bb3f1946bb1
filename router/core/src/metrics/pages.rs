//! How many adapters are on the device, and what it takes to bring them there.

use metrics::{Counter, Gauge, counter, gauge};

use super::{
    ADAPTER_COPIES, ADAPTER_EVICTIONS, ADAPTER_PAGES_TOTAL, ADAPTER_PAGES_USED, ADAPTERS_RESIDENT,
};

/// Of the pages of adapters.
#[derive(Debug)]
pub(crate) struct PageMetrics {
    used: Gauge,
    resident: Gauge,
    copies: Counter,
    evictions: Counter,
}

impl PageMetrics {
    /// Of so many pages.
    pub(crate) fn new(pages: u32) -> Self {
        gauge!(ADAPTER_PAGES_TOTAL).set(pages);
        Self {
            used: gauge!(ADAPTER_PAGES_USED),
            resident: gauge!(ADAPTERS_RESIDENT),
            copies: counter!(ADAPTER_COPIES),
            evictions: counter!(ADAPTER_EVICTIONS),
        }
    }

    pub(crate) fn publish(&self, used: u32, resident: usize) {
        self.used.set(used);
        self.resident.set(resident as f64);
    }

    /// An adapter goes to the device, and so many make room for it.
    pub(crate) fn copied(&self, gone: usize) {
        self.copies.increment(1);
        self.evictions.increment(gone as u64);
    }
}
