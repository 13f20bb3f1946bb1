//! Classes of texts, and rewards of conversations: `/v1/classify`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use text_generation_chat::ChatInput;
use text_generation_core::error::{InferError, ValidationError};
use text_generation_core::types::{GenerateAnswer, GenerateParameters, Inputs};
use tower_http::request_id::RequestId;
use utoipa::ToSchema;

use super::answer::{Identity, Usage};
use super::chat_body::{Message, checked_messages};
use super::completion_body::Prompt;
use super::sampling::{check, truncate};
use crate::asked_model::AskedModel;
use crate::classifier::{Activation, Classifier};
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::fields::own_fields;
use crate::generations::{GenerationPlan, Names};
use crate::openapi::OpenAiErrors;
use crate::state::AppState;

/// What the fields of `core` are called here.
const NAMES: &Names = &[("inputs", "input"), ("truncate", "truncate_prompt_tokens")];
const CHAT_NAMES: &Names = &[
    ("inputs", "messages"),
    ("truncate", "truncate_prompt_tokens"),
];

/// Body of `/v1/classify`. Keys that no API knows are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({"model": "tgi", "input": ["What a day!", "Never again."]}))]
pub struct ClassifyBody {
    /// A text, a list of texts, the token ids of one text, or a list of those; up to `--max-client-batch-size`.
    #[schema(nullable = true)]
    pub input: Option<Prompt>,
    /// A conversation in place of `input`, of which the chat template makes the text.
    #[schema(nullable = true, value_type = Option<Vec<Message>>)]
    pub messages: Option<Vec<Map<String, Value>>>,
    /// Any name; the answer repeats it. Without one, or with `tgi`, the answer names the served model.
    #[schema(nullable = true, max_length = 256, example = "tgi")]
    pub model: Option<String>,
    /// With `false`, `probs` are the logits.
    #[schema(nullable = true, example = json!(null))]
    pub use_activation: Option<bool>,
    /// The older name of `use_activation`.
    #[schema(nullable = true, example = json!(null))]
    pub activation: Option<bool>,
    /// Whether the tokenizer adds special tokens (BOS): the default for texts, but not for conversations, whose template
    /// writes them.
    #[schema(nullable = true, example = json!(null))]
    pub add_special_tokens: Option<bool>,
    /// End the text of a conversation with the header of an answer, which it does not unless asked.
    #[schema(nullable = true, example = json!(null))]
    pub add_generation_prompt: Option<bool>,
    /// Variables for the template, of those that it may be given.
    #[schema(nullable = true, value_type = Option<Object>, example = json!(null))]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Keep so many tokens at the end of each text; -1 as many as there is room for.
    #[schema(nullable = true, minimum = -1, example = json!(null))]
    pub truncate_prompt_tokens: Option<i64>,
    /// `left`: what `truncate_prompt_tokens` takes away is at the beginning.
    #[schema(nullable = true, example = json!(null))]
    pub truncation_side: Option<String>,
    /// Requests of a lower number run first; each step counts as much as ten seconds of waiting.
    #[schema(nullable = true, example = 0)]
    pub priority: Option<i32>,
    /// Only requests with the same salt share cached prefixes.
    #[schema(nullable = true, max_length = 256, example = json!(null))]
    pub cache_salt: Option<String>,
}

own_fields!(ClassifyBody);

/// Answer of `/v1/classify`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Classes {
    #[schema(example = "classify-0f3c")]
    pub id: String,
    #[schema(example = "list")]
    pub object: &'static str,
    /// Seconds since 1970.
    #[schema(example = 1_764_201_600)]
    pub created: u64,
    pub model: String,
    /// In the order of the texts.
    pub data: Vec<Classified>,
    pub usage: Usage,
}

/// The classes of one text.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct Classified {
    pub index: usize,
    /// Of the class with the largest logit.
    #[schema(example = "positive")]
    pub label: String,
    /// In the order of the classes: probabilities, or what `/info` says of the activation; logits where asked for.
    #[schema(example = json!([0.1, 0.9]))]
    pub probs: Vec<f64>,
    #[schema(example = 2)]
    pub num_classes: usize,
}

impl Classified {
    fn new(
        index: usize,
        answer: &GenerateAnswer,
        classifier: &Classifier,
        activation: Activation,
    ) -> Self {
        let logits = &answer.class_logits;
        let best =
            (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        let label = best.and_then(|best| classifier.labels.get(best));
        Self {
            index,
            label: label.cloned().unwrap_or_default(),
            probs: activation.apply(logits),
            num_classes: logits.len(),
        }
    }
}

/// The classes of texts, of a server whose model is a classifier or a reward model.
#[utoipa::path(
    post,
    path = "/v1/classify",
    tag = crate::openapi::tags::OPENAI,
    request_body = ClassifyBody,
    responses((status = 200, description = "The classes", body = Classes), OpenAiErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn classify(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    body: Result<ApiJson<ClassifyBody>, ApiError>,
) -> Result<(HeaderMap, Json<Classes>), ApiError> {
    let ApiJson(body) = body.inspect_err(ApiError::count)?;
    let classifier = state.info.classifier.as_ref();
    let none = || ApiError::from(InferError::from(ValidationError::NoClasses));
    let classifier = classifier.ok_or_else(none).inspect_err(ApiError::count)?;
    let uses_activation = body.use_activation.or(body.activation).unwrap_or(true);
    let prepared = prepare(&state, body).await;
    let (plan, model, characters) = prepared.inspect_err(ApiError::count)?;
    let (answers, sizes, headers) = plan.prompts(&state, &id, characters).await?;
    let activation = match uses_activation {
        true => classifier.activation,
        false => Activation::None,
    };
    let identity = Identity::new("classify", model);
    let classified = answers.iter().enumerate();
    let classes = Classes {
        id: identity.id,
        object: "list",
        created: identity.created,
        model: identity.model,
        data: classified
            .map(|(index, answer)| Classified::new(index, answer, classifier, activation))
            .collect(),
        usage: sizes.into(),
    };
    Ok((headers, Json(classes)))
}

/// A prompt for each text, the name of the model, and the characters of the texts.
async fn prepare(
    state: &AppState,
    mut body: ClassifyBody,
) -> Result<(GenerationPlan, String, usize), ApiError> {
    let model = AskedModel::read(body.model.take(), state)?;
    let cut = truncate(body.truncate_prompt_tokens, body.truncation_side.as_deref())?;
    let parameters = GenerateParameters {
        classify: true,
        truncate: cut.flatten(),
        truncate_to_fit: cut == Some(None),
        adapter_id: model.adapter,
        priority: body.priority,
        cache_salt: body.cache_salt.take(),
        ..GenerateParameters::default()
    };
    let asked = body.add_special_tokens;
    let (prompts, special, names) = match body.messages.take() {
        Some(messages) => {
            check(body.input.is_none(), || {
                "`messages` and `input` exclude each other: send one of them".to_owned()
            })?;
            let text = state.chats.render(chat(messages, body)?).await?;
            (vec![Inputs::Text(text)], asked.unwrap_or(false), CHAT_NAMES)
        }
        None => {
            let prompts = inputs(body.input.take(), state.info.max_client_batch_size)?;
            (prompts, asked.unwrap_or(true), NAMES)
        }
    };
    let characters = prompts.iter().map(|prompt| match prompt {
        Inputs::Text(text) => text.chars().count(),
        Inputs::Ids(_) => 0,
    });
    let characters = characters.sum();
    let plan = GenerationPlan::new(prompts, &parameters, special, 1, names);
    Ok((plan, model.name, characters))
}

/// The conversation as its template gets it.
fn chat(messages: Vec<Map<String, Value>>, body: ClassifyBody) -> Result<ChatInput, ApiError> {
    Ok(ChatInput {
        messages: checked_messages(messages)?,
        add_generation_prompt: body.add_generation_prompt.unwrap_or(false),
        chat_template_kwargs: body.chat_template_kwargs.unwrap_or_default(),
        ..ChatInput::default()
    })
}

/// Each text of a body without a conversation.
fn inputs(given: Option<Prompt>, most: u32) -> Result<Vec<Inputs>, ApiError> {
    let inputs = given.map(Prompt::into_inputs);
    check(inputs.is_some(), || {
        "`input` is missing: send texts or token ids, or a conversation as `messages`".to_owned()
    })?;
    let inputs = inputs.unwrap_or_default();
    let count = inputs.len();
    check(count > 0, || "`input` must not be an empty list".to_owned())?;
    check(count <= most as usize, || {
        format!(
            "`input` must have at most {most} entries (`--max-client-batch-size`). Given: {count}"
        )
    })?;
    Ok(inputs)
}
