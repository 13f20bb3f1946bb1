//! The route that Vertex AI calls: several requests in one body, a text for each.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::try_join_all;
use serde_json::Value;
use text_generation_core::types::GenerateParameters;
use tower_http::request_id::RequestId;

use crate::error::ApiError;
use crate::extract::{ApiJson, from_value};
use crate::openapi::GenerateErrors;
use crate::routes::generate;
use crate::routes::openai::{ChatBody, chat};
use crate::schema::{VertexBody, VertexGenerateBody, VertexResponse};
use crate::state::AppState;

/// The text that follows each of the instances. When one fails, all do.
#[utoipa::path(
    post,
    path = "/vertex",
    tag = crate::openapi::TAG,
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
    ApiJson(body): ApiJson<VertexBody>,
) -> Result<Json<VertexResponse>, ApiError> {
    let (given, max) = (body.instances.len(), state.info.max_client_batch_size);
    if given == 0 {
        return Err(ApiError::invalid_body("`instances` must not be empty"));
    }
    if given > max as usize {
        return Err(ApiError::invalid_body(format!(
            "`instances` supports up to {max} requests (`--max-client-batch-size`). Given: {given}"
        )));
    }
    // All are read before the first is computed.
    let instances = body.instances.into_iter().enumerate();
    let instances = instances
        .map(|(index, instance)| Instance::read(instance, &format!("instances[{index}]")))
        .collect::<Result<Vec<_>, ApiError>>()?;
    let texts = instances
        .into_iter()
        .map(|instance| instance.text(&state, &id));
    let predictions = try_join_all(texts).await?;
    Ok(Json(VertexResponse { predictions }))
}

/// One request, ready to run.
enum Instance {
    Generate(String, Box<GenerateParameters>),
    Chat(Box<ChatBody>),
}

impl Instance {
    /// `path` is its place in the body.
    fn read(instance: Value, path: &str) -> Result<Self, ApiError> {
        if instance.get("messages").is_some() {
            return from_value(instance, path).map(Self::Chat);
        }
        let VertexGenerateBody {
            inputs,
            mut parameters,
        } = from_value(instance, path)?;
        parameters.entry("do_sample").or_insert(Value::Bool(true));
        let parameters = from_value(Value::Object(parameters), &format!("{path}.parameters"))?;
        Ok(Self::Generate(inputs, parameters))
    }

    async fn text(self, state: &AppState, id: &RequestId) -> Result<String, ApiError> {
        match self {
            Self::Generate(inputs, parameters) => {
                let (_, answer) = generate::complete(state, id, inputs, *parameters).await?;
                Ok(answer.generated_text)
            }
            Self::Chat(body) => {
                let (_, answer) = chat::complete(state, id, *body).await?;
                let first = answer.choices.into_iter().next();
                Ok(first.map_or_else(String::new, |choice| choice.message.content))
            }
        }
    }
}
