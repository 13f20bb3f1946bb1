//! Metrics: their names, and the handles that record them.
//!
//! Handles are looked up once, when [`crate::infer::Infer`] is built, so the recorder must be installed before that.

mod adapters;
mod experts;
mod names;
mod pages;
mod speculation;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::time::Instant;

pub(crate) use self::adapters::{AdapterLoad, AdapterMetrics};
pub(crate) use self::experts::ExpertMetrics;
pub use self::names::*;
pub(crate) use self::pages::PageMetrics;
use self::speculation::SpeculationMetrics;
use crate::error::InferError;
use crate::types::RequestInstants;

/// Why requests fail. Those after `shutting_down` are refused by the front end before their body was read.
pub const FAILURES: [&str; 14] = [
    "overloaded",
    "validation",
    "template",
    "incomplete",
    "dropped",
    "generation",
    "grammar",
    "internal",
    "grammars_stuck",
    "shutting_down",
    "malformed_json",
    "unsupported_media_type",
    "payload_too_large",
    "request_timeout",
];

/// Counts a request that a front end refuses before it reaches [`crate::infer::Infer`], which counts all others.
pub fn request_refused(err: &'static str) {
    counter!(REQUEST_COUNT).increment(1);
    request_failure(err);
}

fn request_failure(err: &'static str) {
    counter!(REQUEST_FAILURE, "err" => err).increment(1);
}

/// Handles of what is recorded for each request and token.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    count: Counter,
    success: Counter,
    stopped: Counter,
    duration: Histogram,
    validation: Histogram,
    queue: Histogram,
    inference: Histogram,
    mean_time_per_token: Histogram,
    generated_tokens: Histogram,
    input_length: Histogram,
    max_new_tokens: Histogram,
    skipped_tokens: Histogram,
    time_to_first_token: Histogram,
    time_between_tokens: Histogram,
}

impl RequestMetrics {
    pub(crate) fn new() -> Self {
        // Prometheus sees no increase in a counter that begins above 0.
        for err in FAILURES {
            counter!(REQUEST_FAILURE, "err" => err).increment(0);
        }
        Self {
            count: counter!(REQUEST_COUNT),
            success: counter!(REQUEST_SUCCESS),
            stopped: counter!(REQUEST_STOPPED),
            duration: histogram!(REQUEST_DURATION),
            validation: histogram!(REQUEST_VALIDATION_DURATION),
            queue: histogram!(REQUEST_QUEUE_DURATION),
            inference: histogram!(REQUEST_INFERENCE_DURATION),
            mean_time_per_token: histogram!(REQUEST_MEAN_TIME_PER_TOKEN_DURATION),
            generated_tokens: histogram!(REQUEST_GENERATED_TOKENS),
            input_length: histogram!(REQUEST_INPUT_LENGTH),
            max_new_tokens: histogram!(REQUEST_MAX_NEW_TOKENS),
            skipped_tokens: histogram!(REQUEST_SKIPPED_TOKENS),
            time_to_first_token: histogram!(REQUEST_TIME_TO_FIRST_TOKEN_DURATION),
            time_between_tokens: histogram!(REQUEST_TIME_BETWEEN_TOKENS_DURATION),
        }
    }

    /// `tokens` of one step arrived, `since` the previous step.
    pub(crate) fn step(&self, tokens: usize, since: Duration) {
        self.time_between_tokens.record(since);
        self.skipped_tokens.record(tokens.saturating_sub(1) as f64);
    }

    pub(crate) fn first_step(&self, tokens: usize, since_received: Duration) {
        self.time_to_first_token.record(since_received);
        self.skipped_tokens.record(tokens.saturating_sub(1) as f64);
    }

    pub(crate) fn stopped(&self) {
        self.stopped.increment(1);
    }
}

/// Counts one request of a client exactly once: as a success when all its samples are complete, as a failure with the
/// first that fails, or, when this is dropped before, as dropped.
#[derive(Debug)]
pub(crate) struct Meter {
    metrics: Arc<RequestMetrics>,
    settled: AtomicBool,
    /// Samples that are not complete.
    left: AtomicU32,
    /// Tokens of the complete samples, and of the longest.
    generated: AtomicU32,
    longest: AtomicU32,
}

impl Meter {
    /// Of a request with so many samples.
    pub(crate) fn start(metrics: Arc<RequestMetrics>, samples: u32) -> Self {
        metrics.count.increment(1);
        Self {
            metrics,
            settled: AtomicBool::new(false),
            left: AtomicU32::new(samples),
            generated: AtomicU32::new(0),
            longest: AtomicU32::new(0),
        }
    }

    pub(crate) fn accepted(&self, input_length: u32, max_new_tokens: u32) {
        self.metrics.input_length.record(input_length);
        self.metrics.max_new_tokens.record(max_new_tokens);
    }

    /// A sample is complete.
    pub(crate) fn success(&self, generated: u32, instants: &RequestInstants, ended: Instant) {
        self.generated.fetch_add(generated, Ordering::AcqRel);
        self.longest.fetch_max(generated, Ordering::AcqRel);
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 || self.settle() {
            return;
        }
        let RequestInstants {
            received,
            queued,
            started,
        } = *instants;
        let inference = ended - started;
        let metrics = &self.metrics;
        let longest = self.longest.load(Ordering::Acquire);
        let generated = self.generated.load(Ordering::Acquire);
        metrics.success.increment(1);
        metrics.duration.record(ended - received);
        metrics.validation.record(queued - received);
        metrics.queue.record(started - queued);
        metrics.inference.record(inference);
        metrics
            .mean_time_per_token
            .record(inference / longest.max(1));
        metrics.generated_tokens.record(generated);
    }

    /// Whether this was counted before; from now on it is.
    fn settle(&self) -> bool {
        self.settled.swap(true, Ordering::AcqRel)
    }

    /// Passes `result` on and counts its error.
    pub(crate) fn on_failure<T>(&self, result: Result<T, InferError>) -> Result<T, InferError> {
        if let Err(error) = &result {
            self.failure(error);
        }
        result
    }

    pub(crate) fn failure(&self, error: &InferError) {
        if self.settle() {
            return;
        }
        request_failure(match error {
            InferError::IncompleteGeneration | InferError::IncompleteGenerationStream => {
                "incomplete"
            }
            other => other.error_type(),
        });
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if !self.settle() {
            request_failure("dropped");
        }
    }
}

/// Handles of what is recorded for each call of one method.
#[derive(Debug)]
pub(crate) struct MethodMetrics {
    pub(crate) count: Counter,
    pub(crate) success: Counter,
    pub(crate) failure: Counter,
    pub(crate) inference: Histogram,
    pub(crate) forward: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) filter: Histogram,
    pub(crate) experts: ExpertMetrics,
}

impl MethodMetrics {
    fn new(method: &'static str) -> Self {
        Self {
            count: counter!(BATCH_INFERENCE_COUNT, "method" => method),
            success: counter!(BATCH_INFERENCE_SUCCESS, "method" => method),
            failure: counter!(BATCH_INFERENCE_FAILURE, "method" => method),
            inference: histogram!(BATCH_INFERENCE_DURATION, "method" => method),
            forward: histogram!(BATCH_FORWARD_DURATION, "method" => method),
            decode: histogram!(BATCH_DECODE_DURATION, "method" => method),
            filter: histogram!(BATCH_FILTER_DURATION, "method" => method),
            experts: ExpertMetrics::new(method),
        }
    }
}

/// Handles of what is recorded while grammars are compiled and followed.
#[derive(Debug)]
pub(crate) struct GrammarMetrics {
    pub(crate) compile: Histogram,
    pub(crate) mask: Histogram,
    pub(crate) stuck_threads: Gauge,
}

impl GrammarMetrics {
    pub(crate) fn new() -> Self {
        Self {
            compile: histogram!(GRAMMAR_COMPILE_DURATION),
            mask: histogram!(GRAMMAR_MASK_DURATION),
            stuck_threads: gauge!(GRAMMAR_STUCK_THREADS),
        }
    }
}

/// Handles of what the batcher records.
#[derive(Debug)]
pub(crate) struct BatchMetrics {
    pub(crate) prefill: MethodMetrics,
    pub(crate) decode: MethodMetrics,
    pub(crate) next_size: Histogram,
    pub(crate) concat_duration: Histogram,
    pub(crate) backpressure: Counter,
    pub(crate) wait_exceeded: Counter,
    pub(crate) waiting_served_ratio: Gauge,
    pub(crate) current_size: Gauge,
    pub(crate) current_max_tokens: Gauge,
    pub(crate) queue_size: Gauge,
    slots: u32,
    slots_used: Gauge,
    slots_cached: Gauge,
    kv_cache_usage: Gauge,
    pub(crate) prefix_query_tokens: Counter,
    pub(crate) prefix_hit_tokens: Counter,
    pub(crate) paused: Counter,
    pub(crate) idle: Histogram,
    pub(crate) grammar_steps: Counter,
    pub(crate) masks_sent: Histogram,
    pub(crate) mask_wait: Histogram,
    pub(crate) kernel_compilations: Gauge,
    pub(crate) shard_restarts: Counter,
    pub(crate) shard_recovery: Histogram,
    pub(crate) speculation: SpeculationMetrics,
}

impl BatchMetrics {
    /// `widest`: the most tokens of a window.
    pub(crate) fn new(slots: u32, kv_cache_dtype: String, widest: u32) -> Self {
        gauge!(BATCH_MAX_TOTAL_TOKENS).set(slots);
        gauge!(KV_SLOTS_TOTAL).set(slots);
        let blocks = slots.to_string();
        gauge!(CACHE_CONFIG_INFO, "block_size" => "1", "cache_dtype" => kv_cache_dtype, "num_gpu_blocks" => blocks)
            .set(1);
        Self {
            prefill: MethodMetrics::new("prefill"),
            decode: MethodMetrics::new("decode"),
            next_size: histogram!(BATCH_NEXT_SIZE),
            concat_duration: histogram!(BATCH_CONCAT_DURATION, "method" => "decode"),
            backpressure: counter!(BATCH_CONCAT, "reason" => "backpressure"),
            wait_exceeded: counter!(BATCH_CONCAT, "reason" => "wait_exceeded"),
            waiting_served_ratio: gauge!(BATCH_WAITING_SERVED_RATIO),
            current_size: gauge!(BATCH_CURRENT_SIZE),
            current_max_tokens: gauge!(BATCH_CURRENT_MAX_TOKENS),
            queue_size: gauge!(QUEUE_SIZE),
            slots,
            slots_used: gauge!(KV_SLOTS_USED),
            slots_cached: gauge!(KV_SLOTS_CACHED),
            kv_cache_usage: gauge!(KV_CACHE_USAGE),
            prefix_query_tokens: counter!(PREFIX_CACHE_QUERY_TOKENS),
            prefix_hit_tokens: counter!(PREFIX_CACHE_HIT_TOKENS),
            paused: counter!(REQUEST_PAUSED),
            idle: histogram!(ENGINE_IDLE_DURATION),
            grammar_steps: counter!(GRAMMAR_STEPS),
            masks_sent: histogram!(GRAMMAR_MASKS_SENT_DURATION),
            mask_wait: histogram!(GRAMMAR_MASK_WAIT_DURATION),
            kernel_compilations: gauge!(ENGINE_KERNEL_COMPILATIONS),
            shard_restarts: counter!(SHARD_RESTARTS),
            shard_recovery: histogram!(SHARD_RECOVERY_DURATION),
            speculation: SpeculationMetrics::new(widest),
        }
    }

    /// So many slots are held by running requests, and so many others by what is cached.
    pub(crate) fn pool(&self, used: u32, cached: u32) {
        self.slots_used.set(used);
        self.slots_cached.set(cached);
        self.kv_cache_usage
            .set(f64::from(used) / f64::from(self.slots.max(1)));
    }
}
