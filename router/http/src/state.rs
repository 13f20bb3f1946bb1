//! State that handlers share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::FromRef;
use axum::http::HeaderValue;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Map, Value};
use text_generation_core::infer::Infer;
use tokio_util::sync::CancellationToken;

use crate::aliases::MetricsAliases;
use crate::extract::Reading;
use crate::generation_config::SamplingDefaults;
use crate::item_memory::ItemMemory;
use crate::middleware::HttpOptions;
use crate::model_format::ModelFormat;
use crate::renderer::ChatRenderer;
use crate::schema::Info;
use crate::seal::Seal;

/// One value for the whole server; handlers get it behind an `Arc`.
#[derive(Debug)]
pub struct AppState {
    pub infer: Infer,
    /// Makes prompts of chats.
    pub chats: ChatRenderer,
    /// How the model writes calls and reasoning.
    pub format: ModelFormat,
    /// For what requests below `/v1` leave open.
    pub sampling_defaults: SamplingDefaults,
    pub info: Info,
    pub answers: AnswerOptions,
    pub metrics: PrometheusHandle,
    pub options: HttpOptions,
    /// For reasoning that clients carry.
    pub seal: Seal,
    /// For clients that refer to items of responses.
    pub items: ItemMemory,
    /// What is known of the tokenizer, for clients that do its work themselves.
    pub tokenizer_info: Map<String, Value>,
    /// When the server started, in seconds since 1970.
    pub started: u64,
    /// Value of the header `x-router-instance` of `/health`; none where nobody has named this router.
    pub instance: Option<HeaderValue>,
    /// Cancelled when load balancers are to send no more.
    leaving: CancellationToken,
    stopping: CancellationToken,
}

/// What the operator decides about answers.
#[derive(Debug, Clone)]
pub struct AnswerOptions {
    /// Value of the header `x-compute-type`.
    pub compute_type: HeaderValue,
    /// Names that the model is served under; the first is that of [`Info`].
    pub model_names: Vec<String>,
    /// Bytes of items of responses that are remembered at most.
    pub remembered: usize,
    /// How long a stream may be silent.
    pub sse_keep_alive: Duration,
    /// Whose names `/metrics` has too.
    pub metrics_aliases: Option<MetricsAliases>,
    /// Whether an administrator may load and unload adapters.
    pub loads_adapters: bool,
}

impl AppState {
    pub fn new(
        infer: Infer,
        chats: ChatRenderer,
        format: ModelFormat,
        info: Info,
        answers: AnswerOptions,
        metrics: PrometheusHandle,
        options: HttpOptions,
    ) -> Self {
        Self {
            infer,
            chats,
            format,
            sampling_defaults: info.sampling_defaults.unwrap_or_default(),
            info,
            items: ItemMemory::new(answers.remembered),
            answers,
            metrics,
            seal: Seal::new(&options.access.keys.secret()),
            options,
            tokenizer_info: Map::new(),
            started: unix_time(),
            instance: None,
            leaving: CancellationToken::new(),
            stopping: CancellationToken::new(),
        }
    }

    /// The same, named for whoever has started it.
    #[must_use]
    pub fn named(self, instance: Option<HeaderValue>) -> Self {
        Self { instance, ..self }
    }

    /// The same with what `/tokenizer_info` says.
    #[must_use]
    pub fn describing(self, tokenizer_info: Map<String, Value>) -> Self {
        Self {
            tokenizer_info,
            ..self
        }
    }

    /// From now on the readiness probe gets 503; requests are taken as before.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// From now on new requests get 503 too; running requests go on.
    pub fn stop(&self) {
        self.leave();
        self.stopping.cancel();
        self.infer.shutdown();
    }

    /// Cancelled by [`Self::leave`].
    pub fn leaving(&self) -> CancellationToken {
        self.leaving.clone()
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled()
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
            vision: state.infer.vision().cloned(),
            classifies: state.info.classifier.is_some(),
        }
    }
}
