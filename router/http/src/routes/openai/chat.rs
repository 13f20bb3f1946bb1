//! Chats in the shape of OpenAI: `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use text_generation_core::types::{GenerateParameters, Inputs};
use text_generation_formats::Delta;
use tower_http::request_id::RequestId;

use super::answer::{
    AssistantMessage, ChatChoice, ChatCompletion, Identity, SYSTEM_FINGERPRINT, end_reason,
};
use super::chat_body::ChatBody;
use super::chat_events::{ChatEvent, ChatEvents};
use super::logprobs::ChatLogprobs;
use super::prediction::PredictionBody;
use super::sampling::{TokenIds, check_n};
use crate::asked_model::AskedModel;
use crate::conversation::{Answer, Conversation, FinishedChoice, Prepared, RunningConversation};
use crate::error::ApiError;
use crate::extract::GenerationJson;
use crate::generations::Names;
use crate::memory::MemoryShare;
use crate::openapi::OpenAiErrors;
use crate::sse;
use crate::state::AppState;

/// What the fields of `core` are called here, with one of the two names of the limit.
const fn names(max_tokens: &'static str) -> [(&'static str, &'static str); 9] {
    [
        ("inputs", "messages"),
        ("max_new_tokens", max_tokens),
        ("min_new_tokens", "min_tokens"),
        ("truncate", "truncate_prompt_tokens"),
        ("top_n_tokens", "top_logprobs"),
        ("grammar", "response_format"),
        ("beam_width", "n"),
        ("chat_template_kwargs.reasoning_effort", "reasoning_effort"),
        ("chat_template_kwargs.documents", "documents"),
    ]
}

/// For clients that send `max_tokens`, or no limit.
pub const NAMES: &Names = &names("max_tokens");
/// For clients that send `max_completion_tokens`.
const NEWER_NAMES: &Names = &names("max_completion_tokens");

/// The assistant's next message.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = crate::openapi::tags::OPENAI,
    request_body = ChatBody,
    responses(
        (status = 200, description = "The message, or with `stream` one event for each token and `[DONE]`", content(
            (ChatCompletion = "application/json"),
            (ChatEvent = "text/event-stream"),
        )),
        OpenAiErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn chat_completions(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    Extension(share): Extension<MemoryShare>,
    GenerationJson(body): GenerationJson<ChatBody>,
) -> Result<Response, ApiError> {
    let include_usage = body.includes_usage();
    let streams = body.stream.unwrap_or(false);
    let prepared = Chat::prepare(&state, body).await;
    let Chat { prepared, answer } = prepared.inspect_err(ApiError::count)?;
    prepared.forget_body(&share);
    let running = prepared.start(&state).await?;
    if streams {
        return answer.stream(&state, id, running, include_usage).await;
    }
    let (headers, answer) = answer.gather(&state, &id, running).await?;
    Ok((headers, Json(answer)).into_response())
}

/// A chat that is ready to be generated.
pub struct Chat {
    pub prepared: Prepared,
    pub answer: ChatAnswer,
}

/// What the answer to a chat needs beside what the model says.
pub struct ChatAnswer {
    identity: Identity,
    /// Set when log-probabilities are wanted.
    top_logprobs: Option<u32>,
    tokens: TokenIds,
    /// Whether what the model thinks is left out.
    without_reasoning: bool,
}

/// Reads the conversation of a body.
///
/// # Errors
/// 422 that names the field.
pub fn conversation(state: &AppState, mut body: ChatBody) -> Result<Conversation, ApiError> {
    let n = check_n(body.n, 1)?;
    let names = match body.max_completion_tokens {
        None => NAMES,
        Some(_) => NEWER_NAMES,
    };
    let top_logprobs = body.top_logprobs()?;
    let max_tokens = body.max_tokens()?;
    let sampling = body.take_sampling().or(&state.sampling_defaults);
    let beam_width = sampling.use_beam_search.then_some(n);
    let sampling = sampling.parameters(max_tokens)?;
    let (grammar, names) = body.take_forms().grammar(names)?;
    let prediction = body.prediction.take().map(PredictionBody::into_text);
    let parameters = GenerateParameters {
        top_n_tokens: top_logprobs,
        grammar,
        beam_width,
        prediction: prediction.transpose()?.map(Inputs::Text),
        ..sampling
    };
    let tools = body.take_tools()?;
    Ok(Conversation {
        separate_reasoning: body.separate_reasoning,
        reasoning: body.reasoning_wishes()?,
        input: body.take_input()?,
        tools,
        parameters,
        n,
        names,
    })
}

impl Chat {
    /// Reads the body and renders the conversation.
    ///
    /// # Errors
    /// What refuses the body.
    pub async fn prepare(state: &AppState, mut body: ChatBody) -> Result<Self, ApiError> {
        let model = AskedModel::read(body.model.take(), state)?;
        let answer = ChatAnswer {
            identity: Identity::new("chatcmpl", model.name),
            top_logprobs: body.top_logprobs()?,
            tokens: body.token_ids(),
            without_reasoning: body.include_reasoning == Some(false),
        };
        let mut conversation = conversation(state, body)?;
        conversation.parameters.adapter_id = model.adapter;
        let prepared = conversation.prepare(state).await?;
        Ok(Self { prepared, answer })
    }
}

impl ChatAnswer {
    /// Runs the chat to its end.
    ///
    /// # Errors
    /// What ends a generation.
    pub async fn gather(
        self,
        state: &AppState,
        id: &RequestId,
        running: RunningConversation,
    ) -> Result<(HeaderMap, ChatCompletion), ApiError> {
        let prompt = running.prompt_ids();
        let finished = running.gather(state, id).await?;
        let tokens = self.tokens;
        let choice = |(index, choice): (usize, FinishedChoice)| {
            let ids = choice.tokens.iter().map(|token| token.id);
            ChatChoice {
                index,
                token_ids: tokens.returned.then(|| ids.collect()),
                logprobs: self
                    .top_logprobs
                    .map(|_| logprobs(state, &choice, tokens.as_names)),
                finish_reason: end_reason(choice.end.reason),
                beam_score: choice.beam_score,
                message: self.message(choice.deltas),
            }
        };
        let choices = finished.choices.into_iter().enumerate();
        let answer = ChatCompletion {
            object: "chat.completion",
            choices: choices.map(choice).collect(),
            id: self.identity.id,
            created: self.identity.created,
            model: self.identity.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            usage: finished.sizes.into(),
            prompt_token_ids: tokens.returned.then(|| prompt.to_vec()),
        };
        Ok((finished.headers, answer))
    }

    fn message(&self, deltas: Vec<Delta>) -> AssistantMessage {
        let mut answer = Answer::from_iter(deltas);
        if self.without_reasoning {
            answer.reasoning.clear();
        }
        answer.into()
    }

    async fn stream(
        self,
        state: &AppState,
        id: RequestId,
        running: RunningConversation,
        include_usage: bool,
    ) -> Result<Response, ApiError> {
        let headers = running.headers(state);
        let logprobs = self.top_logprobs.map(|_| state.infer.clone());
        let choices = running.choices();
        let encoder = ChatEvents::new(&self.identity, choices, id.clone(), logprobs, include_usage)
            .naming_tokens(self.tokens, running.prompt_ids())
            .without_reasoning(self.without_reasoning);
        sse::begun(&state.answers, headers, running.events(id), encoder).await
    }
}

fn logprobs(state: &AppState, choice: &FinishedChoice, as_ids: bool) -> ChatLogprobs {
    let mut logprobs = ChatLogprobs::default();
    for (index, token) in choice.tokens.iter().enumerate() {
        let top = choice.top_tokens.get(index).map_or(&[][..], Vec::as_slice);
        logprobs.push(token, top, as_ids, &state.infer);
    }
    logprobs
}
