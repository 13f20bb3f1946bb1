//! What handlers share.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::FromRef;
use axum::http::HeaderValue;
use metrics_exporter_prometheus::PrometheusHandle;
use text_generation_chat::{ChatInput, ChatTemplate, ChatTemplateError};
use text_generation_core::infer::Infer;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::extract::Reading;
use crate::middleware::HttpOptions;
use crate::schema::Info;

/// One value for the whole server; handlers get it behind an `Arc`.
#[derive(Debug)]
pub struct AppState {
    pub infer: Infer,
    /// The chat template of the model, or why there is none; only chats fail then.
    pub chat: Result<ChatTemplate, ChatTemplateError>,
    pub info: Info,
    /// Value of the header `x-compute-type`.
    pub compute_type: HeaderValue,
    pub metrics: PrometheusHandle,
    pub options: HttpOptions,
    /// When the server started, in seconds since 1970.
    pub started: u64,
    stopping: CancellationToken,
}

impl AppState {
    pub fn new(
        infer: Infer,
        chat: Result<ChatTemplate, ChatTemplateError>,
        info: Info,
        compute_type: HeaderValue,
        metrics: PrometheusHandle,
        options: HttpOptions,
    ) -> Self {
        Self {
            infer,
            chat,
            info,
            compute_type,
            metrics,
            options,
            started: unix_time(),
            stopping: CancellationToken::new(),
        }
    }

    /// The prompt for a conversation. Templates are untrusted code, so they run on a thread that may block.
    ///
    /// # Errors
    /// 422 when there is no template, when it fails or reaches a limit, or when a field cannot be used.
    pub async fn render_chat(&self, input: ChatInput) -> Result<String, ApiError> {
        let template = self.chat.clone()?;
        let rendered = tokio::task::spawn_blocking(move || template.render(&input)).await;
        Ok(rendered.map_err(|_| ApiError::internal())??)
    }

    /// From now on new requests and the readiness probe get 503; running requests go on.
    pub fn stop(&self) {
        self.stopping.cancel();
        self.infer.shutdown();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(0, |time| time.as_secs())
}

impl FromRef<Arc<AppState>> for Reading {
    fn from_ref(state: &Arc<AppState>) -> Self {
        Self {
            limits: state.options.body,
            stopping: state.stopping.clone(),
        }
    }
}
