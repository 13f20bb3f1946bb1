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
use super::generations::{Finished, Generations, Names, renamed};
use super::logprobs::ChatLogprobs;
use super::reasoning::ReasoningSplitter;
use super::sampling::{check_n, model_name};
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::openapi::OpenAiErrors;
use crate::schema::ChatEvent;
use crate::state::AppState;
use crate::{headers, sse};

/// What the fields of `core` are called here.
const NAMES: &Names = &[
    ("inputs", "messages"),
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("top_n_tokens", "top_logprobs"),
    ("chat_template_kwargs.reasoning_effort", "reasoning_effort"),
    ("chat_template_kwargs.documents", "documents"),
];

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
    let (headers, answer) = complete(&state, &id, body).await?;
    Ok((headers, Json(answer)).into_response())
}

/// A chat whose generations run.
struct Chat {
    generations: Generations,
    identity: Identity,
    /// Characters of the prompt.
    characters: usize,
    /// Set when log-probabilities are wanted.
    top_logprobs: Option<u32>,
    /// Set when reasoning is to be split off; each choice gets its own.
    splitter: Option<ReasoningSplitter>,
}

impl Chat {
    async fn start(state: &AppState, mut body: ChatBody) -> Result<Self, ApiError> {
        body.check_features()?;
        let n = check_n(body.n, 1)?;
        let top_logprobs = body.top_logprobs(state.infer.limits().max_top_n_tokens)?;
        let sampling = body.take_sampling().parameters(body.max_tokens()?)?;
        let parameters = GenerateParameters {
            top_n_tokens: top_logprobs,
            ..sampling
        };
        let model = model_name(body.model.take(), &state.info.model_id)?;
        let prompt = state.chats.render(body.take_input()?).await;
        let prompt = prompt.map_err(|error| renamed(error, NAMES))?;
        let separate_reasoning = body.separate_reasoning.unwrap_or(false);
        let readable = state.chats.readable(&prompt);
        Ok(Self {
            identity: Identity::new("chatcmpl", model),
            characters: readable.chars().count(),
            top_logprobs,
            splitter: separate_reasoning.then(|| ReasoningSplitter::new(&readable)),
            // The template has written the special tokens.
            generations: Generations::start(
                state,
                vec![prompt.into()],
                parameters,
                false,
                n,
                NAMES,
            )
            .await?,
        })
    }
}

/// Runs a chat to its end.
///
/// # Errors
/// What refuses the body or ends a generation.
pub async fn complete(
    state: &AppState,
    id: &RequestId,
    body: ChatBody,
) -> Result<(HeaderMap, ChatCompletion), ApiError> {
    let chat = Chat::start(state, body).await?;
    let finished = chat.generations.gather().await?;
    finished.log(id);
    let headers = finished.headers(state, chat.characters);
    let usage = finished.usage();
    let Finished { answers, .. } = finished;
    let choice = |(index, answer): (usize, GenerateAnswer)| ChatChoice {
        index,
        logprobs: chat.top_logprobs.map(|_| logprobs(state, &answer)),
        finish_reason: finish_reason(answer.generated.finish_reason),
        message: message(answer.generated.text, chat.splitter.clone()),
    };
    let answer = ChatCompletion {
        object: "chat.completion",
        id: chat.identity.id,
        created: chat.identity.created,
        model: chat.identity.model,
        system_fingerprint: SYSTEM_FINGERPRINT,
        choices: answers.into_iter().enumerate().map(choice).collect(),
        usage,
    };
    Ok((headers, answer))
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
    let chat = Chat::start(state, body).await?;
    let count = chat.generations.streams.len();
    let encoder = ChatEvents {
        ending: Ending {
            id,
            running: count,
            prompt_tokens: chat.generations.prompt_tokens,
            completion_tokens: 0,
            include_usage: include_usage.unwrap_or(false),
        },
        chunks: Chunks::new("chat.completion.chunk", &chat.identity, count),
        choices: (0..count)
            .map(|_| events::ChatChoice::new(chat.splitter.clone()))
            .collect(),
        logprobs: chat.top_logprobs.map(|_| state.infer.clone()),
    };
    let headers = headers::streaming(&state.compute_type, chat.characters);
    Ok(sse::response(
        headers,
        Ok(chat.generations.merge()),
        encoder,
    ))
}
