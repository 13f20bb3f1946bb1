//! Domain types of the shard contract. Generated types never leave this crate.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// Names a request to the shards; the router gives each number once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A place in the batch. Plans and replies name a running request by its row, from its admission until it is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(pub u32);

impl Row {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

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
    /// Number type of stored keys and values.
    pub kv_cache_dtype: String,
    /// Layers keep a state of each row, so a request is computed from position 0 on: `cached_length` must be 0.
    pub recurrent: bool,
    /// `None` where the model has no encoder of images, or serves its text alone.
    pub media: Option<MediaInfo>,
    /// Widths that the windows of a plan may have beside 1, ascending; empty: there is no speculation.
    pub widths: Vec<u32>,
    /// The most windows times their width, where that is above 1.
    pub max_window_tokens: u32,
    /// What drafts come from, beside hints: `ngram`, or the kind of a model. Empty where no width is.
    pub drafter: String,
    /// That a classifier scores in place of generating text; 0: the model generates.
    pub classes: u32,
}

/// An adapter whose files the shards are to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadAdapter {
    /// For messages and the log.
    pub name: String,
    /// A folder, or a hub id that has been downloaded, with or without `@revision`.
    pub source: String,
    /// Whoever named it is not the operator: only safetensors are read.
    pub untrusted: bool,
    /// The contents that it must have; 0: any.
    pub generation: u64,
}

/// An adapter in the host memory of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedAdapter {
    /// Never 0; equal for equal contents.
    pub generation: u64,
    /// The highest of its matrices.
    pub rank: u32,
    /// That it takes on the device.
    pub pages: u32,
    /// Of host memory, of all ranks together.
    pub bytes: u64,
}

/// Brings an adapter from host memory to its pages; from then on `number` is this adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterCopy {
    pub number: u32,
    pub generation: u64,
    pub first_page: u32,
}

/// The encoder of images, as plans have to know it; see `MediaInfo` of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaInfo {
    /// Stands in `input_ids` at every position of a span.
    pub token_id: u32,
    /// Of the encoder.
    pub layers: u32,
    /// What a chunk computes of a span goes to the span's end.
    pub whole_spans: bool,
    /// Positions count along axes (M-RoPE): spans are grids.
    pub axes: bool,
    /// Whole items that follow each other in a plan are encoded together.
    pub packs: bool,
}

/// Limits that the operator asked for; `None` is left to the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmupLimits {
    pub max_input_tokens: Option<u32>,
    pub max_total_tokens: Option<u32>,
    /// Prompt tokens of one step.
    pub max_batch_prefill_tokens: u32,
    pub max_batch_total_tokens: Option<u32>,
    pub max_batch_size: u32,
    /// Whether a prompt may be longer than `max_batch_prefill_tokens`, because it is computed in chunks.
    pub prefill_chunking: bool,
    /// The limits are those that an earlier start of these shards has served with, so that nothing is measured.
    pub regained: bool,
    /// With `regained`: what [`Warmup::overlapped_halves`] of that start was.
    pub overlapped_halves: bool,
    /// Rows of the media pool; 0: no media is served.
    pub media_rows: u32,
    /// Of all views of the largest item that will come.
    pub max_media_pixels: u32,
    /// For adapters on the device, and as many numbers; 0: requests have no adapters.
    pub adapter_pages: u32,
    /// Adapters may be loaded after warm-up that change other matrices than those which are loaded by then.
    pub adapters_later: bool,
}

/// Limits that the shards decided: the minimum over the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingLimits {
    /// Slots `0..max_batch_total_tokens` may be used.
    pub max_batch_total_tokens: u32,
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Rows `0..max_batch_size` may be used.
    pub max_batch_size: u32,
}

impl fmt::Display for ServingLimits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} tokens of prompt, {} with the answer, {} of all requests, {} requests at once",
            self.max_input_tokens,
            self.max_total_tokens,
            self.max_batch_total_tokens,
            self.max_batch_size
        )
    }
}

/// What a step takes, as measured at warm-up by the slowest shard; see `StepCost` of the contract.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCost {
    /// Tokens of decodes and chunks together, ascending.
    pub tokens: Vec<u32>,
    /// One for each of `tokens`.
    pub times_ms: Vec<f32>,
    pub pair_ns: f32,
    pub context_ns: f32,
    /// Sizes for which a step with chunks replays a captured graph, ascending.
    pub graph_tokens: Vec<u32>,
    /// Of each width of windows, single tokens among them, where there is speculation.
    pub windows: Vec<WindowCost>,
}

/// What decodes alone take, where each computes a window of `width` tokens; see `WindowCost` of the contract.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowCost {
    pub width: u32,
    /// Ascending.
    pub rows: Vec<u32>,
    /// One for each of `rows`.
    pub times_ms: Vec<f32>,
    /// Of each position that they attend to.
    pub context_ns: f32,
}

/// What warm-up brought.
#[derive(Debug, Clone, PartialEq)]
pub struct Warmup {
    pub limits: ServingLimits,
    pub cost: StepCost,
    /// Mask slots `0..max_masks` exist; slot 0 allows every token and is never written.
    pub max_masks: u32,
    /// Large steps are computed in overlapped halves: the all-reduces of one run beside the GEMMs of the other.
    pub overlapped_halves: bool,
    pub media_cost: MediaCost,
}

/// What it takes to encode an item, all layers together, by the pixels of its views; see `MediaCost` of the contract.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MediaCost {
    /// Ascending.
    pub pixels: Vec<u32>,
    /// One for each of `pixels`.
    pub times_ms: Vec<f32>,
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
    /// No end-of-sequence token is chosen before so many tokens.
    pub min_new_tokens: u32,
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
        min_new_tokens: 0,
    };
}

/// A request as it stands: fresh, after a cached prefix, or where it was interrupted.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: RequestId,
    pub row: Row,
    /// The prompt, then the tokens generated so far.
    pub input_ids: Vec<u32>,
    pub num_generated: u32,
    /// Positions whose K and V are in their slots already.
    pub cached_length: u32,
    /// For positions 0, 1, ...
    pub slots: Vec<SlotRange>,
    pub chooser: NextTokenChooser,
    pub top_n_tokens: u32,
    pub prefill_logprobs: bool,
    /// Ascending and apart.
    pub media: Vec<MediaSpan>,
    /// The number of its adapter, which all ranks have said to be ready; 0: the base.
    pub adapter: u32,
    /// How many tokens it may generate in all.
    pub max_new_tokens: u32,
}

/// Rows and columns of an item's rows, where the encoder has [axes](MediaInfo::axes); else both are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grid {
    pub height: u32,
    pub width: u32,
}

/// Positions `first .. first + length` of a request take rows of the media pool in place of token embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaSpan {
    pub first: u32,
    pub length: u32,
    /// Of the media pool, for `first`. Not read for positions that are cached.
    pub row: u32,
    pub grid: Grid,
}

/// Names an item of media to the shards; the router gives each number once between two clearings of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub u64);

/// Layers of the encoder for one item; the last of them writes its rows of the media pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encode {
    pub item: ItemId,
    pub first_layer: u32,
    pub layers: u32,
    pub row: u32,
    pub rows: u32,
}

/// Rows and columns of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaView {
    pub height: u32,
    pub width: u32,
}

/// An item with its pixels: those of all views, one after the other, a byte each for red, green and blue.
#[derive(Clone, PartialEq, Eq)]
pub struct PutMedia {
    pub item: ItemId,
    pub views: Vec<MediaView>,
    pub grid: Grid,
    pub rows: u32,
    pub pixels: Bytes,
}

impl fmt::Debug for PutMedia {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PutMedia")
            .field("item", &self.item)
            .field("views", &self.views)
            .finish_non_exhaustive()
    }
}

/// Positions of the ids of a request that one step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub row: Row,
    pub first: u32,
    pub count: u32,
}

/// More slots for a running request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub row: Row,
    pub slots: Vec<SlotRange>,
}

/// Names the span of a request, for the spans of the steps that compute it (W3C Trace Context: trace id and parent id).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceLink {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    /// All of its steps are traced, and not some of its decodes.
    pub every_step: bool,
}

/// One step: rows are dropped, then given to new requests, then slots are granted, then tokens are computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepPlan {
    /// 0 after warm-up and after everything was cleared, then one more each.
    pub number: u64,
    pub drop: Vec<Row>,
    pub admit: Vec<Request>,
    pub grants: Vec<Grant>,
    pub chunks: Vec<Chunk>,
    pub decode: Vec<Row>,
    /// The most tokens that each of `decode` gets; empty: one. Slots reach as far as if it got all of them.
    pub widths: Vec<u32>,
    /// Of the rows that get a token, those whose sampling waits for the [`StepMasks`] of this number.
    pub constrained: Vec<Row>,
    /// So long may the step take on the device, then the shards are not healthy; whoever sends the plan waits no longer
    /// either, from the turn of the plan on. Zero: the shards' own limit, and that of [`Deadlines`](crate::Deadlines).
    pub limit: Duration,
    /// The requests that it computes, where steps are traced.
    pub trace_links: Vec<TraceLink>,
    /// In this order, before tokens are computed.
    pub encode: Vec<Encode>,
    /// Items whose pixels and half-encoded layers are dropped.
    pub forget: Vec<ItemId>,
    /// After the steps of earlier plans, beside this one and later ones.
    pub adapter_copies: Vec<AdapterCopy>,
    /// Each in place of the row's earlier one.
    pub hints: Vec<Hint>,
}

/// What the text of the request in `row` may be from position `at` on, where its ids begin at 0. Shards that draft do so
/// from it while the tokens since agree. It changes no token and is never an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    pub row: Row,
    pub at: u32,
    /// Of more than [`MAX_HINT`] the first are used.
    pub ids: Vec<u32>,
}

/// The most ids of a [`Hint`] that are used.
pub const MAX_HINT: usize = 64;

/// Masks for the constrained rows of the plan `number`. Writes come first, then each row is given a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepMasks {
    pub number: u64,
    pub writes: Vec<MaskWrite>,
    /// Those of the plan, each with its slots: for its next token, and for those behind it as long as its drafts, those of
    /// its hint, are right. It gets at most so many tokens.
    pub rows: Vec<(Row, Vec<u32>)>,
}

/// What a mask slot holds from this step on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskWrite {
    pub slot: u32,
    pub tokens: AllowedTokens,
}

/// Which tokens a mask allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedTokens {
    /// Bit `id % 8`, lowest first, of byte `id / 8`; one for each id of the vocabulary.
    Bits(Vec<u8>),
    Only(Vec<u32>),
    Except(Vec<u32>),
}

/// An id with its log-probability; `logprob` is NaN where none exists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenId {
    pub id: u32,
    pub logprob: f32,
}

/// The most likely tokens at one place, best first.
#[derive(Debug, Clone, PartialEq)]
pub struct TopTokens {
    /// Of the place, in the list that it belongs to.
    pub index: usize,
    pub tokens: Vec<TokenId>,
}

/// Log-probabilities of the prompt tokens at positions `first + 1`, `first + 2`, ...
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScores {
    pub row: Row,
    pub first: u32,
    pub logprobs: Vec<f32>,
    pub top_tokens: Vec<TopTokens>,
}

/// One request failed in the shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFailure {
    pub request_id: RequestId,
    pub row: Row,
    pub reason: String,
    pub message: String,
}

/// Time spent in the slowest shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the plan to its launch.
    pub host: Duration,
    pub forward: Duration,
    /// Idle time of the device between the previous step and this one.
    pub idle: Duration,
    /// The share of it that the device waited for masks, which came after the forward pass had ended.
    pub mask_wait: Duration,
    /// The share of `forward` that encoding media took.
    pub encode: Duration,
    /// Since the end of warm-up; anything but 0 is a defect.
    pub kernel_compilations: u64,
}

/// The drafts of a row in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Those of its window.
    pub checked: u32,
    /// How many were right, of those of the window and the one behind it.
    pub right: u32,
    /// They were ids of a hint.
    pub hinted: bool,
    /// There were none, because the step before made none.
    pub left_out: bool,
}

/// What a step computed, by the shards together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepReply {
    pub number: u64,
    /// Those that got tokens: decodes in the plan's order, then chunks.
    pub rows: Vec<Row>,
    /// How many of `tokens` each of `rows` got; empty: one.
    pub counts: Vec<u32>,
    /// Those of the first row, then those of the second, and so on.
    pub tokens: Vec<TokenId>,
    /// What became of the drafts of each of `rows`; empty: there is no speculation.
    pub drafts: Vec<Drafted>,
    pub top_tokens: Vec<TopTokens>,
    pub prompt_scores: Vec<PromptScores>,
    /// Of a classifier: those of all classes for the first row, then for the second, and so on.
    pub class_logits: Vec<f32>,
    /// Of some layers, where ranks have whole experts each: how many times one of the step's tokens is computed by one of
    /// the experts of each rank. Else empty.
    pub expert_loads: Vec<Vec<u32>>,
    pub failures: Vec<RequestFailure>,
    pub timings: Timings,
    /// Numbers whose copies a rank has made, once for each rank.
    pub adapters_ready: Vec<u32>,
}
