//! Errors that a front end maps to a status; the table is `docs/errors.md`.

mod adapter;
mod given;
mod overflow;

use std::time::Duration;

use text_generation_client::ClientError;
pub use text_generation_grammar::GrammarError;
pub use text_generation_images::{DataUrlError, FetchError, ImageError};

pub use self::adapter::AdapterError;
pub use self::given::Given;
pub use self::overflow::{Overflow, PromptTokens};

/// Why a request was refused before it was queued. The text names the field and the limit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ValidationError {
    #[error("`best_of` must be > 0 and <= {max}. Given: {given}")]
    BestOf { max: u32, given: u32 },
    /// More samples of one prompt than could ever run together. `flag` is the limit that they meet first.
    #[error("`{field}` must be > 0 and <= {max}. Given: {given}; the limit is `{flag}`")]
    Samples {
        field: &'static str,
        max: u32,
        flag: &'static str,
        given: u32,
    },
    /// More generations of all prompts of a request together than could ever run.
    #[error(
        "a request may start at most {max} generations (`{flag}`). Given: {given}, for all prompts together"
    )]
    Generations {
        max: u32,
        flag: &'static str,
        given: u32,
    },
    /// More tokens than its tenant may have in a minute: they would never be there.
    #[error(
        "`inputs` must have at most {max} tokens, the `tokens_per_minute` of this key. Given: {given}"
    )]
    TenantTokens { max: u32, given: u32 },
    #[error("`best_of` != 1 is not allowed for this endpoint")]
    BestOfDisabled,
    #[error("you must use sampling when `best_of` is > 1")]
    BestOfSampling,
    #[error("`seed` must not be set when `best_of` > 1")]
    BestOfSeed,
    #[error("`best_of` != 1 is not supported when streaming tokens")]
    BestOfStream,
    #[error("`beam_width` must be >= 1 and <= {max} (`--max-beam-width`). Given: {given}")]
    BeamWidth { max: u32, given: u32 },
    #[error("beam search is switched off on this server (`--max-beam-width` 0)")]
    BeamsDisabled,
    #[error(
        "beam search needs the prefix cache, in which beams share what they begin with, and this server has none: `--prefix-caching` is false, or layers of its model keep a state"
    )]
    BeamsUncached,
    /// A search knows no more alternatives to a token than a shard returns, and each token that ends a text may be one.
    #[error(
        "`beam_width` must be <= {max} in a model and a request with {ends} end-of-sequence and stop tokens. Given: {given}; search with fewer beams, or send fewer `stop_token_ids`"
    )]
    BeamEnds { max: u32, ends: usize, given: u32 },
    #[error("`{field}` is for beam search alone: send `beam_width` too, or leave it out")]
    NoBeams { field: &'static str },
    #[error(
        "`{field}` cannot be combined with beam search, which looks for the most probable texts; leave it out"
    )]
    NotWithBeams { field: &'static str },
    #[error("`length_penalty` must be >= -{max} and <= {max}")]
    LengthPenalty { max: f32 },
    #[error("`top_n_tokens` must be >= 0 and <= {max}. Given: {given}")]
    TopNTokens { max: u32, given: u32 },
    /// The same on the routes of OpenAI, which have a limit of their own.
    #[error("`top_n_tokens` must be >= 0 and <= {max} (`--max-logprobs`). Given: {given}")]
    Logprobs { max: u32, given: u32 },
    #[error("`decoder_input_details` == true is not supported when streaming tokens")]
    PrefillDetailsStream,
    #[error("`temperature` must be strictly positive")]
    Temperature,
    /// A number that was read as an infinity.
    #[error("`{field}` must be <= {:e}", f32::MAX)]
    TooLarge { field: &'static str },
    #[error("`repetition_penalty` must be strictly positive")]
    RepetitionPenalty,
    #[error("`repetition_penalty` must be >= {min:e} and <= {max:e}. Given: {:e}", Given(*given))]
    RepetitionPenaltyRange { min: f32, max: f32, given: f32 },
    #[error("`frequency_penalty` must be >= -2.0 and <= 2.0")]
    FrequencyPenalty,
    #[error("`presence_penalty` must be >= -2.0 and <= 2.0")]
    PresencePenalty,
    #[error("`top_p` must be > 0.0 and < 1.0")]
    TopP,
    #[error("`top_k` must be strictly positive")]
    TopK,
    #[error("`typical_p` must be > 0.0 and < 1.0")]
    TypicalP,
    #[error("`min_p` must be >= 0.0 and <= 1.0")]
    MinP,
    #[error("`logit_bias` supports up to {max} token ids. Given: {given}")]
    LogitBiasLength { max: usize, given: usize },
    #[error(
        "`logit_bias` must be >= -100.0 and <= 100.0. Given: {} for the token id {id}",
        Given(*bias)
    )]
    LogitBias { id: u32, bias: f32 },
    #[error("`{field}` contains the token id {id}, but the model knows only ids below {max}")]
    TokenId {
        field: &'static str,
        id: u32,
        max: u32,
    },
    #[error("`truncate` must be strictly positive and less than {max}. Given: {given}")]
    Truncate { max: u32, given: usize },
    /// The same on the routes of OpenAI, where -1 has a meaning.
    #[error("`truncate` must be -1, or >= 1 and <= {max}. Given: {given}")]
    TruncatePrompt { max: u32, given: usize },
    #[error("`max_new_tokens` must be strictly positive")]
    NegativeMaxNewTokens,
    #[error("`min_new_tokens` must be <= `max_new_tokens`, which is {max}. Given: {given}")]
    MinNewTokens { max: u32, given: u32 },
    #[error(
        "`inputs` tokens + `max_new_tokens` must be <= {max}. Given: {inputs} `inputs` tokens and {new} `max_new_tokens`"
    )]
    MaxTotalTokens {
        max: u32,
        inputs: u32,
        new: u32,
        /// Whether the request says `new` itself.
        asked: bool,
    },
    /// Of a prompt that would be cut to what fits, and of which not one token does.
    #[error(
        "`max_new_tokens` must be < {max}, which is for prompt and answer together. Given: {new}"
    )]
    NoRoom { max: u32, new: u32 },
    /// `total` is for prompt and answer together.
    #[error("`inputs` must have less than {max} tokens. Given: {given}")]
    InputLength { max: u32, given: u32, total: u32 },
    #[error(
        "`inputs` must have less than {max} tokens. Given: {bytes} bytes, which are at least {least} tokens"
    )]
    InputBytes {
        max: u32,
        bytes: usize,
        least: usize,
        total: u32,
    },
    #[error(
        "`prediction` must have at most {max} tokens, as a prompt. Given: at least {given}; shorten it or leave it out, the answer is the same"
    )]
    PredictionLength { max: u32, given: usize },
    #[error("`inputs` cannot be empty")]
    EmptyInput,
    #[error("`stop` supports up to {max} stop sequences. Given: {given}")]
    StopSequences { max: usize, given: usize },
    #[error("`stop` must not contain an empty string")]
    EmptyStopSequence,
    #[error("`priority` must be >= -{max} and <= {max}. Given: {given}")]
    Priority { max: i32, given: i32 },
    #[error("`cache_salt` must have at most {max} bytes. Given: {given}")]
    CacheSalt { max: usize, given: usize },
    #[error("`stop` must not contain a string of more than {max} bytes. Given: {given}")]
    StopLength { max: usize, given: usize },
    #[error("`stop_token_ids` supports up to {max} token ids. Given: {given}")]
    StopTokens { max: usize, given: usize },
    #[error("`bad_words` supports up to {max} words. Given: {given}")]
    BadWords { max: usize, given: usize },
    #[error("`bad_words` must not contain an empty word")]
    EmptyBadWord,
    #[error("`bad_words` must not contain a word of more than {max} bytes. Given: {given}")]
    BadWordLength { max: usize, given: usize },
    #[error("`bad_words` needs grammars, which this server does not support")]
    BadWordsSupport,
    #[error(
        "`bad_words` forbids every token with which the text could begin: take words out of it, or let `grammar` write others"
    )]
    BadWordsForbidAll,
    #[error("`token_healing` needs grammars, which this server does not support")]
    HealingSupport,
    #[error("`choices[{index}]` adds no token to the prompt")]
    EmptyChoice { index: usize },
    #[error(
        "`choices[{index}]` behind the prompt makes {tokens} tokens, and at most {most} are scored. Send a shorter one, or \
         a shorter prompt"
    )]
    LongChoice {
        index: usize,
        tokens: usize,
        most: usize,
    },
    #[error(
        "`prompt` must have a token that all `choices` leave as it is: nothing predicts the first token of a text. Send a \
         longer prompt, or one with a BOS token (`add_special_tokens`)"
    )]
    NothingPredicts,
    /// The routes that generate, of a classifier.
    #[error(
        "the model is a classifier and generates no text: send texts to /v1/classify, or serve a model that generates"
    )]
    Classifies,
    /// The route of classifiers, of a model that generates.
    #[error(
        "the model generates text and has no classes: /v1/classify needs a model of a class called \
         ...ForSequenceClassification; /v1/score says how likely texts are to follow a prompt"
    )]
    NoClasses,
    #[error("grammar is not supported")]
    GrammarSupport,
    #[error("`grammar` is not valid: {0}")]
    Grammar(GrammarError),
    #[error(
        "`adapter_id` is not supported: this server was started without LoRA adapters (`--lora-adapters`)"
    )]
    NoAdapters,
    #[error("`adapter_id` names no adapter of this server, which has {known}. Given: {given:?}")]
    AdapterId { given: String, known: String },
    #[error("`adapter_id` names an adapter that cannot be served: {0}")]
    Adapter(AdapterError),
    #[error("tokenizer error {0}")]
    Tokenizer(String),
    /// `path` is where the image stands in the request.
    #[error("`{path}` {error}")]
    Image { path: String, error: ImageError },
    #[error("`{path}` {error}")]
    ImageUrl { path: String, error: DataUrlError },
    #[error(
        "`{path}` has a URL that is no data URL, and this server fetches no images (`--allowed-image-domains`): send `data:image/png;base64,...` or the like"
    )]
    ImageLink { path: String },
    #[error("`{path}` {error}")]
    ImageFetch { path: String, error: FetchError },
    #[error("other requests hold the memory that there is for images")]
    ImageMemory,
    /// Found when it was decoded again.
    #[error("an image {0}")]
    ImageFile(ImageError),
    #[error(
        "this server takes at most {max} images in a request (`--max-images-per-request`). Given: {given}"
    )]
    Images { max: usize, given: usize },
    #[error(
        "the images of this request take {given} places of the image encoder's output, which has {max} (`--media-rows`); send fewer or smaller images"
    )]
    ImageRows { max: u32, given: u32 },
    #[error(
        "`inputs` has the model's token for an image {tokens} times, and {images} images came with it; leave the token out of texts and ids"
    )]
    ImageTokens { tokens: usize, images: usize },
    #[error("`truncate` would cut off tokens of a prompt with images; send a shorter prompt")]
    ImageTruncated,
    #[error("log-probabilities of the prompt are not there for prompts with images")]
    ImageLogprobs,
}

impl ValidationError {
    /// The field to change, where the message does not name it first.
    pub fn field(&self) -> Option<&'static str> {
        match *self {
            Self::MaxTotalTokens { max, inputs, .. } if inputs >= max => Some("inputs"),
            Self::MaxTotalTokens { .. } => Some("max_new_tokens"),
            Self::BestOfSampling => Some("best_of"),
            Self::BeamsDisabled | Self::BeamsUncached => Some("use_beam_search"),
            Self::Generations { .. } | Self::TenantTokens { .. } => Some("inputs"),
            Self::GrammarSupport | Self::Grammar(_) => Some("grammar"),
            Self::NoAdapters | Self::AdapterId { .. } | Self::Adapter(_) => Some("adapter_id"),
            _ => None,
        }
    }

    /// The sizes of a request that does not fit into the context.
    pub fn overflow(&self) -> Option<Overflow> {
        Some(match *self {
            Self::MaxTotalTokens {
                max,
                inputs,
                new,
                asked,
            } => Overflow {
                context: max,
                most_input: max.saturating_sub(1),
                inputs: PromptTokens::Exactly(inputs as usize),
                new: asked.then_some(new),
            },
            Self::NoRoom { max, new } => Overflow {
                context: max,
                most_input: max.saturating_sub(1),
                inputs: PromptTokens::Cut,
                new: Some(new),
            },
            Self::InputLength { max, given, total } => Overflow {
                context: total,
                most_input: max,
                inputs: PromptTokens::Exactly(given as usize),
                new: None,
            },
            Self::InputBytes {
                max, least, total, ..
            } => Overflow {
                context: total,
                most_input: max,
                inputs: PromptTokens::AtLeast(least),
                new: None,
            },
            _ => return None,
        })
    }
}

/// The limit for which a request has to come back later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    #[error("not enough of the {max} places of `--max-concurrent-requests` are free")]
    Requests { max: u32 },
    #[error("not enough of the {max} places of `max_concurrent_requests` of this key are free")]
    TenantRequests { max: u32 },
    #[error(
        "`tokens_per_minute` of this key, {max}, are used up; try again in {} s",
        whole_seconds(*wait).as_secs()
    )]
    TenantTokens {
        max: u32,
        /// Until there are enough, where nobody takes any.
        wait: Duration,
    },
    #[error("too many grammars wait to be compiled")]
    Grammars,
    #[error(
        "the grammar waited {} s for others to be compiled, which is too long; try again",
        limit.as_secs_f64()
    )]
    GrammarWait { limit: Duration },
    #[error("too many chats wait to become prompts")]
    Chats,
    #[error("other requests hold the memory that there is for images")]
    Images,
    #[error("too many adapters wait to be loaded")]
    AdapterLoads,
    #[error(
        "other requests hold the {most} MiB of host memory for adapters (`--adapter-host-mib`)"
    )]
    AdapterMemory { most: u64 },
}

/// Rounded up, and at least one.
fn whole_seconds(time: Duration) -> Duration {
    let up = u64::from(time.subsec_nanos() > 0);
    Duration::from_secs(time.as_secs().saturating_add(up).max(1))
}

/// Why a generation failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InferError {
    #[error("Input validation error: {0}")]
    Validation(ValidationError),
    /// A limit is reached that is free again when others have ended, or after some time.
    #[error("Model is overloaded: {0}")]
    Overloaded(Overload),
    /// The request waited longer than `--max-queue-time` for its prefill.
    #[error("Model is overloaded: the request waited for more than {} s", .0.as_secs_f64())]
    QueueTime(Duration),
    /// The shards failed, all of this batch or only this request.
    #[error("Request failed during generation: {0}")]
    Generation(String),
    /// The shards were lost each time that this request was computed, the last time with no other prompt beside it.
    #[error(
        "Request failed during generation: the shards were lost twice while they computed this request (shard_lost)"
    )]
    ShardLost,
    /// The shards have started again, and could not read the files of this adapter as they were.
    #[error(
        "Request failed during generation: the files of its adapter have changed since it was loaded, or are gone, and the shards have started again (adapter_changed): load it again, or restart the server, to serve the new files"
    )]
    AdapterChanged,
    /// The grammar of this request cannot be followed any further.
    #[error("Request failed during generation: {0}")]
    Grammar(GrammarError),
    /// The generation ended without its last token.
    #[error("Incomplete generation")]
    IncompleteGeneration,
    #[error("Incomplete generation stream")]
    IncompleteGenerationStream,
    /// No thread is left that compiles grammars.
    #[error("Grammars are unavailable: {}", GrammarError::Stuck)]
    GrammarsStuck,
    /// The server is stopping and takes no new request.
    #[error("The server is shutting down")]
    ShuttingDown,
}

impl InferError {
    /// The `error_type` of the TGI contract.
    pub fn error_type(&self) -> &'static str {
        match self {
            Self::Validation(ValidationError::ImageFetch { error, .. }) if error.is_of_host() => {
                "image_fetch"
            }
            Self::Validation(_) => "validation",
            Self::Overloaded(_) | Self::QueueTime(_) => "overloaded",
            Self::Generation(_) | Self::ShardLost | Self::AdapterChanged => "generation",
            Self::Grammar(_) => "grammar",
            Self::IncompleteGeneration => "incomplete_generation",
            Self::IncompleteGenerationStream => "incomplete_generation_stream",
            Self::GrammarsStuck => "grammars_stuck",
            Self::ShuttingDown => "shutting_down",
        }
    }

    /// After how many whole seconds a client that was refused may come back. Nobody knows when others end, so that is
    /// one; tokens of a minute come at a known time.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Overloaded(Overload::TenantTokens { wait, .. }) => whole_seconds(*wait),
            _ => whole_seconds(Duration::ZERO),
        }
    }
}

impl From<ValidationError> for InferError {
    fn from(error: ValidationError) -> Self {
        match error {
            // Nothing is wrong with the request: too many grammars wait to be compiled, or nobody is left who could.
            ValidationError::Grammar(GrammarError::Overloaded) => {
                Self::Overloaded(Overload::Grammars)
            }
            ValidationError::Grammar(GrammarError::WaitedTooLong { limit }) => {
                Self::Overloaded(Overload::GrammarWait { limit })
            }
            ValidationError::Grammar(GrammarError::Stuck) => Self::GrammarsStuck,
            ValidationError::ImageMemory => Self::Overloaded(Overload::Images),
            ValidationError::Adapter(error) => error.into(),
            error => Self::Validation(error),
        }
    }
}

impl From<ClientError> for InferError {
    fn from(error: ClientError) -> Self {
        Self::Generation(error.to_string())
    }
}
