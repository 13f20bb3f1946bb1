//! Metric names of the TGI contract and ours, and the handles that record them.
//!
//! Handles are looked up once, when [`crate::infer::Infer`] is built, so the recorder must be installed before that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::time::Instant;

use crate::error::InferError;
use crate::types::RequestInstants;

pub const REQUEST_COUNT: &str = "tgi_request_count";
pub const REQUEST_SUCCESS: &str = "tgi_request_success";
/// Label `err`: overloaded, validation, template, incomplete, dropped, generation, grammar, shutting_down.
pub const REQUEST_FAILURE: &str = "tgi_request_failure";
/// Requests that a stop string ended.
pub const REQUEST_STOPPED: &str = "tgi_request_stopped";
pub const REQUEST_DURATION: &str = "tgi_request_duration";
pub const REQUEST_VALIDATION_DURATION: &str = "tgi_request_validation_duration";
pub const REQUEST_QUEUE_DURATION: &str = "tgi_request_queue_duration";
pub const REQUEST_INFERENCE_DURATION: &str = "tgi_request_inference_duration";
pub const REQUEST_MEAN_TIME_PER_TOKEN_DURATION: &str = "tgi_request_mean_time_per_token_duration";
pub const REQUEST_TIME_TO_FIRST_TOKEN_DURATION: &str = "tgi_request_time_to_first_token_duration";
pub const REQUEST_TIME_BETWEEN_TOKENS_DURATION: &str = "tgi_request_time_between_tokens_duration";
pub const REQUEST_GENERATED_TOKENS: &str = "tgi_request_generated_tokens";
pub const REQUEST_INPUT_LENGTH: &str = "tgi_request_input_length";
pub const REQUEST_MAX_NEW_TOKENS: &str = "tgi_request_max_new_tokens";
/// Tokens of a step beyond the first.
pub const REQUEST_SKIPPED_TOKENS: &str = "tgi_request_skipped_tokens";
pub const BATCH_NEXT_SIZE: &str = "tgi_batch_next_size";
/// Label `method`, as of all that follow up to concat: prefill (steps with chunks of prompts), decode.
pub const BATCH_INFERENCE_COUNT: &str = "tgi_batch_inference_count";
pub const BATCH_INFERENCE_SUCCESS: &str = "tgi_batch_inference_success";
pub const BATCH_INFERENCE_FAILURE: &str = "tgi_batch_inference_failure";
pub const BATCH_INFERENCE_DURATION: &str = "tgi_batch_inference_duration";
pub const BATCH_FORWARD_DURATION: &str = "tgi_batch_forward_duration";
/// What a step took beside its forward pass.
pub const BATCH_DECODE_DURATION: &str = "tgi_batch_decode_duration";
/// Handing out the tokens of a step.
pub const BATCH_FILTER_DURATION: &str = "tgi_batch_filter_duration";
/// Between the arrival of a plan at the shards and its launch.
pub const BATCH_CONCAT_DURATION: &str = "tgi_batch_concat_duration";
/// Label `reason`: backpressure, wait_exceeded.
pub const BATCH_CONCAT: &str = "tgi_batch_concat";
pub const BATCH_CURRENT_SIZE: &str = "tgi_batch_current_size";
pub const BATCH_CURRENT_MAX_TOKENS: &str = "tgi_batch_current_max_tokens";
pub const BATCH_MAX_TOTAL_TOKENS: &str = "tgi_batch_max_total_tokens";
pub const QUEUE_SIZE: &str = "tgi_queue_size";
pub const KV_SLOTS_USED: &str = "tgi_kv_slots_used";
pub const KV_SLOTS_TOTAL: &str = "tgi_kv_slots_total";
/// Slots that hold what is cached and nobody reads; they count as free.
pub const KV_SLOTS_CACHED: &str = "tgi_kv_slots_cached";
/// Tokens of prompts, and those of them that were found in the prefix tree.
pub const PREFIX_CACHE_QUERY_TOKENS: &str = "tgi_prefix_cache_query_tokens";
pub const PREFIX_CACHE_HIT_TOKENS: &str = "tgi_prefix_cache_hit_tokens";
/// Requests that gave up their slots for a while.
pub const REQUEST_PAUSED: &str = "tgi_request_paused";
/// How long the device had nothing to do before a decode step.
pub const ENGINE_IDLE_DURATION: &str = "tgi_engine_idle_duration";
/// Kernels compiled since the end of warm-up, in the shard that compiled most.
pub const ENGINE_KERNEL_COMPILATIONS: &str = "tgi_engine_kernel_compilations";

/// How often the shards were lost and serve again, and from the loss until they did.
pub const SHARD_RESTARTS: &str = "tgi_shard_restarts";
pub const SHARD_RECOVERY_DURATION: &str = "tgi_shard_recovery_duration";

/// Steps with rows whose choice waited for masks.
pub const GRAMMAR_STEPS: &str = "tgi_grammar_steps";
/// How long after its plan the masks of a step were sent: a step that takes longer has not waited for them.
pub const GRAMMAR_MASKS_SENT_DURATION: &str = "tgi_grammar_masks_sent_duration";
/// Compiling a grammar, or finding it in the cache, and the mask of its first token.
pub const GRAMMAR_COMPILE_DURATION: &str = "tgi_grammar_compile_duration";
/// Following a grammar by one token, and the mask of the next.
pub const GRAMMAR_MASK_DURATION: &str = "tgi_grammar_mask_duration";

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

    /// `tokens` of one step arrived, `since` the step before.
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
        }
    }
}

/// Handles of what is recorded while grammars are compiled and followed.
#[derive(Debug)]
pub(crate) struct GrammarMetrics {
    pub(crate) compile: Histogram,
    pub(crate) mask: Histogram,
}

impl GrammarMetrics {
    pub(crate) fn new() -> Self {
        Self {
            compile: histogram!(GRAMMAR_COMPILE_DURATION),
            mask: histogram!(GRAMMAR_MASK_DURATION),
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
    pub(crate) current_size: Gauge,
    pub(crate) current_max_tokens: Gauge,
    pub(crate) queue_size: Gauge,
    pub(crate) slots_used: Gauge,
    pub(crate) slots_cached: Gauge,
    pub(crate) prefix_query_tokens: Counter,
    pub(crate) prefix_hit_tokens: Counter,
    pub(crate) paused: Counter,
    pub(crate) idle: Histogram,
    pub(crate) grammar_steps: Counter,
    pub(crate) masks_sent: Histogram,
    pub(crate) kernel_compilations: Gauge,
    pub(crate) shard_restarts: Counter,
    pub(crate) shard_recovery: Histogram,
}

impl BatchMetrics {
    pub(crate) fn new(slots: u32) -> Self {
        gauge!(BATCH_MAX_TOTAL_TOKENS).set(slots);
        gauge!(KV_SLOTS_TOTAL).set(slots);
        Self {
            prefill: MethodMetrics::new("prefill"),
            decode: MethodMetrics::new("decode"),
            next_size: histogram!(BATCH_NEXT_SIZE),
            concat_duration: histogram!(BATCH_CONCAT_DURATION, "method" => "decode"),
            backpressure: counter!(BATCH_CONCAT, "reason" => "backpressure"),
            wait_exceeded: counter!(BATCH_CONCAT, "reason" => "wait_exceeded"),
            current_size: gauge!(BATCH_CURRENT_SIZE),
            current_max_tokens: gauge!(BATCH_CURRENT_MAX_TOKENS),
            queue_size: gauge!(QUEUE_SIZE),
            slots_used: gauge!(KV_SLOTS_USED),
            slots_cached: gauge!(KV_SLOTS_CACHED),
            prefix_query_tokens: counter!(PREFIX_CACHE_QUERY_TOKENS),
            prefix_hit_tokens: counter!(PREFIX_CACHE_HIT_TOKENS),
            paused: counter!(REQUEST_PAUSED),
            idle: histogram!(ENGINE_IDLE_DURATION),
            grammar_steps: counter!(GRAMMAR_STEPS),
            masks_sent: histogram!(GRAMMAR_MASKS_SENT_DURATION),
            kernel_compilations: gauge!(ENGINE_KERNEL_COMPILATIONS),
            shard_restarts: counter!(SHARD_RESTARTS),
            shard_recovery: histogram!(SHARD_RECOVERY_DURATION),
        }
    }
}
