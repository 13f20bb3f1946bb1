//! Chats in the shape of OpenAI: `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use text_generation_core::types::{GenerateAnswer, GenerateParameters};
use tower_http::request_id::RequestId;

use super::answer::{
    AssistantMessage, ChatChoice, ChatCompletion, Identity, SYSTEM_FINGERPRINT, finish_reason,
};
use super::chat_body::ChatBody;
use super::chunk::Chunks;
use super::events::{self, ChatEvents, Ending};
use super::generations::{CachedTokens, Finished, Generations, Names, Plan, renamed};
use super::logprobs::ChatLogprobs;
use super::reasoning::ReasoningSplitter;
use super::sampling::{check_n, model_name};
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::openapi::OpenAiErrors;
use crate::schema::ChatEvent;
use crate::sse;
use crate::state::AppState;

/// What the fields of `core` are called here, with one of the two names of the limit.
const fn names(max_tokens: &'static str) -> [(&'static str, &'static str); 6] {
    [
        ("inputs", "messages"),
        ("max_new_tokens", max_tokens),
        ("min_new_tokens", "min_tokens"),
        ("top_n_tokens", "top_logprobs"),
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
    tag = crate::openapi::TAG,
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
    ApiJson(body): ApiJson<ChatBody>,
) -> Result<Response, ApiError> {
    if body.stream.unwrap_or(false) {
        return stream(&state, id, body).await;
    }
    let (generations, answer) = Chat::start(&state, body).await?;
    let (headers, answer) = answer.gather(&state, &id, generations).await?;
    Ok((headers, Json(answer)).into_response())
}

/// A chat that is ready to be generated.
pub struct Chat {
    pub plan: Plan,
    pub answer: ChatAnswer,
}

/// What the answer to a chat needs beside its generations.
pub struct ChatAnswer {
    identity: Identity,
    /// Characters of the prompt.
    characters: usize,
    /// Set when log-probabilities are wanted.
    top_logprobs: Option<u32>,
    /// Set when reasoning is to be split off; each choice gets its own.
    splitter: Option<ReasoningSplitter>,
}

impl Chat {
    /// Reads the body and renders the conversation.
    ///
    /// # Errors
    /// What refuses the body.
    pub async fn prepare(state: &AppState, mut body: ChatBody) -> Result<Self, ApiError> {
        body.check_features()?;
        let n = check_n(body.n, 1)?;
        let names = match body.max_completion_tokens {
            None => NAMES,
            Some(_) => NEWER_NAMES,
        };
        let top_logprobs = body.top_logprobs()?;
        let sampling = body.take_sampling().parameters(body.max_tokens()?)?;
        let parameters = GenerateParameters {
            top_n_tokens: top_logprobs,
            ..sampling
        };
        let model = model_name(body.model.take(), &state.info.model_id)?;
        let prompt = state.chats.render(body.take_input()?).await;
        let prompt = prompt.map_err(|error| renamed(error, names))?;
        let separate_reasoning = body.separate_reasoning.unwrap_or(false);
        let readable = state.chats.readable(&prompt);
        let answer = ChatAnswer {
            identity: Identity::new("chatcmpl", model),
            characters: readable.chars().count(),
            top_logprobs,
            splitter: separate_reasoning.then(|| ReasoningSplitter::new(&readable)),
        };
        // The template has written the special tokens.
        let plan = Plan::new(vec![prompt.into()], &parameters, false, n, names);
        Ok(Self { plan, answer })
    }

    /// Prepares and starts a chat, and counts it where it is refused.
    async fn start(
        state: &AppState,
        body: ChatBody,
    ) -> Result<(Generations, ChatAnswer), ApiError> {
        let prepared = Self::prepare(state, body).await;
        let Self { plan, answer } = prepared.inspect_err(ApiError::count)?;
        Ok((plan.start(state).await?, answer))
    }
}

impl ChatAnswer {
    /// Runs the generations of the chat to their end.
    ///
    /// # Errors
    /// What ends a generation.
    pub async fn gather(
        self,
        state: &AppState,
        id: &RequestId,
        generations: Generations,
    ) -> Result<(HeaderMap, ChatCompletion), ApiError> {
        let finished = generations.gather().await?;
        finished.log(id);
        let headers = finished.headers(state, self.characters);
        let usage = finished.usage();
        let Finished { answers, .. } = finished;
        let choice = |(index, answer): (usize, GenerateAnswer)| ChatChoice {
            index,
            logprobs: self.top_logprobs.map(|_| logprobs(state, &answer)),
            finish_reason: finish_reason(answer.generated.finish_reason),
            message: message(answer.generated.text, self.splitter.clone()),
        };
        let answer = ChatCompletion {
            object: "chat.completion",
            choices: answers.into_iter().enumerate().map(choice).collect(),
            id: self.identity.id,
            created: self.identity.created,
            model: self.identity.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            usage,
        };
        Ok((headers, answer))
    }
}

fn message(text: String, splitter: Option<ReasoningSplitter>) -> AssistantMessage {
    let (content, reasoning) = match splitter {
        None => (text, None),
        Some(mut splitter) => {
            let (first, last) = (splitter.push(&text), splitter.finish());
            let reasoning = first.reasoning + &last.reasoning;
            (first.content + &last.content, Some(reasoning))
        }
    };
    AssistantMessage {
        role: "assistant",
        content,
        reasoning_content: reasoning.filter(|reasoning| !reasoning.is_empty()),
    }
}

fn logprobs(state: &AppState, answer: &GenerateAnswer) -> ChatLogprobs {
    let mut logprobs = ChatLogprobs::default();
    for (index, token) in answer.tokens.iter().enumerate() {
        let top = answer.top_tokens.get(index).map_or(&[][..], Vec::as_slice);
        logprobs.push(token, top, &state.infer);
    }
    logprobs
}

async fn stream(state: &AppState, id: RequestId, body: ChatBody) -> Result<Response, ApiError> {
    let include_usage = body
        .stream_options
        .and_then(|options| options.include_usage);
    let (generations, answer) = Chat::start(state, body).await?;
    let count = generations.streams.len();
    let encoder = ChatEvents {
        ending: Ending {
            id,
            running: count,
            prompt_tokens: generations.prompt_tokens,
            cached_tokens: CachedTokens::new(generations.samples),
            completion_tokens: 0,
            include_usage: include_usage.unwrap_or(false),
        },
        chunks: Chunks::new("chat.completion.chunk", &answer.identity, count),
        choices: (0..count)
            .map(|_| events::ChatChoice::new(answer.splitter.clone()))
            .collect(),
        logprobs: answer.top_logprobs.map(|_| state.infer.clone()),
    };
    Ok(sse::response(
        &state.answers,
        answer.characters,
        Ok(generations.merge()),
        encoder,
    ))
}
