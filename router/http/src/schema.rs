//! Request and answer bodies that only HTTP knows. Order of keys, null and absent keys follow the TGI contract.

mod tokens;

use serde::{Deserialize, Deserializer, Serialize};
use text_generation_core::adapters::{Listed, Place};
use text_generation_core::types::{
    FinishReason, GenerateAnswer, GenerateParameters, PrefillToken, SimpleToken, Token,
};
use utoipa::ToSchema;

pub use self::tokens::{
    CountedTokens, DetokenizeAnswer, DetokenizeBody, DetokenizedPrompt, DetokenizedText, IdsBody,
    PromptTokensBody, TokenOptions, TokenizeAnswer, TokenizerInfo, TokensBody,
};
use crate::classifier::Classifier;
use crate::error::ErrorResponse;
use crate::extract::object;
use crate::fields::{Own, own_fields};
use crate::generation_config::SamplingDefaults;

/// Clients that send no parameters at all get sampled text; with parameters, `do_sample` is false unless they set it.
fn without_parameters() -> GenerateParameters {
    GenerateParameters {
        do_sample: true,
        ..GenerateParameters::default()
    }
}

fn parameters<'de, D: Deserializer<'de>>(given: D) -> Result<GenerateParameters, D::Error> {
    object(given).map(|Own(parameters)| parameters)
}

/// Body of `/generate` and `/generate_stream`, and TGI's of `/tokenize`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({
    "inputs": "Once upon a time",
    "parameters": {"max_new_tokens": 20, "details": true}
}))]
pub struct GenerateBody {
    /// The prompt.
    pub inputs: String,
    #[serde(default = "without_parameters", deserialize_with = "parameters")]
    pub parameters: GenerateParameters,
}

own_fields!(GenerateBody);

/// Body of `/`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({
    "inputs": "Once upon a time",
    "parameters": {"max_new_tokens": 20},
    "stream": false
}))]
pub struct CompatGenerateBody {
    /// The prompt.
    pub inputs: String,
    #[serde(default = "without_parameters", deserialize_with = "parameters")]
    pub parameters: GenerateParameters,
    /// Answer with a stream of events.
    #[serde(default)]
    pub stream: bool,
}

own_fields!(CompatGenerateBody);

/// Answer of `/generate`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"generated_text": ", there was a little girl"}))]
pub struct GenerateResponse {
    pub generated_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// How a text was generated.
#[derive(Debug, Serialize, ToSchema)]
pub struct Details {
    pub finish_reason: FinishReason,
    #[schema(example = 1)]
    pub generated_tokens: u32,
    /// The seed that was used; null when nothing was sampled.
    #[schema(nullable = true, format = "uint64", example = 42)]
    pub seed: Option<u64>,
    /// With `beam_width`: the sum of the log-probabilities, divided by the length to the power of `length_penalty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_score: Option<f32>,
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    /// The other generations, when `best_of` is above 1, or the other beams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_of_sequences: Option<Vec<BestOfSequence>>,
    /// The most likely tokens of every step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
}

/// A generation that was not the best one.
#[derive(Debug, Serialize, ToSchema)]
pub struct BestOfSequence {
    pub generated_text: String,
    pub finish_reason: FinishReason,
    #[schema(example = 1)]
    pub generated_tokens: u32,
    #[schema(nullable = true, format = "uint64", example = 42)]
    pub seed: Option<u64>,
    /// With `beam_width`: the sum of the log-probabilities, divided by the length to the power of `length_penalty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_score: Option<f32>,
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
}

impl GenerateResponse {
    /// `prefix` is the prompt when the full text was asked for; `others` are the losers of `best_of`, or the other beams.
    pub fn new(
        answer: GenerateAnswer,
        others: Option<Vec<GenerateAnswer>>,
        prefix: &str,
        details: bool,
    ) -> Self {
        let generated_text = format!("{prefix}{}", answer.generated.text);
        let details = details.then(|| Details {
            finish_reason: answer.generated.finish_reason,
            generated_tokens: answer.generated.generated_tokens,
            seed: answer.generated.seed,
            beam_score: answer.generated.beam_score,
            prefill: answer.prefill,
            tokens: answer.tokens,
            best_of_sequences: others.map(|others| {
                let sequence = |answer| BestOfSequence::new(answer, prefix);
                others.into_iter().map(sequence).collect()
            }),
            top_tokens: answer.top_tokens,
        });
        Self {
            generated_text,
            details,
        }
    }
}

impl BestOfSequence {
    fn new(answer: GenerateAnswer, prefix: &str) -> Self {
        Self {
            generated_text: format!("{prefix}{}", answer.generated.text),
            finish_reason: answer.generated.finish_reason,
            generated_tokens: answer.generated.generated_tokens,
            seed: answer.generated.seed,
            beam_score: answer.generated.beam_score,
            prefill: answer.prefill,
            tokens: answer.tokens,
            top_tokens: answer.top_tokens,
        }
    }
}

/// One event of `/generate_stream`: a token. The last one carries the text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "index": 1,
    "token": {"id": 403, "text": " there", "logprob": -0.34, "special": false},
    "generated_text": null,
    "details": null
}))]
pub struct StreamResponse {
    /// Counts from 1.
    pub index: u32,
    pub token: Token,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Token>,
    #[schema(nullable = true)]
    pub generated_text: Option<String>,
    #[schema(nullable = true)]
    pub details: Option<StreamDetails>,
}

/// Event of a stream of `/` and `/generate_stream`: a token, or the error that ends the stream.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum GenerateEvent {
    Token(StreamResponse),
    Error(ErrorResponse),
}

/// Sent with the last token when `details` was asked for.
#[derive(Debug, Serialize, ToSchema)]
pub struct StreamDetails {
    pub finish_reason: FinishReason,
    #[schema(example = 1)]
    pub generated_tokens: u32,
    #[schema(nullable = true, format = "uint64", example = 42)]
    pub seed: Option<u64>,
    /// With `beam_width`: the sum of the log-probabilities, divided by the length to the power of `length_penalty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_score: Option<f32>,
    #[schema(example = 1)]
    pub input_length: u32,
}

/// Body of `/chat_tokenize` is that of `/v1/chat/completions`; this is its answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatTokenizeResponse {
    pub tokenize_response: Vec<SimpleToken>,
    /// What the chat template makes of the messages.
    #[schema(example = "<|user|>\nHello<|end|>\n<|assistant|>\n")]
    pub templated_text: String,
}

/// Answer of `/version`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Version {
    /// The same as `version` of `/info`.
    #[schema(example = "0.1.0")]
    pub version: &'static str,
}

/// How images are taken, in the answer of `/info`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ImageInfo {
    /// Of a file.
    #[schema(example = 20_000_000)]
    pub max_image_bytes: u32,
    /// Width times height.
    #[schema(example = 25_000_000)]
    pub max_image_pixels: u32,
    /// Null: as many as fit.
    #[schema(nullable = true)]
    pub max_images_per_request: Option<u32>,
    /// Where images may be fetched from.
    #[schema(example = json!(["*.example.org"]))]
    pub allowed_image_domains: Vec<String>,
    /// Places of the image encoder's output, which all requests share.
    #[schema(example = 16_384)]
    pub media_rows: u32,
}

/// How drafts of the tokens that follow are made and checked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SpeculationInfo {
    /// `ngram`, `suffix` where earlier answers are drafted from too, or the kind of a drafting model. A request's
    /// `prediction` comes first.
    #[schema(example = "ngram")]
    pub method: String,
    /// How many tokens of a request a step may compute, beside 1.
    #[schema(example = json!([2, 4]))]
    pub widths: Vec<u32>,
    /// Host memory for earlier answers (`--answer-index-mib`); 0: none are kept.
    #[schema(example = 0)]
    pub answer_index_mib: u32,
}

/// Answer of `/info`: the model and the limits of this server.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Info {
    #[schema(example = "meta-llama/Llama-3.1-8B")]
    pub model_id: String,
    /// Commit of the model on the hub, where one is known.
    #[schema(nullable = true)]
    pub model_sha: Option<String>,
    #[schema(example = "bfloat16")]
    pub model_dtype: String,
    #[schema(example = "cuda")]
    pub model_device_type: String,
    /// Number type of stored keys and values (`--kv-cache-dtype`).
    #[schema(example = "fp8_e4m3fn")]
    pub kv_cache_dtype: String,
    /// `text-classification` for a classifier; else null: a model folder does not say.
    #[schema(nullable = true, example = "text-classification")]
    pub model_pipeline_tag: Option<String>,
    #[schema(example = 128)]
    pub max_concurrent_requests: u32,
    #[schema(example = 2)]
    pub max_best_of: u32,
    #[schema(example = 4)]
    pub max_stop_sequences: u32,
    #[schema(example = 1024)]
    pub max_input_tokens: u32,
    /// The older name of `max_input_tokens`.
    #[schema(example = 1024)]
    pub max_input_length: u32,
    #[schema(example = 2048)]
    pub max_total_tokens: u32,
    /// How many requests must wait for each running one before they join, as it is in force now.
    #[schema(example = 0.3)]
    pub waiting_served_ratio: f32,
    /// Whether the ratio follows from what steps cost and how often requests come.
    pub waiting_served_ratio_auto: bool,
    #[schema(example = 4096)]
    pub max_batch_prefill_tokens: u32,
    #[schema(example = 32000)]
    pub max_batch_total_tokens: u32,
    #[schema(example = 20)]
    pub max_waiting_tokens: u32,
    #[schema(example = 128)]
    pub max_batch_size: u32,
    #[schema(example = 2)]
    pub validation_workers: u32,
    #[schema(example = 4)]
    pub max_client_batch_size: u32,
    /// How tool calls of the model are read; null where its format is not known, and TGI's way is used.
    #[schema(nullable = true, example = "hermes")]
    pub tool_call_parser: Option<String>,
    /// How reasoning of the model is told from its answer; null where it has none, or its format is not known.
    #[schema(nullable = true, example = "qwen3")]
    pub reasoning_parser: Option<String>,
    /// Whether answers can be held to a form (`--disable-grammar-support`).
    #[schema(example = true)]
    pub grammar_support: bool,
    /// The most drafts of a request that a step checks (`--speculate`); 0: a step brings one token.
    #[schema(example = 3)]
    pub speculate: u32,
    /// Null where a step brings one token.
    #[schema(nullable = true)]
    pub speculation: Option<SpeculationInfo>,
    /// Null where the model reads text alone.
    #[schema(nullable = true)]
    pub images: Option<ImageInfo>,
    /// What a classifier scores (`/v1/classify`); null where the model generates text.
    #[schema(nullable = true)]
    pub classifier: Option<Classifier>,
    /// The adapters that requests may name; empty where there is the base alone.
    pub adapters: Vec<AdapterSummary>,
    /// The model's own defaults for requests below `/v1`; null where they are not used (`--generation-config none`).
    #[schema(nullable = true)]
    pub sampling_defaults: Option<SamplingDefaults>,
    /// All names that the model is served under.
    #[schema(example = json!(["meta-llama/Llama-3.1-8B"]))]
    pub served_model_names: Vec<String>,
    /// `true`, `false` or `per-key`.
    #[schema(example = "true")]
    pub prefix_caching: String,
    #[schema(example = true)]
    pub prefill_chunking: bool,
    #[schema(example = "text-generation-router")]
    pub router: &'static str,
    #[schema(example = "0.1.0")]
    pub version: &'static str,
    /// Commit that this server was built from, where the build knew it.
    #[schema(nullable = true)]
    pub sha: Option<&'static str>,
    /// Name of the container image, where the build knew it.
    #[schema(nullable = true)]
    pub docker_label: Option<&'static str>,
}

/// An adapter that requests may name.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AdapterSummary {
    /// What `adapter_id` or `model` says.
    #[schema(example = "pirate")]
    pub name: String,
    /// The highest of its matrices; null where it is not in memory.
    #[schema(nullable = true, example = 16)]
    pub rank: Option<u32>,
    /// The folder or hub id that it was loaded from.
    #[schema(example = "org/pirate")]
    pub source: String,
    /// `device`, `copying` to it, `host`, `away` where its memory was needed for others, or `changed` where the shards
    /// have started again and its files are not what they were.
    #[schema(example = "device")]
    pub state: &'static str,
}

impl AdapterSummary {
    /// As it is now.
    pub fn of(listed: &Listed) -> Self {
        let adapter = listed.adapter.as_ref();
        Self {
            name: listed.name.clone(),
            rank: adapter.map(|adapter| adapter.rank()),
            source: listed.source.clone(),
            state: match adapter.map(|adapter| adapter.place()) {
                Some(Place::Device) => "device",
                Some(Place::Copying) => "copying",
                Some(Place::Host) => "host",
                None if listed.lost => "changed",
                None => "away",
            },
        }
    }
}
