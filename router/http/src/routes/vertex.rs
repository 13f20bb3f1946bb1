//! The route that Vertex AI calls: several requests in one body, a text for each.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Map, Value};
use text_generation_core::types::GenerateParameters;
use tower_http::request_id::RequestId;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::extract::{ApiJson, from_value};
use crate::openapi::GenerateErrors;
use crate::routes::generate::complete;
use crate::schema::{VertexBody, VertexResponse};
use crate::state::AppState;

/// One request of a [`VertexBody`].
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 20}}))]
pub struct VertexInstance {
    /// The prompt.
    pub inputs: String,
    /// As for `/generate`, but that tokens are sampled unless `do_sample` is false.
    #[serde(default)]
    #[schema(value_type = GenerateParameters)]
    pub parameters: Map<String, Value>,
}

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
    let requests = body.instances.into_iter().enumerate();
    let requests = requests
        .map(|(index, instance)| request(instance, &format!("instances[{index}]")))
        .collect::<Result<Vec<_>, ApiError>>()?;
    let texts = requests.into_iter().map(async |(inputs, parameters)| {
        let (_, answer) = complete(&state, &id, inputs, parameters).await?;
        Ok::<_, ApiError>(answer.generated_text)
    });
    let predictions = try_join_all(texts).await?;
    Ok(Json(VertexResponse { predictions }))
}

fn request(instance: Value, path: &str) -> Result<(String, GenerateParameters), ApiError> {
    let VertexInstance {
        inputs,
        mut parameters,
    } = from_value(instance, path)?;
    parameters.entry("do_sample").or_insert(Value::Bool(true));
    let parameters = from_value(Value::Object(parameters), &format!("{path}.parameters"))?;
    Ok((inputs, parameters))
}
