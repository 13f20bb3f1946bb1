//! Text generation in the shape of TGI: `/generate`, `/generate_stream` and the older `/`.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use text_generation_core::error::InferError;
use text_generation_core::infer::{GenerateStream, Group, gather_best};
use text_generation_core::types::{
    Dialect, GenerateParameters, GenerateRequest, GeneratedText, RequestInstants, StreamEvent,
};
use tokio::time::Instant;
use tower_http::request_id::RequestId;

use crate::asked_model;
use crate::body_files;
use crate::error::ApiError;
use crate::extract::GenerationJson;
use crate::generations::failure_in_stream;
use crate::headers::{self, Sizes};
use crate::image_files;
use crate::openapi::{BodyErrors, GenerateErrors};
use crate::schema::{
    CompatGenerateBody, GenerateBody, GenerateEvent, GenerateResponse, StreamDetails,
    StreamResponse,
};
use crate::sse::{self, EventBuffer};
use crate::state::AppState;
use crate::tenant;
use crate::timings::Timings;

/// The text that follows `inputs`, when it is complete, in a list of one; a stream of events if `stream` is true.
#[utoipa::path(
    post,
    path = "/",
    tag = crate::openapi::tags::TGI,
    request_body = CompatGenerateBody,
    responses(
        (status = 200, description = "Generated text, or a stream of events", content(
            (Vec<GenerateResponse> = "application/json"),
            (GenerateEvent = "text/event-stream"),
        )),
        GenerateErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn compat_generate(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    GenerationJson(body): GenerationJson<CompatGenerateBody>,
) -> Result<Response, ApiError> {
    let mut parameters = body.parameters;
    // TGI does so for text-generation models and where it does not know the kind of model, as here.
    parameters.return_full_text.get_or_insert(true);
    if body.stream {
        return Ok(stream(&state, id, body.inputs, parameters).await);
    }
    let (headers, answer) = complete(&state, &id, body.inputs, parameters).await?;
    Ok((headers, Json([answer])).into_response())
}

/// The text that follows `inputs`, when it is complete.
#[utoipa::path(
    post,
    path = "/generate",
    tag = crate::openapi::tags::TGI,
    request_body = GenerateBody,
    responses(
        (status = 200, description = "Generated text", body = GenerateResponse),
        GenerateErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn generate(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    GenerationJson(body): GenerationJson<GenerateBody>,
) -> Result<(HeaderMap, Json<GenerateResponse>), ApiError> {
    let (headers, answer) = complete(&state, &id, body.inputs, body.parameters).await?;
    Ok((headers, Json(answer)))
}

/// The text that follows `inputs`, token by token. Errors after the body was read are events too, with status 200.
#[utoipa::path(
    post,
    path = "/generate_stream",
    tag = crate::openapi::tags::TGI,
    request_body = GenerateBody,
    responses(
        (status = 200, description = "One event for each token, or an error event and the end",
         body = GenerateEvent, content_type = "text/event-stream"),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn generate_stream(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    GenerationJson(body): GenerationJson<GenerateBody>,
) -> Response {
    stream(&state, id, body.inputs, body.parameters).await
}

/// What the answer needs of a request that `core` consumes.
pub(super) struct AnswerFields {
    /// The prompt, when it goes before the text.
    prefix: String,
    details: bool,
    characters: usize,
    /// Whether the samples that are not the best are returned too.
    best_of: bool,
}

impl AnswerFields {
    pub fn new(inputs: &str, parameters: &GenerateParameters) -> Self {
        let full_text = parameters.return_full_text.unwrap_or(false);
        Self {
            characters: body_files::characters(inputs),
            prefix: if full_text {
                // With a file that is too large the request is refused.
                body_files::as_sent(inputs).unwrap_or_default().into_owned()
            } else {
                String::new()
            },
            details: parameters.details || parameters.decoder_input_details,
            best_of: [parameters.best_of, parameters.beam_width]
                .iter()
                .any(|count| count.is_some_and(|count| count != 1)),
        }
    }

    /// Runs the samples of a request to their end; returns the headers and the body of the answer.
    ///
    /// # Errors
    /// What ends a generation.
    pub async fn gather(
        self,
        state: &AppState,
        id: &RequestId,
        samples: Vec<GenerateStream>,
    ) -> Result<(HeaderMap, GenerateResponse), ApiError> {
        let (best, others) = gather_best(samples).await?;
        let generated = &best.generated;
        let timings = Timings::new(&best.instants, best.finished, generated.generated_tokens);
        timings.log(id, best.input_length, generated);
        let headers = headers::finished(
            &state.answers.compute_type,
            self.characters,
            &timings,
            Sizes {
                prompt_tokens: best.input_length,
                // The sample that found fewest computed the prompt for the others.
                cached_tokens: others
                    .iter()
                    .map(|other| other.cached_tokens)
                    .fold(best.cached_tokens, u32::min),
                generated_tokens: generated.generated_tokens,
                predicted: generated.predicted,
            },
        );
        let others = self.best_of.then_some(others);
        let answer = GenerateResponse::new(best, others, &self.prefix, self.details);
        Ok((headers, answer))
    }
}

/// The request of a prompt.
///
/// # Errors
/// `Validation` where an image in it cannot be read.
pub(super) fn request(
    state: &AppState,
    inputs: String,
    mut parameters: GenerateParameters,
) -> Result<GenerateRequest, InferError> {
    tenant::current().sign(&mut parameters);
    let adapter = parameters.adapter_id.take();
    parameters.adapter_id = adapter.and_then(|given| asked_model::adapter_id(given, state));
    let (inputs, images) = image_files::of_inputs(state, inputs)?;
    Ok(GenerateRequest {
        inputs: inputs.into(),
        parameters,
        add_special_tokens: true,
        dialect: Dialect::Tgi,
        images,
    })
}

/// Runs a request to its end; returns the headers and the body of the answer.
async fn complete(
    state: &AppState,
    id: &RequestId,
    inputs: String,
    parameters: GenerateParameters,
) -> Result<(HeaderMap, GenerateResponse), ApiError> {
    let answer = AnswerFields::new(&inputs, &parameters);
    let group = Group::one_or_best_of(request(state, inputs, parameters)?);
    let streams = state.infer.generate_group(group).await?;
    answer.gather(state, id, streams).await
}

async fn stream(
    state: &AppState,
    id: RequestId,
    inputs: String,
    parameters: GenerateParameters,
) -> Response {
    let answer = AnswerFields::new(&inputs, &parameters);
    let characters = answer.characters;
    let generation = match request(state, inputs, parameters) {
        Ok(request) => state.infer.generate_stream(request).await,
        Err(error) => Err(error),
    };
    let input_length = generation.as_ref().map_or(0, |stream| stream.input_length);
    let encoder = TokenEvents {
        id,
        answer,
        input_length,
        index: 0,
    };
    let headers = headers::streaming(&state.answers.compute_type, characters);
    sse::response(&state.answers, headers, generation, encoder)
}

/// Events of `/generate_stream`.
struct TokenEvents {
    id: RequestId,
    answer: AnswerFields,
    input_length: u32,
    index: u32,
}

impl TokenEvents {
    /// The text and the details of the last event.
    fn finish(
        &self,
        generated: GeneratedText,
        instants: &RequestInstants,
    ) -> (String, Option<StreamDetails>) {
        Timings::new(instants, Instant::now(), generated.generated_tokens).log(
            &self.id,
            self.input_length,
            &generated,
        );
        let details = self.answer.details.then_some(StreamDetails {
            finish_reason: generated.finish_reason,
            generated_tokens: generated.generated_tokens,
            seed: generated.seed,
            beam_score: generated.beam_score,
            input_length: self.input_length,
        });
        let text = if self.answer.prefix.is_empty() {
            generated.text
        } else {
            format!("{}{}", self.answer.prefix, generated.text)
        };
        (text, details)
    }
}

impl sse::Encoder for TokenEvents {
    type Event = StreamEvent;

    fn event(&mut self, event: StreamEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        let (token, top_tokens, last) = match event {
            StreamEvent::Prefill(_) => return ControlFlow::Continue(()),
            StreamEvent::Token { token, top_tokens } => (token, top_tokens, None),
            StreamEvent::End {
                token,
                top_tokens,
                generated,
                instants,
                ..
            } => (token, top_tokens, Some(self.finish(generated, &instants))),
        };
        let ended = last.is_some();
        let (generated_text, details) = last.unzip();
        self.index += 1;
        out.push(&StreamResponse {
            index: self.index,
            token,
            top_tokens,
            generated_text,
            details: details.flatten(),
        });
        if ended {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        out.push(&failure_in_stream(error, &self.id).body);
    }
}
