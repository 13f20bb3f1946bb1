//! Scores of texts that may follow a prompt: `/v1/score`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use text_generation_core::infer::Continued;
use text_generation_core::types::{GenerateAnswer, GenerateParameters, Inputs};
use tower_http::request_id::RequestId;
use utoipa::ToSchema;

use super::answer::{Identity, Usage};
use super::logprobs::NEVER;
use super::sampling::check;
use crate::asked_model::AskedModel;
use crate::error::ApiError;
use crate::extract::{GenerationJson, whole};
use crate::fields::own_fields;
use crate::generations::{GenerationPlan, Names, renamed};
use crate::openapi::OpenAiErrors;
use crate::state::AppState;

/// What the fields of `core` are called here.
const NAMES: &Names = &[("inputs", "prompt"), ("ids", "prompt")];

/// Body of `/v1/score`. Keys that no API knows are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({"model": "tgi", "prompt": "Water is", "choices": [" wet", " dry"]}))]
pub struct ScoreBody {
    /// A text, or its token ids.
    pub prompt: Inputs,
    /// What may follow the prompt, up to `--max-client-batch-size`: texts, or lists of ids where the prompt has ids.
    pub choices: Choices,
    /// Any name; the answer repeats it. Without one, or with `tgi`, the answer names the served model.
    #[schema(nullable = true, max_length = 256, example = "tgi")]
    pub model: Option<String>,
    /// With `false` the tokenizer adds no special tokens (BOS) to a text.
    #[schema(nullable = true, example = json!(null))]
    pub add_special_tokens: Option<bool>,
    /// Requests of a lower number run first; each step counts as much as ten seconds of waiting.
    #[schema(nullable = true, example = 0)]
    pub priority: Option<i32>,
    /// Only requests with the same salt share cached prefixes.
    #[schema(nullable = true, max_length = 256, example = json!(null))]
    pub cache_salt: Option<String>,
}

own_fields!(ScoreBody);

/// Texts that may follow a prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a list of strings, or a list of lists of token ids"
)]
pub enum Choices {
    Texts(Vec<String>),
    Ids(#[serde(deserialize_with = "whole")] Vec<Vec<u32>>),
}

impl Choices {
    /// Each of them, for a prompt of the same kind.
    ///
    /// # Errors
    /// 422 that names `choices`.
    fn into_inputs(self, prompt: &Inputs, most: u32) -> Result<Vec<Inputs>, ApiError> {
        let (choices, fits): (Vec<Inputs>, bool) = match self {
            Self::Texts(texts) => (
                texts.into_iter().map(Inputs::Text).collect(),
                matches!(prompt, Inputs::Text(_)),
            ),
            Self::Ids(lists) => (
                lists.into_iter().map(Inputs::Ids).collect(),
                matches!(prompt, Inputs::Ids(_)),
            ),
        };
        let given = choices.len();
        check(given > 0, || {
            "`choices` must not be an empty list".to_owned()
        })?;
        check(given <= most as usize, || {
            format!(
                "`choices` must have at most {most} entries (`--max-client-batch-size`). Given: {given}"
            )
        })?;
        check(fits, || {
            "`choices` must be texts where `prompt` is a text, and lists of token ids where it is one".to_owned()
        })?;
        if let Some(index) = choices.iter().position(Inputs::is_empty) {
            check(false, || format!("`choices[{index}]` must not be empty"))?;
        }
        Ok(choices)
    }
}

/// Answer of `/v1/score`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Scores {
    #[schema(example = "list")]
    pub object: &'static str,
    #[schema(example = "score-0f3c")]
    pub id: String,
    /// Seconds since 1970.
    #[schema(example = 1_764_201_600)]
    pub created: u64,
    pub model: String,
    /// In the order of the choices.
    pub data: Vec<Score>,
    pub usage: Usage,
}

/// How likely one choice is.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct Score {
    pub index: usize,
    #[schema(example = "score")]
    pub object: &'static str,
    /// The natural logarithm of its probability behind the prompt: the sum over its tokens.
    #[schema(example = -2.5)]
    pub score: f64,
    /// The same for each of its tokens, in the mean.
    #[schema(example = -1.25)]
    pub mean_logprob: f64,
    /// How many tokens write it.
    #[schema(example = 2)]
    pub tokens: usize,
}

impl Score {
    /// Of an answer whose prefill has the tokens of the choice.
    fn new(index: usize, answer: &GenerateAnswer) -> Self {
        let logprobs = answer.prefill.iter().map(|token| token.logprob);
        let score = logprobs.map(|logprob| f64::from(logprob.unwrap_or(NEVER)));
        let (score, tokens): (f64, usize) = (score.sum(), answer.prefill.len());
        Self {
            index,
            object: "score",
            score,
            mean_logprob: score / tokens.max(1) as f64,
            tokens,
        }
    }
}

/// How likely each of several texts is to follow a prompt.
///
/// The prompt is computed once. The tokens of a choice begin where the tokens of some choice stop to be those of the
/// prompt alone, so that the probabilities can be compared.
#[utoipa::path(
    post,
    path = "/v1/score",
    tag = crate::openapi::tags::OPENAI,
    request_body = ScoreBody,
    responses((status = 200, description = "The scores", body = Scores), OpenAiErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn score(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    GenerationJson(body): GenerationJson<ScoreBody>,
) -> Result<(HeaderMap, Json<Scores>), ApiError> {
    let prepared = prepare(&state, body).await;
    let (plan, model, characters) = prepared.inspect_err(ApiError::count)?;
    let (answers, sizes, headers) = plan.prompts(&state, &id, characters).await?;
    let identity = Identity::new("score", model);
    let scored = answers.iter().enumerate();
    let scores = Scores {
        object: "list",
        id: identity.id,
        created: identity.created,
        model: identity.model,
        data: scored
            .map(|(index, answer)| Score::new(index, answer))
            .collect(),
        usage: sizes.into(),
    };
    Ok((headers, Json(scores)))
}

/// A prompt for each choice, the name of the model, and the characters of the prompt.
async fn prepare(
    state: &AppState,
    body: ScoreBody,
) -> Result<(GenerationPlan, String, usize), ApiError> {
    let model = AskedModel::read(body.model, state)?;
    let most = state.info.max_client_batch_size;
    let choices = body.choices.into_inputs(&body.prompt, most)?;
    let special = body.add_special_tokens.unwrap_or(true);
    let continued = state.infer.continued(&body.prompt, choices, special).await;
    let Continued { ids, shared } = continued.map_err(|error| renamed(error, NAMES))?;
    let parameters = GenerateParameters {
        // A shard always generates; the token is dropped.
        max_new_tokens: Some(1),
        decoder_input_details: true,
        logprobs_from: shared,
        adapter_id: model.adapter,
        priority: body.priority,
        cache_salt: body.cache_salt,
        ..GenerateParameters::default()
    };
    let prompts = ids.into_iter().map(Inputs::Ids).collect();
    let plan = GenerationPlan::new(prompts, &parameters, false, 1, NAMES);
    let characters = match &body.prompt {
        Inputs::Text(text) => text.chars().count(),
        Inputs::Ids(_) => 0,
    };
    Ok((plan, model.name, characters))
}
