//! Requests and answers as the front ends see them: text in, text out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `parameters` of a generate request, as sent by clients. Unknown keys are ignored.
///
/// `None` stands for a missing key, and for an explicit null where the TGI contract accepts one.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, ToSchema)]
#[serde(default)]
pub struct GenerateParameters {
    /// Run this many generations and return the one with the highest mean log-probability.
    #[schema(nullable = true, minimum = 1, example = 1)]
    pub best_of: Option<u32>,
    /// Divides the logits; values above 1 flatten the distribution.
    #[schema(nullable = true, exclusive_minimum = 0.0, example = 0.5)]
    pub temperature: Option<f32>,
    /// Penalty on every token that occurred; 1 is off.
    #[schema(nullable = true, exclusive_minimum = 0.0, example = 1.03)]
    pub repetition_penalty: Option<f32>,
    /// Penalty that grows with the number of occurrences; 0 is off.
    #[schema(nullable = true, minimum = -2.0, maximum = 2.0, example = 0.1)]
    pub frequency_penalty: Option<f32>,
    /// Keep the k most likely tokens.
    #[schema(nullable = true, exclusive_minimum = 0, example = 10)]
    pub top_k: Option<i32>,
    /// Keep the smallest set of tokens whose probabilities add up to p.
    #[schema(
        nullable = true,
        exclusive_minimum = 0.0,
        exclusive_maximum = 1.0,
        example = 0.95
    )]
    pub top_p: Option<f32>,
    /// Keep the tokens whose information is closest to the entropy, up to mass p.
    #[schema(
        nullable = true,
        exclusive_minimum = 0.0,
        exclusive_maximum = 1.0,
        example = 0.95
    )]
    pub typical_p: Option<f32>,
    /// Sample instead of taking the most likely token.
    #[schema(example = true)]
    pub do_sample: bool,
    /// Largest number of tokens to generate; unset, up to the total token limit.
    #[schema(nullable = true, minimum = 1, example = 20)]
    pub max_new_tokens: Option<u32>,
    /// Put the prompt before the generated text.
    #[schema(nullable = true, example = false)]
    pub return_full_text: Option<bool>,
    /// Generation ends when one of these strings appears.
    #[schema(example = json!(["photographer"]))]
    pub stop: Vec<String>,
    /// Keep only this many tokens at the end of the prompt.
    #[schema(nullable = true, example = json!(null))]
    pub truncate: Option<usize>,
    /// Watermark the text (Kirchenbauer et al., 2023).
    pub watermark: bool,
    /// Return token details.
    pub details: bool,
    /// Return the log-probabilities of the prompt; implies `details`.
    pub decoder_input_details: bool,
    /// Seed of the random numbers; unset, a random one.
    #[schema(nullable = true, format = "uint64", example = json!(null))]
    pub seed: Option<u64>,
    /// Return the n most likely tokens of every step.
    #[schema(nullable = true, minimum = 0, example = 5)]
    pub top_n_tokens: Option<u32>,
    /// Constrained decoding; not supported yet, a request that sets it is refused.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub grammar: Option<serde_json::Value>,
    /// Name of a LoRA adapter; not supported yet, a request that sets it is refused.
    #[schema(nullable = true)]
    pub adapter_id: Option<String>,
    /// Keep the tokens that are at least this many times as likely as the most likely one. Not in TGI.
    #[schema(nullable = true, minimum = 0.0, maximum = 1.0, example = 0.05)]
    pub min_p: Option<f32>,
    /// Added to the logits of these token ids, at most 1024 of them. Not in TGI.
    #[schema(nullable = true, value_type = Option<Object>, example = json!({"50256": -100.0}))]
    pub logit_bias: Option<BTreeMap<u32, f32>>,
    /// No end-of-sequence token is chosen before so many tokens; stop strings still end the text. Not in TGI.
    #[schema(nullable = true, minimum = 0, example = json!(null))]
    pub min_new_tokens: Option<u32>,
    /// Go on after an end-of-sequence token. Not in TGI.
    #[schema(example = false)]
    pub ignore_eos: bool,
    /// Penalty on every token that occurred, as often as it did; 0 is off. Not a key of `/generate`, which has never
    /// read it: only the OpenAI routes set it, where [`Dialect::OpenAi`] says what counts.
    #[serde(skip)]
    #[schema(ignore)]
    pub presence_penalty: Option<f32>,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inputs {
    Text(String),
    /// Taken as they are: the tokenizer adds nothing.
    Ids(Vec<u32>),
}

impl From<String> for Inputs {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Inputs {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Whose definitions hold where the APIs differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Frequency and presence penalties count the prompt's tokens too. The text ends with the stop string that was
    /// found, and the text of a special token is shown in its [`Token`].
    #[default]
    Tgi,
    /// Frequency and presence penalties count generated tokens only. Neither the stop string nor special tokens are in
    /// the text: text that may be the beginning of a stop string waits and comes with a later token.
    OpenAi,
}

/// A request as the front end hands it over.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    pub inputs: Inputs,
    pub parameters: GenerateParameters,
    /// Whether the tokenizer adds its special tokens (BOS) to a text.
    pub add_special_tokens: bool,
    pub dialect: Dialect,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Length,
    EosToken,
    StopSequence,
}

/// A generated token. A log-probability that is not finite is `None`.
///
/// `text` is what the token adds to the streamed text: empty while a character is incomplete or, with
/// [`Dialect::OpenAi`], while it may belong to a stop string. For the token's own text or bytes ask
/// [`Infer::token_bytes`](crate::infer::Infer::token_bytes).
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Token {
    #[schema(example = 0)]
    pub id: u32,
    #[schema(example = "test")]
    pub text: String,
    #[schema(nullable = true, example = -0.34)]
    pub logprob: Option<f32>,
    #[schema(example = false)]
    pub special: bool,
}

/// A token of the prompt. Its alternatives are not computed: only the generated tokens have `top_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PrefillToken {
    #[schema(example = 0)]
    pub id: u32,
    #[schema(example = "test")]
    pub text: String,
    #[schema(nullable = true, example = -0.34)]
    pub logprob: Option<f32>,
}

/// A token of `/tokenize`; `start` and `stop` are byte offsets into the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SimpleToken {
    #[schema(example = 0)]
    pub id: u32,
    #[schema(example = "test")]
    pub text: String,
    #[schema(example = 0)]
    pub start: usize,
    #[schema(example = 2)]
    pub stop: usize,
}

/// A text and its tokens, in twelve bytes a token: a text may have millions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedText {
    text: String,
    ids: Vec<u32>,
    /// Byte ranges of the text, one for each id.
    places: Vec<(u32, u32)>,
}

impl TokenizedText {
    /// A range that is not of whole characters of `text` shows as no text.
    pub(crate) fn new(text: String, ids: Vec<u32>, places: Vec<(u32, u32)>) -> Self {
        Self { text, ids, places }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Bytes of memory that it takes.
    pub fn size(&self) -> usize {
        self.text.len() + self.ids.len() * (size_of::<u32>() + size_of::<(u32, u32)>())
    }

    /// Up to `count` tokens from the place `first` on.
    pub fn tokens(&self, first: usize, count: usize) -> impl Iterator<Item = SimpleToken> + '_ {
        let tokens = self.ids.iter().zip(&self.places).skip(first).take(count);
        tokens.map(|(&id, &(start, stop))| {
            let (start, stop) = (start as usize, stop as usize);
            SimpleToken {
                id,
                text: self.text.get(start..stop).unwrap_or_default().to_owned(),
                start,
                stop,
            }
        })
    }
}

/// The whole answer to a request, complete with its last token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedText {
    /// Without special tokens. Ends with the stop string when one was found, or before it with [`Dialect::OpenAi`].
    pub text: String,
    pub generated_tokens: u32,
    pub finish_reason: FinishReason,
    /// Set when the request sampled.
    pub seed: Option<u64>,
}

/// The instants of a request's life that headers and metrics report.
#[derive(Debug, Clone, Copy)]
pub struct RequestInstants {
    pub received: Instant,
    pub queued: Instant,
    /// When the batch that holds the request was sent to the shards.
    pub started: Instant,
}

/// What one generation sends while it runs, in this order: `Prefill`?, `Token`*, then `End`.
#[derive(Debug, Clone)]
pub enum StreamEvent {
    /// Only when `decoder_input_details` was asked for and the server has prefill log-probabilities enabled.
    Prefill(Vec<PrefillToken>),
    Token {
        token: Token,
        top_tokens: Vec<Token>,
    },
    /// The last token, with the whole answer.
    End {
        token: Token,
        top_tokens: Vec<Token>,
        generated: GeneratedText,
        instants: RequestInstants,
    },
}

/// One finished generation, gathered.
#[derive(Debug, Clone)]
pub struct GenerateAnswer {
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    /// One list for each token, or empty.
    pub top_tokens: Vec<Vec<Token>>,
    pub generated: GeneratedText,
    pub input_length: u32,
    pub instants: RequestInstants,
    /// When the last token arrived.
    pub finished: Instant,
}

impl GenerateAnswer {
    /// Mean log-probability of the generated tokens; the measure of `best_of`.
    pub fn mean_logprob(&self) -> f32 {
        let sum: f32 = self.tokens.iter().filter_map(|token| token.logprob).sum();
        sum / self.tokens.len().max(1) as f32
    }

    /// Time since the batch was sent to the shards.
    pub fn inference_time(&self) -> Duration {
        self.finished - self.instants.started
    }
}

/// Limits that requests are validated against; fixed after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidationLimits {
    pub max_best_of: u32,
    pub max_stop_sequences: usize,
    pub max_top_n_tokens: u32,
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Ids at or above it are refused.
    pub vocab_size: u32,
    /// Whether prompt log-probabilities are returned at all (`--enable-prefill-logprobs`).
    pub prefill_logprobs: bool,
}

/// Limits of batching; see `policy`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchLimits {
    pub waiting_served_ratio: f32,
    pub max_waiting_tokens: u32,
    pub max_batch_prefill_tokens: u32,
    /// Slots of the pool.
    pub max_batch_total_tokens: u32,
    pub max_batch_size: u32,
    /// Requests that waited longer for their prefill fail.
    pub max_queue_time: Option<Duration>,
}
