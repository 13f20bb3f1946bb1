//! Parameters of a generation, as a client may give them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use text_generation_grammar::GrammarSource;
use utoipa::ToSchema;

use super::grammar::tgi_grammar;
use super::observer::Observed;
use super::{EarlyStopping, Inputs};
use crate::tenant::Tenant;

/// How much of a wrong key a message repeats.
const SHOWN_KEY_CHARACTERS: usize = 40;

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
    #[schema(nullable = true, minimum = 1e-30, maximum = 1e30, example = 1.03)]
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
    /// What the text must follow: a JSON schema (`json`, or `json_schema` with a `name` and a `schema`) or a regular
    /// expression (`regex`).
    #[serde(deserialize_with = "tgi_grammar")]
    #[schema(nullable = true, value_type = Option<Object>)]
    pub grammar: Option<GrammarSource>,
    /// Name of an adapter of this server (`/info` lists them); unset, the base.
    #[schema(nullable = true, example = json!(null))]
    pub adapter_id: Option<String>,
    /// Keep the tokens that are at least this many times as likely as the most likely one. Not in TGI.
    #[schema(nullable = true, minimum = 0.0, maximum = 1.0, example = 0.05)]
    pub min_p: Option<f32>,
    /// Added to the logits of these token ids, at most 1024 of them. Not in TGI.
    #[serde(deserialize_with = "logit_bias")]
    #[schema(nullable = true, value_type = Option<Object>, example = json!({"50256": -100.0}))]
    pub logit_bias: Option<BTreeMap<u32, f32>>,
    /// No end-of-sequence token is chosen, and no stop string or stop token ends the text, before so many tokens. Not in
    /// TGI.
    #[schema(nullable = true, minimum = 0, example = json!(null))]
    pub min_new_tokens: Option<u32>,
    /// Go on after an end-of-sequence token. Not in TGI.
    #[schema(example = false)]
    pub ignore_eos: bool,
    /// Requests of a lower number run first; each step counts as much as ten seconds of waiting. Not in TGI.
    #[schema(nullable = true, example = 0)]
    pub priority: Option<i32>,
    /// Only requests with the same salt share cached prefixes, so nobody else can learn from the time of an answer
    /// what was asked before. Not in TGI.
    #[schema(nullable = true, max_length = 256, example = json!(null))]
    pub cache_salt: Option<String>,
    /// Penalty on every token that occurred, once however often it did; 0 is off. Not in TGI.
    #[schema(nullable = true, minimum = -2.0, maximum = 2.0, example = json!(null))]
    pub presence_penalty: Option<f32>,
    /// Generation ends with one of these tokens, at most 1024. Not in TGI.
    #[schema(nullable = true, example = json!(null))]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Words that the text does not contain, at most 256. Not in TGI.
    #[schema(nullable = true, example = json!(null))]
    pub bad_words: Option<Vec<String>>,
    /// Whether special tokens are left out of the text, as is the default. Not in TGI.
    #[schema(nullable = true, example = json!(null))]
    pub skip_special_tokens: Option<bool>,
    /// Whether the text ends with the stop string or stop token that ended it; on TGI's routes it does unless told
    /// otherwise. Not in TGI.
    #[schema(nullable = true, example = json!(null))]
    pub include_stop_str_in_output: Option<bool>,
    /// What the text may be, such as a file that the answer is an edit of: a text or token ids. It changes nothing of the
    /// answer: a server that drafts (`--speculate`) gets there sooner where both agree. Not in TGI.
    #[schema(nullable = true, example = json!(null))]
    pub prediction: Option<Inputs>,
    /// Generate the end of the prompt again, up to three tokens, so that it need not be the end of a token: their bytes
    /// are all that may come first. The text is what follows the prompt, as without it. Not in TGI.
    #[schema(example = false)]
    pub token_healing: bool,
    /// Search for the most probable texts with so many beams, up to `--max-beam-width`, instead of choosing one token
    /// after the other. `details` have the score of the best one, which is the answer, and the others as
    /// `best_of_sequences`. Not in TGI.
    #[schema(nullable = true, minimum = 1, example = json!(null))]
    pub beam_width: Option<u32>,
    /// The score of a beam is the sum of its log-probabilities divided by its length to this power, 1 unless set: longer
    /// texts score higher with more. Not in TGI.
    #[schema(nullable = true, minimum = -10.0, maximum = 10.0, example = json!(null))]
    pub length_penalty: Option<f32>,
    /// When a beam search ends: `true` as soon as as many texts have ended as there are beams; `false`, as is the default,
    /// when none that goes on scores higher, as long as it is, than the worst of these; `"never"` when none could at any
    /// length. Not in TGI.
    #[schema(nullable = true, example = json!(null))]
    pub early_stopping: Option<EarlyStopping>,
    /// Of the prompt's log-probabilities those of this token, and of those behind it, are all that is wanted: what is
    /// before it may be cached. Not a key of any route.
    #[serde(skip)]
    #[schema(ignore)]
    pub logprobs_from: usize,
    /// The logits of classes are wanted, and no text. Not a key of any route.
    #[serde(skip)]
    #[schema(ignore)]
    pub classify: bool,
    /// Keep as many tokens at the end of the prompt as the context has room for. Not a key of any route.
    #[serde(skip)]
    #[schema(ignore)]
    pub truncate_to_fit: bool,
    /// Generate fewer tokens than `max_new_tokens` where the context has no room for them, instead of refusing. Not a key
    /// of any route: those whose clients ask for too much set it.
    #[serde(skip)]
    #[schema(ignore)]
    pub clamp_max_new_tokens: bool,
    /// Whose request it is. Not a key of any route: the server knows it.
    #[serde(skip)]
    #[schema(ignore)]
    pub tenant: Tenant,
    /// Who follows the request. Not a key of any route.
    #[serde(skip)]
    #[schema(ignore)]
    pub observed: Observed,
    /// Special tokens are in the text, but for those that end it: what reads tool calls out of it looks for their
    /// markers. Not a key of any route.
    #[serde(skip)]
    #[schema(ignore)]
    pub keep_special_tokens: bool,
}

/// For `deserialize_with` of a `logit_bias`; needs `default` beside it. A key that is no token id is a wrong value of
/// this field, where the JSON reader itself would call the body malformed.
pub fn logit_bias<'de, D>(deserializer: D) -> Result<Option<BTreeMap<u32, f32>>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Key(u32);

    impl<'de> Deserialize<'de> for Key {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = Cow::<str>::deserialize(deserializer)?;
            let id = text.parse().map_err(|_| {
                let key: String = text.chars().take(SHOWN_KEY_CHARACTERS).collect();
                serde::de::Error::custom(format_args!("the key `{key}` is not a token id"))
            })?;
            Ok(Self(id))
        }
    }

    let biases: Option<BTreeMap<Key, f32>> = Option::deserialize(deserializer)?;
    Ok(biases.map(|biases| {
        biases
            .into_iter()
            .map(|(Key(id), bias)| (id, bias))
            .collect()
    }))
}
