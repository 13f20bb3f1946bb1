//! Adapters that an administrator loads and unloads while the server runs, in the words of vLLM and of SGLang.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use text_generation_core::adapters::AdapterToLoad;
use text_generation_core::error::{AdapterError, InferError};
use utoipa::ToSchema;

use crate::adapter_names::check_name;
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::openapi::{BodyErrors, OpenAiErrors};
use crate::state::AppState;

/// Body of `/v1/load_lora_adapter`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct LoadAdapterBody {
    /// What requests call it.
    #[schema(example = "pirate")]
    pub lora_name: String,
    /// A folder on the machine of the shards; where the server has `--lora-dir`, one below that.
    #[schema(example = "/srv/adapters/pirate")]
    pub lora_path: String,
    /// The name may stand for an adapter already: new requests get this one, and running ones end with theirs.
    #[schema(example = false)]
    pub load_inplace: bool,
    /// It keeps its pages of the device as long as others find room beside it.
    #[schema(example = false)]
    pub pinned: bool,
    /// Accepted, no effect: the tensors of the file tell their layout.
    pub is_3d_lora_weight: bool,
}

/// Body of `/v1/unload_lora_adapter`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct UnloadAdapterBody {
    #[schema(example = "pirate")]
    pub lora_name: String,
}

/// Answer of `/load_lora_adapter` and `/unload_lora_adapter`.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdapterUpdate {
    #[schema(example = true)]
    pub success: bool,
    /// All adapters by name, with their sources.
    pub loaded_adapters: BTreeMap<String, String>,
}

impl AdapterUpdate {
    fn of(state: &AppState) -> Json<Self> {
        let listed = state.infer.adapters().list().into_iter();
        Json(Self {
            success: true,
            loaded_adapters: listed.map(|one| (one.name, one.source)).collect(),
        })
    }
}

/// Loads an adapter, which requests may name as soon as this has answered.
///
/// Needs `--allow-adapter-loading` and the key of `--admin-api-key`.
#[utoipa::path(
    post,
    path = "/v1/load_lora_adapter",
    tag = crate::openapi::tags::OPERATION,
    request_body = LoadAdapterBody,
    responses(
        (status = 200, description = "It is loaded", body = String, content_type = "text/plain",
            example = "Success: LoRA adapter 'pirate' added successfully."),
        OpenAiErrors,
    ),
    security(("bearer" = []), ("api_key" = []))
)]
pub async fn load(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<LoadAdapterBody>,
) -> Result<String, ApiError> {
    let name = load_adapter(&state, body).await?;
    Ok(format!(
        "Success: LoRA adapter '{name}' added successfully."
    ))
}

/// Unloads an adapter: from now on no request may name it, and those that have it go on.
///
/// Needs `--allow-adapter-loading` and the key of `--admin-api-key`.
#[utoipa::path(
    post,
    path = "/v1/unload_lora_adapter",
    tag = crate::openapi::tags::OPERATION,
    request_body = UnloadAdapterBody,
    responses(
        (status = 200, description = "It is unloaded", body = String, content_type = "text/plain",
            example = "Success: LoRA adapter 'pirate' removed successfully."),
        OpenAiErrors,
    ),
    security(("bearer" = []), ("api_key" = []))
)]
pub async fn unload(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<UnloadAdapterBody>,
) -> Result<String, ApiError> {
    let name = unload_adapter(&state, body)?;
    Ok(format!(
        "Success: LoRA adapter '{name}' removed successfully."
    ))
}

/// `/v1/load_lora_adapter`, as SGLang answers it.
#[utoipa::path(
    post,
    path = "/load_lora_adapter",
    tag = crate::openapi::tags::OPERATION,
    request_body = LoadAdapterBody,
    responses((status = 200, description = "It is loaded", body = AdapterUpdate), BodyErrors),
    security(("bearer" = []), ("api_key" = []))
)]
pub async fn load_as_sglang(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<LoadAdapterBody>,
) -> Result<Json<AdapterUpdate>, ApiError> {
    load_adapter(&state, body).await?;
    Ok(AdapterUpdate::of(&state))
}

/// `/v1/unload_lora_adapter`, as SGLang answers it.
#[utoipa::path(
    post,
    path = "/unload_lora_adapter",
    tag = crate::openapi::tags::OPERATION,
    request_body = UnloadAdapterBody,
    responses((status = 200, description = "It is unloaded", body = AdapterUpdate), BodyErrors),
    security(("bearer" = []), ("api_key" = []))
)]
pub async fn unload_as_sglang(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<UnloadAdapterBody>,
) -> Result<Json<AdapterUpdate>, ApiError> {
    unload_adapter(&state, body)?;
    Ok(AdapterUpdate::of(&state))
}

/// Returns its name.
async fn load_adapter(state: &AppState, body: LoadAdapterBody) -> Result<String, ApiError> {
    check_allowed(state)?;
    let LoadAdapterBody {
        lora_name: name,
        lora_path,
        load_inplace,
        pinned,
        ..
    } = body;
    if name.is_empty() || lora_path.is_empty() {
        return Err(ApiError::bad_request(
            "Both 'lora_name' and 'lora_path' must be provided.",
        ));
    }
    check_name(&name).map_err(|reason| ApiError::bad_request(format!("`lora_name`: {reason}")))?;
    if state.answers.model_names.contains(&name) {
        return Err(ApiError::bad_request(format!(
            "`lora_name`: `{name}` is the name of the model; choose another one"
        )));
    }
    let asked = AdapterToLoad {
        name: name.clone(),
        path: PathBuf::from(lora_path),
        replaces: load_inplace,
        pinned,
    };
    match state.infer.adapters().load(asked).await {
        Ok(adapter) => {
            tracing::info!(
                adapter = name,
                source = adapter.source,
                rank = adapter.rank(),
                "an adapter is loaded"
            );
            Ok(name)
        }
        Err(error) => {
            tracing::warn!(adapter = name, %error, "an adapter is not loaded");
            Err(refusal(&name, error))
        }
    }
}

/// Returns its name.
fn unload_adapter(state: &AppState, body: UnloadAdapterBody) -> Result<String, ApiError> {
    check_allowed(state)?;
    let name = body.lora_name;
    if name.is_empty() {
        return Err(ApiError::bad_request(
            "'lora_name' needs to be provided to unload a LoRA adapter.",
        ));
    }
    if !state.infer.adapters().unload(&name) {
        return Err(ApiError::no_adapter(&name));
    }
    tracing::info!(adapter = name, "an adapter is unloaded");
    Ok(name)
}

fn check_allowed(state: &AppState) -> Result<(), ApiError> {
    match state.answers.loads_adapters {
        true => Ok(()),
        false => Err(ApiError::adapters_fixed()),
    }
}

fn refusal(name: &str, error: AdapterError) -> ApiError {
    match error {
        AdapterError::Exists { .. } => ApiError::bad_request(format!(
            "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
        )),
        AdapterError::NotFound { .. } => ApiError::no_adapter(name),
        AdapterError::Invalid { .. } | AdapterError::Pages { .. } | AdapterError::Names { .. } => {
            ApiError::bad_request(error.to_string())
        }
        error => InferError::from(error).into(),
    }
}
