//! Domain types of the shard contract. Generated types never leave this crate.

use std::time::Duration;

use smallvec::SmallVec;

/// `length` neighbouring slots from `start` on. A slot holds K and V of one token in every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    pub start: u32,
    pub length: u32,
}

/// What the shard group serves; see `InfoResponse` of the contract.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardInfo {
    pub dtype: String,
    pub device_type: String,
    pub world_size: u32,
    pub vocab_size: u32,
    pub max_position_embeddings: u32,
    pub eos_token_ids: Vec<u32>,
    pub attention_impl: String,
    pub version: String,
}

/// Limits that the operator asked for; `None` is left to the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmupLimits {
    pub max_input_tokens: Option<u32>,
    pub max_total_tokens: Option<u32>,
    pub max_batch_prefill_tokens: u32,
    pub max_batch_total_tokens: Option<u32>,
    pub max_batch_size: u32,
}

/// Limits that the shards decided: the minimum over the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingLimits {
    /// Slots `0..max_batch_total_tokens` may be used.
    pub max_batch_total_tokens: u32,
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    pub max_batch_size: u32,
}

/// How the next token is chosen; neutral values switch a filter off (see the contract).
#[derive(Debug, Clone, PartialEq)]
pub struct NextTokenChooser {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub typical_p: f32,
    pub do_sample: bool,
    pub seed: u64,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub watermark: bool,
    pub presence_penalty: f32,
    /// Frequency and presence penalties count generated tokens only, not those of the prompt.
    pub penalize_output_only: bool,
    pub min_p: f32,
    /// Token ids and what is added to their logits; each id at most once.
    pub logit_bias: Vec<(u32, f32)>,
}

impl NextTokenChooser {
    /// The most likely token, every filter and penalty off.
    pub const GREEDY: Self = Self {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        typical_p: 1.0,
        do_sample: false,
        seed: 0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        watermark: false,
        presence_penalty: 0.0,
        penalize_output_only: false,
        min_p: 0.0,
        logit_bias: Vec::new(),
    };
}

/// When a request ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoppingCriteria {
    pub max_new_tokens: u32,
    pub ignore_eos_token: bool,
    /// No end-of-sequence token is chosen before so many tokens.
    pub min_new_tokens: u32,
}

/// One more sample of a request's prompt: a request of its own in every reply and later call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub id: u64,
    pub seed: u64,
    /// For the positions after the prompt.
    pub slots: Vec<SlotRange>,
}

/// One request of a prefill.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: u64,
    pub input_ids: Vec<u32>,
    pub chooser: NextTokenChooser,
    pub stopping: StoppingCriteria,
    pub prefill_logprobs: bool,
    pub top_n_tokens: u32,
    /// For positions 0, 1, ...
    pub slots: Vec<SlotRange>,
    /// They read the prompt through `slots`.
    pub copies: Vec<Copy>,
}

/// A new batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub id: u64,
    pub requests: Vec<Request>,
}

/// A batch that the shards hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedBatch {
    pub id: u64,
    pub request_ids: Vec<u64>,
    /// KV slots in use by these requests; ignored in calls.
    pub current_tokens: u32,
}

/// More slots for a running request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub request_id: u64,
    pub slots: Vec<SlotRange>,
}

/// Why a shard ended a request. Stop strings are matched by the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    Length,
    EosToken,
}

/// An id with its log-probability; `logprob` is NaN where none exists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenId {
    pub id: u32,
    pub logprob: f32,
}

/// Sent with the last token of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    pub reason: FinishReason,
    pub generated_tokens: u32,
    /// Set when the request sampled.
    pub seed: Option<u64>,
}

/// The tokens that one step accepted for one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    pub request_id: u64,
    pub prefill_tokens: Option<Vec<TokenId>>,
    /// In place: nearly always one, which goes from one thread to another without an allocation.
    pub tokens: SmallVec<[TokenId; 1]>,
    /// One list for each token of `tokens`, or empty.
    pub top_tokens: Vec<Vec<TokenId>>,
    pub finish: Option<Finish>,
}

/// One request failed in the shard, which has already freed its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailure {
    pub request_id: u64,
    pub reason: String,
    pub message: String,
}

/// Time spent in the slowest shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    pub concat: Duration,
    pub forward: Duration,
    pub decode: Duration,
    pub total: Duration,
    /// The device had nothing to do between the step before and this one.
    pub idle: Duration,
    /// Since the end of warm-up; anything but 0 is a defect.
    pub kernel_compilations: u64,
}

/// The joined reply of all shards to a prefill or a decode.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReply {
    pub generations: Vec<Generation>,
    /// `None` when no request of the batch is left.
    pub batch: Option<CachedBatch>,
    pub failures: Vec<RequestFailure>,
    pub timings: Timings,
}
