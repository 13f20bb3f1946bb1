//! Names of metrics: those of the TGI contract, and ours.

pub const REQUEST_COUNT: &str = "tgi_request_count";
pub const REQUEST_SUCCESS: &str = "tgi_request_success";
/// Label `err`: one of [`super::FAILURES`].
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
/// Time of a step outside its forward pass.
pub const BATCH_DECODE_DURATION: &str = "tgi_batch_decode_duration";
/// Handing out the tokens of a step.
pub const BATCH_FILTER_DURATION: &str = "tgi_batch_filter_duration";
/// Between the arrival of a plan at the shards and its launch.
pub const BATCH_CONCAT_DURATION: &str = "tgi_batch_concat_duration";
/// Label `reason`: backpressure, wait_exceeded.
pub const BATCH_CONCAT: &str = "tgi_batch_concat";
/// How many requests must wait for each one that decodes before they join: `--waiting-served-ratio`, or what `auto` found.
pub const BATCH_WAITING_SERVED_RATIO: &str = "tgi_batch_waiting_served_ratio";
pub const BATCH_CURRENT_SIZE: &str = "tgi_batch_current_size";
pub const BATCH_CURRENT_MAX_TOKENS: &str = "tgi_batch_current_max_tokens";
pub const BATCH_MAX_TOTAL_TOKENS: &str = "tgi_batch_max_total_tokens";
pub const QUEUE_SIZE: &str = "tgi_queue_size";
/// Generations of each adapter that run and that wait. Label `adapter`: its name.
pub const ADAPTER_REQUESTS_RUNNING: &str = "tgi_adapter_requests_running";
pub const ADAPTER_REQUESTS_WAITING: &str = "tgi_adapter_requests_waiting";
/// Pages of the device for adapters (`--adapter-pages`), those that adapters have, and how many adapters these are.
pub const ADAPTER_PAGES_TOTAL: &str = "tgi_adapter_pages_total";
pub const ADAPTER_PAGES_USED: &str = "tgi_adapter_pages_used";
pub const ADAPTERS_RESIDENT: &str = "tgi_adapters_resident";
/// Adapters that went to pages of the device, and those that made room for others.
pub const ADAPTER_COPIES: &str = "tgi_adapter_copies";
pub const ADAPTER_EVICTIONS: &str = "tgi_adapter_evictions";
/// Reading an adapter into host memory, on all ranks, and how often that failed.
pub const ADAPTER_LOAD_DURATION: &str = "tgi_adapter_load_duration";
pub const ADAPTER_LOADS_FAILED: &str = "tgi_adapter_loads_failed";
pub const KV_SLOTS_USED: &str = "tgi_kv_slots_used";
pub const KV_SLOTS_TOTAL: &str = "tgi_kv_slots_total";
/// Slots of cached tokens that nobody reads; they count as free.
pub const KV_SLOTS_CACHED: &str = "tgi_kv_slots_cached";
/// Share of the slots that running requests hold, 0 to 1.
pub const KV_CACHE_USAGE: &str = "tgi_kv_cache_usage";
/// Always 1. Labels `block_size`, `cache_dtype` and `num_gpu_blocks`: a block of the pool is one slot.
pub const CACHE_CONFIG_INFO: &str = "tgi_cache_config_info";
/// Tokens of prompts, and those of them that were found in the prefix tree.
pub const PREFIX_CACHE_QUERY_TOKENS: &str = "tgi_prefix_cache_query_tokens";
pub const PREFIX_CACHE_HIT_TOKENS: &str = "tgi_prefix_cache_hit_tokens";
/// Windows of drafted tokens, the drafts in them, and those that were accepted.
pub const SPECULATION_WINDOWS: &str = "tgi_speculation_windows";
pub const SPECULATION_DRAFTS: &str = "tgi_speculation_drafts";
pub const SPECULATION_ACCEPTED: &str = "tgi_speculation_accepted";
/// Accepted drafts by their place in the window. Label `position`, from 0 on.
pub const SPECULATION_ACCEPTED_PER_POSITION: &str = "tgi_speculation_accepted_per_position";
/// Requests that gave up their slots for a while.
pub const REQUEST_PAUSED: &str = "tgi_request_paused";
/// Idle time of the device before a decode step.
pub const ENGINE_IDLE_DURATION: &str = "tgi_engine_idle_duration";
/// Load of the busiest shard over the mean of all, where shards have whole experts each; 1 is even. Label `method`.
pub const EXPERT_LOAD_IMBALANCE: &str = "tgi_expert_load_imbalance";
/// Kernels compiled since the end of warm-up, in the shard that compiled most.
pub const ENGINE_KERNEL_COMPILATIONS: &str = "tgi_engine_kernel_compilations";

/// Images that the encoder has computed, and those that it had computed before.
pub const MEDIA_ENCODED: &str = "tgi_media_encoded";
pub const MEDIA_REUSED: &str = "tgi_media_reused";
/// Images that did not reach the shards.
pub const MEDIA_FAILED: &str = "tgi_media_failed";
/// What steps that encoded images took for it.
pub const MEDIA_ENCODE_DURATION: &str = "tgi_media_encode_duration";
/// Rows of the media pool (`--media-rows`), and those that hold an image.
pub const MEDIA_ROWS_TOTAL: &str = "tgi_media_rows_total";
pub const MEDIA_ROWS_USED: &str = "tgi_media_rows_used";

/// How often the shards were lost and serve again, and from the loss until they did.
pub const SHARD_RESTARTS: &str = "tgi_shard_restarts";
pub const SHARD_RECOVERY_DURATION: &str = "tgi_shard_recovery_duration";

/// Steps with rows whose sampling waited for masks.
pub const GRAMMAR_STEPS: &str = "tgi_grammar_steps";
/// How long after its plan the masks of a step were sent: a step that takes longer has not waited for them.
pub const GRAMMAR_MASKS_SENT_DURATION: &str = "tgi_grammar_masks_sent_duration";
/// Idle time of the device because the masks of a step came after its forward pass; of such steps alone.
pub const GRAMMAR_MASK_WAIT_DURATION: &str = "tgi_grammar_mask_wait_duration";
/// Compiling a grammar, or finding it in the cache, and the mask of its first token.
pub const GRAMMAR_COMPILE_DURATION: &str = "tgi_grammar_compile_duration";
/// Following a grammar by one token, and the mask of the next.
pub const GRAMMAR_MASK_DURATION: &str = "tgi_grammar_mask_duration";
/// Threads that have compiled one grammar for too long and cannot be ended.
pub const GRAMMAR_STUCK_THREADS: &str = "tgi_grammar_stuck_threads";
