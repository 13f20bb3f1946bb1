//! The route that Vertex AI calls: several requests in one body, a text for each.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::try_join_all;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use text_generation_core::infer::{GenerateStream, Group};
use text_generation_core::types::GenerateParameters;
use tower_http::request_id::RequestId;

use super::hosted::{VertexBody, VertexGenerateBody, VertexResponse};
use crate::conversation::{Prepared, Reading};
use crate::error::ApiError;
use crate::extract::{GenerationJson, from_raw};
use crate::fields::Own;
use crate::generations::{Generations, renamed};
use crate::openapi::GenerateErrors;
use crate::routes::generate::{self, AnswerFields};
use crate::routes::openai::ChatBody;
use crate::routes::openai::chat::{self, Chat, ChatAnswer};
use crate::state::AppState;

/// The text that follows each of the instances. When one fails, all do.
#[utoipa::path(
    post,
    path = "/vertex",
    tag = crate::openapi::tags::TGI,
    request_body = VertexBody,
    responses(
        (status = 200, description = "A text for each instance, in their order", body = VertexResponse),
        GenerateErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn vertex(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    GenerationJson(body): GenerationJson<VertexBody>,
) -> Result<Json<VertexResponse>, ApiError> {
    let prepared = prepare(&state, body).await;
    let (groups, instances) = prepared.inspect_err(ApiError::count)?;
    // One body may hold both kinds, which have other names for the same fields; the message has those of `/generate`.
    let chats_only = instances
        .iter()
        .all(|instance| matches!(instance, Instance::Chat(..)));
    let names = if chats_only { chat::NAMES } else { &[] };
    let started = state.infer.generate_groups(groups).await;
    let started = started.map_err(|error| renamed(error, names))?;
    let texts = instances
        .into_iter()
        .zip(started)
        .map(|(instance, samples)| instance.text(&state, &id, samples));
    let predictions = try_join_all(texts).await?;
    Ok(Json(VertexResponse { predictions }))
}

/// Reads all instances, before the first is started.
async fn prepare(
    state: &AppState,
    body: VertexBody,
) -> Result<(Vec<Group>, Vec<Instance>), ApiError> {
    let (given, max) = (body.instances.len(), state.info.max_client_batch_size);
    if given == 0 {
        return Err(ApiError::no_instances());
    }
    if given > max as usize {
        return Err(ApiError::invalid_body(format!(
            "`instances` supports up to {max} requests (`--max-client-batch-size`). Given: {given}"
        )));
    }
    let (mut groups, mut instances) = (Vec::new(), Vec::new());
    for (index, instance) in body.instances.iter().enumerate() {
        let path = format!("instances[{index}]");
        let (group, instance) = Instance::prepare(state, instance, &path).await?;
        groups.extend(group);
        instances.push(instance);
    }
    Ok((groups, instances))
}

/// The keys that tell the bodies apart.
#[derive(Debug, Deserialize)]
struct Kind {
    messages: Option<IgnoredAny>,
}

/// What is read of the parameters beside them.
#[derive(Debug, Deserialize)]
struct DoSample {
    do_sample: Option<IgnoredAny>,
}

/// One request, as far as its answer needs it.
enum Instance {
    Generate(AnswerFields),
    Chat(ChatAnswer, Box<Reading>),
}

impl Instance {
    /// `path` is its place in the body. Each has one prompt, so one group.
    async fn prepare(
        state: &AppState,
        instance: &RawValue,
        path: &str,
    ) -> Result<(Vec<Group>, Self), ApiError> {
        let kind: Kind = from_raw(instance, path)?;
        if kind.messages.is_some() {
            let body: ChatBody = from_raw(instance, path)?;
            let Chat { prepared, answer } = Chat::prepare(state, body).await?;
            let Prepared { plan, reading, .. } = prepared;
            return Ok((plan.groups, Self::Chat(answer, Box::new(reading))));
        }
        let body: VertexGenerateBody = from_raw(instance, path)?;
        let parameters = sampled(body.parameters.as_deref(), &format!("{path}.parameters"))?;
        let answer = AnswerFields::new(&body.inputs, &parameters);
        let group = Group::one_or_best_of(generate::request(state, body.inputs, parameters)?);
        Ok((vec![group], Self::Generate(answer)))
    }

    async fn text(
        self,
        state: &AppState,
        id: &RequestId,
        samples: Vec<GenerateStream>,
    ) -> Result<String, ApiError> {
        match self {
            Self::Generate(fields) => {
                let (_, answer) = fields.gather(state, id, samples).await?;
                Ok(answer.generated_text)
            }
            Self::Chat(answer, reading) => {
                let running = reading.of(Generations::new(vec![samples]));
                let (_, answer) = answer.gather(state, id, running).await?;
                let first = answer.choices.into_iter().next();
                Ok(first
                    .and_then(|choice| choice.message.content)
                    .unwrap_or_default())
            }
        }
    }
}

/// Tokens are sampled unless `do_sample` is false.
fn sampled(parameters: Option<&RawValue>, path: &str) -> Result<GenerateParameters, ApiError> {
    let Some(given) = parameters else {
        return Ok(GenerateParameters {
            do_sample: true,
            ..GenerateParameters::default()
        });
    };
    let Own(mut parameters): Own<GenerateParameters> = from_raw(given, path)?;
    let said: DoSample = from_raw(given, path)?;
    parameters.do_sample |= said.do_sample.is_none();
    Ok(parameters)
}
