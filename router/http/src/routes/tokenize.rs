//! Texts and chats to tokens, and back.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use text_generation_core::types::{GivenImage, TokenizedText};
use utoipa::ToSchema;

use crate::bounds::{MAX_DETOKENIZE_IDS, MEMORY_PER_DETOKENIZED_ID, MEMORY_PER_TOKENIZED_BYTE};
use crate::error::ApiError;
use crate::extract::{ApiJson, JsonBytes};
use crate::generations::renamed;
use crate::image_files;
use crate::memory::MemoryShare;
use crate::openapi::BodyErrors;
use crate::routes::openai::sampling::check;
use crate::routes::openai::{ChatBody, chat};
use crate::schema::{
    ChatTokenizeResponse, DetokenizeAnswer, DetokenizeBody, DetokenizedPrompt, DetokenizedText,
    GenerateBody, IdsBody, PromptTokensBody, TokenOptions, TokenizeAnswer, TokensBody,
};
use crate::state::AppState;
use crate::token_list;

/// Body of `/tokenize`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeBody {
    Inputs(Box<GenerateBody>),
    Prompt(PromptTokensBody),
    Chat(Box<ChatBody>),
}

/// The keys that tell the bodies of `/tokenize` apart.
#[derive(Debug, Deserialize)]
struct Keys {
    inputs: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
}

/// The tokens of a text, with the special tokens that a generation would add.
///
/// To `inputs` the answer is that of TGI, to `prompt` or `messages` that of vLLM, which lm-eval and others ask for.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = crate::openapi::tags::TGI,
    request_body = TokenizeBody,
    responses(
        (status = 200, description = "Tokens with byte offsets, or their ids and number", body = TokenizeAnswer),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn tokenize(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let keys: Keys = body.parse()?;
    if keys.inputs.is_none() && keys.prompt.is_some() {
        // First, because what is read beside the text loses its path.
        let options: TokenOptions = body.parse()?;
        let PromptTokensBody { prompt, .. } = body.parse()?;
        return counted(&state, (prompt, Vec::new()), true, &options, share).await;
    }
    if keys.inputs.is_none() && keys.messages.is_some() {
        let options: TokenOptions = body.parse()?;
        let mut chat: ChatBody = body.parse()?;
        // vLLM starts an answer also after a message of the assistant.
        if chat.continue_final_message != Some(true) {
            chat.add_generation_prompt.get_or_insert(true);
        }
        let prompt = chat::conversation(&state, chat)?.render(&state).await?;
        return counted(&state, prompt, false, &options, share).await;
    }
    check(keys.inputs.is_some(), || {
        "`inputs` is missing: send a text as `inputs` or `prompt`, or a chat as `messages`"
            .to_owned()
    })?;
    let body: GenerateBody = body.parse()?;
    let prompt = image_files::of_inputs(&state, body.inputs)?;
    let tokens = tokens(&state, prompt, true, &share).await?;
    token_list::response(tokens, "[", Bytes::from_static(b"]"), share)
}

/// vLLM's answer.
async fn counted(
    state: &Arc<AppState>,
    prompt: Prompt,
    add_special_tokens: bool,
    options: &TokenOptions,
    share: MemoryShare,
) -> Result<Response, ApiError> {
    let add_special_tokens = options.add_special_tokens.unwrap_or(add_special_tokens);
    let tokens = tokens(state, prompt, add_special_tokens, &share).await?;
    let strings = options.return_token_strs.unwrap_or(false).then(|| {
        let state = state.clone();
        move |id| state.infer.token(id)
    });
    token_list::counted(tokens, state.info.max_total_tokens, strings, share)
}

/// A text, and the images that it names.
type Prompt = (String, Vec<GivenImage>);

async fn tokens(
    state: &AppState,
    (text, images): Prompt,
    add_special_tokens: bool,
    share: &MemoryShare,
) -> Result<TokenizedText, ApiError> {
    share.resize(text.len().saturating_mul(MEMORY_PER_TOKENIZED_BYTE))?;
    let tokens = state.infer.tokenize_with(text, add_special_tokens, images);
    Ok(tokens.await?)
}

/// The prompt that the chat template makes of a conversation, and its tokens.
#[utoipa::path(
    post,
    path = "/chat_tokenize",
    tag = crate::openapi::tags::TGI,
    request_body = ChatBody,
    responses(
        (status = 200, description = "The prompt, and its tokens with byte offsets", body = ChatTokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn chat_tokenize(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(body): ApiJson<ChatBody>,
) -> Result<Response, ApiError> {
    let conversation = chat::conversation(&state, body)?;
    let prompt = conversation.render(&state).await?;
    // The template has written the special tokens.
    let tokens = tokens(&state, prompt, false, &share).await?;
    let mut tail = br#"],"templated_text":"#.to_vec();
    tail.extend(token_list::bytes(&tokens.text())?);
    tail.push(b'}');
    token_list::response(tokens, r#"{"tokenize_response":["#, tail.into(), share)
}

/// The keys that tell the bodies of `/detokenize` apart.
#[derive(Debug, Deserialize)]
struct IdKeys {
    ids: Option<IgnoredAny>,
    tokens: Option<IgnoredAny>,
}

/// The text of token ids.
///
/// To `ids` the answer is that of TGI, to `tokens` that of vLLM.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = crate::openapi::tags::TGI,
    request_body = DetokenizeBody,
    responses(
        (status = 200, description = "The text", body = DetokenizeAnswer),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn detokenize(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let keys: IdKeys = body.parse()?;
    let answer = if keys.ids.is_none() && keys.tokens.is_some() {
        let TokensBody { tokens } = body.parse()?;
        let prompt = text(&state, "tokens", tokens, false, &share).await?;
        DetokenizeAnswer::Prompt(DetokenizedPrompt { prompt })
    } else {
        check(keys.ids.is_some(), || {
            "`ids` is missing: send token ids as `ids` or `tokens`".to_owned()
        })?;
        let body: IdsBody = body.parse()?;
        let text = text(&state, "ids", body.ids, body.skip_special_tokens, &share).await?;
        DetokenizeAnswer::Text(DetokenizedText { text })
    };
    let answer = Bytes::from(token_list::bytes(&answer)?);
    share.resize(answer.len())?;
    Ok(token_list::json(std::iter::once(answer), share))
}

/// The text of the ids in `field`.
async fn text(
    state: &AppState,
    field: &'static str,
    ids: Vec<u32>,
    skip_special_tokens: bool,
    share: &MemoryShare,
) -> Result<String, ApiError> {
    let given = ids.len();
    if given > MAX_DETOKENIZE_IDS {
        return Err(ApiError::invalid_body(format!(
            "`{field}` supports up to {MAX_DETOKENIZE_IDS} token ids. Given: {given}"
        )));
    }
    let lengths = ids.iter().map(|&id| state.infer.token_bytes(id).len());
    // The text three times: in the library, joined, and as JSON.
    share.resize(3 * lengths.sum::<usize>() + given * MEMORY_PER_DETOKENIZED_ID)?;
    let text = state.infer.detokenize(ids, skip_special_tokens).await;
    text.map_err(|error| renamed(error, &[("ids", field)]))
}
