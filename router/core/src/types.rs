//! Requests and answers as the front ends see them: text in, text out.

mod beams;
mod grammar;
mod image;
pub mod observer;
mod parameters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use text_generation_client::types::Drafted;
use tokio::time::Instant;
use utoipa::ToSchema;

pub use self::beams::{Beams, EarlyStopping, field_of_beams};
pub use self::grammar::tgi_grammar;
pub use self::image::{GivenImage, ImageFile};
pub use self::parameters::{GenerateParameters, logit_bias};

/// A text, or its token ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Inputs {
    Text(String),
    /// Taken as they are: the tokenizer adds nothing.
    Ids(Vec<u32>),
}

impl Inputs {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        }
    }
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EitherForm)
    }
}

/// Reads [`Inputs`] straight from the body: from a copy, as serde reads an untagged enum, errors would not know which of
/// the ids is wrong.
struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = Inputs;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Inputs, E> {
        Ok(text.into())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Inputs, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, ids: A) -> Result<Inputs, A::Error> {
        Deserialize::deserialize(SeqAccessDeserializer::new(ids)).map(Inputs::Ids)
    }
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

impl Dialect {
    /// Whether a text has the stop string that ended it, where the request does not say so.
    pub fn includes_stop(self) -> bool {
        self == Self::Tgi
    }
}

/// When a request ends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoppingCriteria {
    pub max_new_tokens: u32,
    pub ignore_eos_token: bool,
    /// They end a text beside the end-of-sequence tokens, whether those do or not.
    pub stop_token_ids: Arc<[u32]>,
}

/// What is in a generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextContent {
    /// Whether the stop string is in it, or the stop token, that ended it.
    pub includes_stop: bool,
    pub special_tokens: SpecialTokens,
}

/// What becomes of special tokens in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    Hidden,
    Shown,
    /// They are shown, but for end-of-sequence tokens: whoever reads tool calls out of the text looks for the markers
    /// around them.
    Parsed,
}

/// A request as the front end hands it over.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    pub inputs: Inputs,
    pub parameters: GenerateParameters,
    /// Whether the tokenizer adds its special tokens (BOS) to a text.
    pub add_special_tokens: bool,
    pub dialect: Dialect,
    /// In the order in which `inputs` names them.
    pub images: Vec<GivenImage>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Length,
    EosToken,
    StopSequence,
}

impl FinishReason {
    /// The name that TGI's routes and the log have for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::EosToken => "eos_token",
            Self::StopSequence => "stop_sequence",
        }
    }
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

/// A token of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PrefillToken {
    #[schema(example = 0)]
    pub id: u32,
    #[schema(example = "test")]
    pub text: String,
    #[schema(nullable = true, example = -0.34)]
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, where alternatives were asked for. Not in TGI's answers.
    #[serde(skip)]
    #[schema(ignore)]
    pub top_tokens: Vec<Token>,
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

    /// The same with `ids` in which each `placeholder` has become as many tokens as `lengths` say, all at its place.
    pub(crate) fn expanded(self, ids: Vec<u32>, placeholder: u32, lengths: &[usize]) -> Self {
        let mut lengths = lengths.iter();
        let mut places = Vec::with_capacity(ids.len());
        for (id, place) in self.ids.iter().zip(self.places) {
            let length = (*id == placeholder).then(|| lengths.next().copied());
            places.extend(std::iter::repeat_n(place, length.flatten().unwrap_or(1)));
        }
        Self::new(self.text, ids, places)
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn ids(&self) -> &[u32] {
        &self.ids
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

/// Drafts of the steps of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speculated {
    /// Those that its windows had.
    pub drafted: u32,
    /// Those that became tokens of it.
    pub accepted: u32,
}

impl Speculated {
    /// A step gave it `count` tokens.
    pub(crate) fn add(&mut self, count: u32, drafts: Drafted) {
        if drafts.checked > 0 {
            self.drafted = self.drafted.saturating_add(drafts.checked);
            self.accepted = self.accepted.saturating_add(count.saturating_sub(1));
        }
    }
}

/// Tokens of a prediction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PredictedTokens {
    /// Those that the text has.
    pub accepted: u32,
    /// Those that it does not have.
    pub rejected: u32,
}

impl PredictedTokens {
    /// Of several texts together.
    pub fn sum(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(one), Some(other)) = (one, other) else {
            return one.or(other);
        };
        Some(Self {
            accepted: one.accepted.saturating_add(other.accepted),
            rejected: one.rejected.saturating_add(other.rejected),
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
    /// The stop string that ended it, with [`FinishReason::StopSequence`].
    pub stop_sequence: Option<String>,
    /// Set when the request sampled.
    pub seed: Option<u64>,
    /// The name of the tenant whose request it was, for logs.
    pub tenant: Option<Arc<str>>,
    /// The name of the adapter whose weights were added to the base's, for logs.
    pub adapter: Option<Arc<str>>,
    /// For logs.
    pub speculated: Speculated,
    /// Its score, where it is the text of a beam.
    pub beam_score: Option<f32>,
    /// Set where the request had a prediction and this server drafts from it.
    pub predicted: Option<PredictedTokens>,
}

/// The instants of a request's life that headers and metrics report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        /// Tokens of the prompt that were found in the prefix tree.
        cached_tokens: u32,
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
    /// The prompt, as truncated.
    pub prompt_ids: Arc<[u32]>,
    /// The end of the prompt's text that the generated tokens begin with.
    pub healed: Arc<str>,
    pub instants: RequestInstants,
    /// When the last token arrived.
    pub finished: Instant,
    /// Tokens of the prompt that were found in the prefix tree.
    pub cached_tokens: u32,
    /// What a classifier made of the prompt: a logit for each class.
    pub class_logits: Box<[f32]>,
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
    /// Largest `beam_width`; 0: no beam search.
    pub max_beam_width: u32,
    pub max_stop_sequences: usize,
    /// Largest `top_n_tokens` with [`Dialect::Tgi`].
    pub max_top_n_tokens: u32,
    /// The same with [`Dialect::OpenAi`], whose clients ask for up to 20.
    pub max_logprobs: u32,
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    /// Ids at or above it are refused.
    pub vocab_size: u32,
    /// Whether prompt log-probabilities are returned at all (`--enable-prefill-logprobs`).
    pub prefill_logprobs: bool,
    /// Whether outputs may be constrained by grammars (`--disable-grammar-support`).
    pub grammar_support: bool,
}
