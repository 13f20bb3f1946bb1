//! Configuration of a mock group: what it serves and how its rows behave.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use text_generation_proto::v1::{self, NextTokenChooserParameters};

use crate::step::MockStep;

/// What a mock row knows when it chooses its next token.
#[derive(Debug, Clone, PartialEq)]
pub struct MockRow {
    pub request_id: u64,
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// The prompt and the tokens generated before this one.
    pub ids: Vec<u32>,
    /// Tokens generated before this one.
    pub generated: u32,
    pub seed: u64,
    /// As they came; a mock draws nothing, so they change no token by themselves.
    pub parameters: NextTokenChooserParameters,
    /// Follows from all ids and images before this token, and from the adapter.
    pub content: u64,
    /// The generation of its adapter; 0: the base.
    pub adapter: u64,
}

/// Chooses the next token of a row.
pub type TokenSource = Arc<dyn Fn(&MockRow) -> u32 + Send + Sync>;

/// How long a step takes.
pub type StepTime = Arc<dyn Fn(&MockStep) -> Duration + Send + Sync>;

/// Whether something holds for a row.
pub type RowTest = Arc<dyn Fn(&MockRow) -> bool + Send + Sync>;

/// How many of a row's next drafts are right, of so many.
pub type DraftsOf = Arc<dyn Fn(&MockRow, u32) -> u32 + Send + Sync>;

/// A call of LoadAdapter.
#[derive(Debug, Clone, PartialEq)]
pub struct MockLoad {
    /// The start of the group, from 0 on.
    pub life: usize,
    pub rank: usize,
    pub request: v1::LoadAdapterRequest,
}

/// What a rank reads of the files that it is asked to load, or the reason and the message of its refusal.
pub type AdapterSource =
    Arc<dyn Fn(&MockLoad) -> Result<v1::LoadAdapterResponse, (&'static str, String)> + Send + Sync>;

/// A mock group: limits, delays and token source. Slots and rows are checked as a real shard would.
#[derive(Clone)]
pub struct MockConfig {
    pub world_size: usize,
    pub vocab_size: u32,
    pub eos_token_ids: Vec<u32>,
    /// Layers keep a state of each row, as Info says. It breaks the contract that a request has cached positions.
    pub recurrent: bool,
    /// The files of adapters.
    pub adapters: AdapterSource,
    /// A copy of an adapter is done with the plan that comes so many after its own, or with one that computes nothing.
    pub copy_plans: u64,
    /// Widths that the windows of a plan may have, ascending; empty: there is no speculation.
    pub widths: Vec<u32>,
    /// How many of a row's next drafts are right, of so many.
    pub drafts: DraftsOf,
    /// It is a classifier of so many classes: their logits are the last id of the prompt modulo 8, divided by 1, by 2, and so
    /// on. 0: it generates.
    pub classes: u32,
    /// An encoder of images.
    pub media: Option<v1::MediaInfo>,
    /// Rows of its pool.
    pub media_rows: u32,
    /// What encoding takes.
    pub media_cost: Option<v1::MediaCost>,
    /// Answers of Warmup where the caller leaves a limit open.
    pub max_batch_total_tokens: u32,
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Mask slots, slot 0 among them.
    pub max_masks: u32,
    /// Whether large steps are computed in overlapped halves, as the answer says.
    pub overlapped_halves: bool,
    /// What a step takes on the device.
    pub step_time: StepTime,
    /// From the end of a step until its reply goes out; meanwhile the next one runs.
    pub reply_time: Duration,
    /// Check at every step that each slot still holds what its request wrote there. Takes time by the context.
    pub check_slots: bool,
    /// What Warmup says of the cost of steps.
    pub cost: v1::StepCost,
    pub graph_tokens: Vec<u32>,
    /// What every reply says of the device's idle time and of compiled kernels.
    pub idle_time: Duration,
    /// What of it is for masks, in steps that have some.
    pub mask_wait: Duration,
    pub kernel_compilations: u64,
    /// What every reply of rank 0 says of how tokens spread over the experts of ranks: of some layers, the load of each.
    pub expert_loads: Vec<Vec<u32>>,
    /// This request gets the tokens that it wants, whatever its masks allow.
    pub ignores_masks_of: Option<u64>,
    /// A step that computes such a row ends the group.
    pub fatal: RowTest,
    /// A group that was lost, or is told to end, starts again, as if a launcher watched over it.
    pub restarts: bool,
    /// So long after it has ended it starts again.
    pub restart_time: Duration,
    /// Info names the start of the group. Where it does not, a second Warmup is refused, as by a real shard: by that a
    /// caller tells starts apart.
    pub named: bool,
    pub tokens: TokenSource,
}

impl Default for MockConfig {
    /// One rank without delays. Token `n` of a request is `3 + (last prompt id + n) % (vocab_size - 3)`; id 2 ends a text.
    fn default() -> Self {
        let vocab_size = 512;
        Self {
            world_size: 1,
            vocab_size,
            eos_token_ids: vec![2],
            recurrent: false,
            adapters: Arc::new(|load| {
                let message = format!("{} is not a folder", load.request.source);
                Err(("adapter_not_found", message))
            }),
            copy_plans: 0,
            widths: Vec::new(),
            drafts: Arc::new(|_, drafts| drafts),
            classes: 0,
            media: None,
            media_rows: 0,
            media_cost: None,
            max_batch_total_tokens: 16_384,
            max_input_tokens: 1_023,
            max_total_tokens: 1_024,
            max_masks: 64,
            overlapped_halves: false,
            step_time: Arc::new(|_| Duration::ZERO),
            reply_time: Duration::ZERO,
            check_slots: true,
            cost: v1::StepCost::default(),
            graph_tokens: Vec::new(),
            idle_time: Duration::ZERO,
            mask_wait: Duration::ZERO,
            kernel_compilations: 0,
            expert_loads: Vec::new(),
            ignores_masks_of: None,
            fatal: Arc::new(|_| false),
            restarts: true,
            restart_time: Duration::ZERO,
            named: true,
            tokens: Arc::new(move |row| {
                let last = row.input_ids.last().copied().unwrap_or(0);
                3 + (last + row.generated) % (vocab_size - 3)
            }),
        }
    }
}

impl MockConfig {
    /// The same with an encoder of images and `rows` for its output; `token` stands for each of them.
    pub fn with_encoder(self, token: u32, rows: u32) -> Self {
        let media = v1::MediaInfo {
            token_id: token,
            layers: 2,
            whole_spans: false,
            axes: false,
            packs: false,
        };
        Self {
            media: Some(media),
            media_rows: rows,
            ..self
        }
    }
}

impl fmt::Debug for MockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockConfig")
            .field("world_size", &self.world_size)
            .field("max_batch_total_tokens", &self.max_batch_total_tokens)
            .finish_non_exhaustive()
    }
}
