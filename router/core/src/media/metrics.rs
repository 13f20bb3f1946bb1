//! Metrics of images, where they are served.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::metrics::{
    MEDIA_ENCODE_DURATION, MEDIA_ENCODED, MEDIA_FAILED, MEDIA_REUSED, MEDIA_ROWS_TOTAL,
    MEDIA_ROWS_USED,
};

#[derive(Debug)]
pub(super) struct MediaMetrics {
    pub(super) rows_used: Gauge,
    /// Images whose rows were written, and those whose rows were there already.
    pub(super) encoded: Counter,
    pub(super) reused: Counter,
    /// Images that did not reach the shards.
    pub(super) failed: Counter,
    encode: Histogram,
}

impl MediaMetrics {
    pub(super) fn new(rows: u32) -> Self {
        gauge!(MEDIA_ROWS_TOTAL).set(f64::from(rows));
        Self {
            rows_used: gauge!(MEDIA_ROWS_USED),
            encoded: counter!(MEDIA_ENCODED),
            reused: counter!(MEDIA_REUSED),
            failed: counter!(MEDIA_FAILED),
            encode: histogram!(MEDIA_ENCODE_DURATION),
        }
    }

    /// A step took so long for images.
    pub(super) fn step(&self, took: Duration) {
        if !took.is_zero() {
            self.encode.record(took);
        }
    }
}
