//! Completions in the shape of OpenAI: `/v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::future::try_join_all;
use text_generation_core::infer::GenerateStream;
use text_generation_core::types::{GenerateAnswer, GenerateParameters, Inputs};
use tower_http::request_id::RequestId;

use super::answer::{Completion, CompletionChoice, Identity, SYSTEM_FINGERPRINT, finish_reason};
use super::chunk::Chunks;
use super::completion_body::CompletionBody;
use super::completion_events::{self, CompletionEvent, CompletionEvents};
use super::logprobs::{CompletionLogprobs, CompletionTokens};
use super::sampling::{TokenIds, check_n};
use crate::asked_model::AskedModel;
use crate::error::ApiError;
use crate::extract::GenerationJson;
use crate::generations::{Finished, GenerationPlan, Generations, Names, Tally, renamed, with_name};
use crate::memory::MemoryShare;
use crate::openapi::OpenAiErrors;
use crate::sse;
use crate::state::AppState;

/// What the fields of `core` are called here.
pub const NAMES: &Names = &[
    ("inputs", "prompt"),
    ("ids", "prompt"),
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("truncate", "truncate_prompt_tokens"),
    ("top_n_tokens", "logprobs"),
    ("grammar", "response_format"),
    ("beam_width", "n"),
];

/// The texts that follow prompts.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = crate::openapi::tags::OPENAI,
    request_body = CompletionBody,
    responses(
        (status = 200, description = "The texts, or with `stream` one event for each token and `[DONE]`", content(
            (Completion = "application/json"),
            (CompletionEvent = "text/event-stream"),
        )),
        OpenAiErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn completions(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    Extension(share): Extension<MemoryShare>,
    GenerationJson(body): GenerationJson<CompletionBody>,
) -> Result<Response, ApiError> {
    if !body.holds_json() {
        // Token ids, once read, take far less than values of JSON.
        share.forget_values();
    }
    if body.stream.unwrap_or(false) {
        return stream(&state, id, body).await;
    }
    let (headers, answer) = complete(&state, &id, body).await?;
    Ok((headers, Json(answer)).into_response())
}

/// What the answer needs beside the generations.
struct CompletionAnswer {
    identity: Identity,
    /// Returned for each prompt.
    n: usize,
    /// Characters of all prompts that are texts.
    characters: usize,
    /// The text of each prompt when it goes before its answers, else nothing.
    echo: Vec<String>,
    /// Set when log-probabilities are wanted.
    top_logprobs: Option<u32>,
    tokens: TokenIds,
    /// Nothing but the prompt is returned.
    scores_only: bool,
    /// Special tokens are in the texts.
    shows_special: bool,
}

impl CompletionAnswer {
    async fn prepare(
        state: &AppState,
        mut body: CompletionBody,
    ) -> Result<(GenerationPlan, Self), ApiError> {
        body.check_features(state.info.max_client_batch_size)?;
        let top_logprobs = body.logprobs;
        let scores_only = body.scores_only();
        let tokens = body.token_ids();
        // A shard always generates; the token is dropped where none is wanted.
        let max_tokens = body.max_tokens.map(|max| max.max(1));
        let sampling = body.take_sampling().or(&state.sampling_defaults);
        let sampling = sampling.parameters(max_tokens)?;
        let n = check_n(body.n, body.prompt.count())?;
        let samples = body.samples(n, &state.infer)?;
        let (width_name, beam_width) = body.beams(n).unzip();
        let model = AskedModel::read(body.model.take(), state)?;
        let echo = body.echo.unwrap_or(false);
        let (grammar, names) = body.take_forms().grammar(NAMES)?;
        let names = with_name(&names, "beam_width", width_name.unwrap_or("n"));
        let parameters = GenerateParameters {
            top_n_tokens: top_logprobs,
            decoder_input_details: echo && top_logprobs.is_some(),
            grammar,
            beam_width,
            adapter_id: model.adapter,
            // Nothing follows a prompt that is only scored.
            token_healing: body.token_healing.unwrap_or(false) && !scores_only,
            ..sampling
        };
        let add_special_tokens = body.add_special_tokens.unwrap_or(true);
        let prompts = body.prompt.into_inputs();
        let texts = if echo {
            let texts = prompts.iter().map(|prompt| text(state, prompt));
            try_join_all(texts).await?
        } else {
            Vec::new()
        };
        let answer = Self {
            n: n as usize,
            characters: prompts.iter().map(characters).sum(),
            echo: texts,
            top_logprobs,
            tokens,
            scores_only,
            shows_special: parameters.skip_special_tokens == Some(false),
            identity: Identity::new("cmpl", model.name),
        };
        let plan = GenerationPlan::new(prompts, &parameters, add_special_tokens, samples, names);
        Ok((plan, answer))
    }

    /// Prepares and starts completions, and counts them where they are refused.
    async fn start(
        state: &AppState,
        body: CompletionBody,
    ) -> Result<(Generations, Self), ApiError> {
        let prepared = Self::prepare(state, body).await;
        let (plan, mut answer) = prepared.inspect_err(ApiError::count)?;
        let truncates = plan.groups.iter().any(|group| {
            let parameters = &group.request.parameters;
            parameters.truncate.is_some() || parameters.truncate_to_fit
        });
        let generations = plan.start(state).await?;
        if truncates && !answer.echo.is_empty() {
            answer.echo = kept(state, &generations).await?;
        }
        Ok((generations, answer))
    }

    /// The text that goes before a choice.
    fn echo(&self, index: usize) -> Option<&String> {
        self.echo.get(index / self.n.max(1))
    }

    /// The tokens of a choice, the first of which may begin within the prompt, whose end `healed` is.
    fn tokens(&self, healed: &str) -> CompletionTokens {
        let top = self.top_logprobs.is_some_and(|top| top > 0);
        let before = match self.echo.is_empty() {
            true => healed.chars().count(),
            false => 0,
        };
        CompletionTokens::new(top, self.tokens.as_names)
            .beginning_before(before)
            .showing_special(self.shows_special)
    }
}

fn characters(prompt: &Inputs) -> usize {
    match prompt {
        Inputs::Text(text) => text.chars().count(),
        Inputs::Ids(_) => 0,
    }
}

/// What is left of each prompt.
async fn kept(state: &AppState, generations: &Generations) -> Result<Vec<String>, ApiError> {
    let prompts = generations.streams.chunks(generations.samples.max(1));
    let prompts = prompts.filter_map(|samples| samples.first());
    let texts = prompts.map(|stream| async {
        let ids = Inputs::Ids(stream.prompt_ids.to_vec());
        Ok(text(state, &ids).await? + &stream.healed)
    });
    try_join_all(texts).await
}

async fn text(state: &AppState, prompt: &Inputs) -> Result<String, ApiError> {
    match prompt {
        Inputs::Text(text) => Ok(text.clone()),
        Inputs::Ids(ids) => {
            let text = state.infer.detokenize(ids.clone(), true).await;
            text.map_err(|error| renamed(error, NAMES))
        }
    }
}

/// Runs completions to their end.
///
/// # Errors
/// What refuses the body or ends a generation.
pub async fn complete(
    state: &AppState,
    id: &RequestId,
    body: CompletionBody,
) -> Result<(HeaderMap, Completion), ApiError> {
    let (generations, completions) = CompletionAnswer::start(state, body).await?;
    let mut finished = generations.gather().await?;
    finished.log(id);
    if completions.scores_only {
        finished.drop_generated();
    }
    let headers = finished.headers(state, completions.characters);
    let usage = finished.sizes().into();
    finished.keep_best(completions.n);
    let Finished { answers, .. } = finished;
    let choice = |(index, answer): (usize, GenerateAnswer)| {
        let echo = completions.echo(index);
        let top = completions.top_logprobs;
        let tokens = completions.tokens;
        let ids = answer.tokens.iter().map(|token| token.id);
        CompletionChoice {
            index,
            token_ids: tokens.returned.then(|| ids.collect()),
            prompt_token_ids: tokens.returned.then(|| answer.prompt_ids.to_vec()),
            logprobs: top.map(|_| {
                let list = completions.tokens(&answer.healed);
                let prompt = echo.map_or("", String::as_str);
                logprobs(state, &answer, prompt, list)
            }),
            finish_reason: finish_reason(answer.generated.finish_reason),
            beam_score: answer.generated.beam_score,
            text: echo.cloned().unwrap_or_default() + &answer.generated.text,
        }
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let answer = Completion {
        object: "text_completion",
        id: completions.identity.id,
        created: completions.identity.created,
        model: completions.identity.model,
        system_fingerprint: SYSTEM_FINGERPRINT,
        choices,
        usage,
    };
    Ok((headers, answer))
}

/// Of the prompt, where it was asked for, and of the answer.
fn logprobs(
    state: &AppState,
    answer: &GenerateAnswer,
    prompt: &str,
    mut tokens: CompletionTokens,
) -> CompletionLogprobs {
    let mut list = tokens.prompt(&answer.prefill, prompt, &state.infer);
    for (index, token) in answer.tokens.iter().enumerate() {
        let top = answer.top_tokens.get(index).map_or(&[][..], Vec::as_slice);
        tokens.push(&mut list, token, top, &state.infer);
    }
    list
}

async fn stream(
    state: &AppState,
    id: RequestId,
    body: CompletionBody,
) -> Result<Response, ApiError> {
    let include_usage = body
        .stream_options
        .and_then(|options| options.include_usage);
    let (generations, completions) = CompletionAnswer::start(state, body).await?;
    let count = generations.streams.len();
    let choice = |(index, stream): (usize, &GenerateStream)| {
        let tokens = completions.tokens(&stream.healed);
        let choice =
            completion_events::CompletionChoice::new(completions.echo(index).cloned(), tokens);
        if completions.tokens.returned {
            choice.with_prompt(stream.prompt_ids.clone())
        } else {
            choice
        }
    };
    let encoder = CompletionEvents {
        tally: Tally::new(id.clone(), &generations),
        id,
        include_usage: include_usage.unwrap_or(false),
        chunks: Chunks::new("text_completion", &completions.identity, count),
        choices: generations.streams.iter().enumerate().map(choice).collect(),
        token_ids: completions.tokens.returned,
        logprobs: completions.top_logprobs.map(|_| state.infer.clone()),
    };
    let headers = generations.headers(state, completions.characters);
    sse::begun(&state.answers, headers, generations.merge(), encoder).await
}
