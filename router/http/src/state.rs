//! What handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRef;
use axum::http::HeaderValue;
use metrics_exporter_prometheus::PrometheusHandle;
use text_generation_core::infer::Infer;

use crate::extract::PayloadLimit;
use crate::middleware::HttpOptions;
use crate::schema::Info;

/// One value for the whole server; handlers get it behind an `Arc`.
#[derive(Debug)]
pub struct AppState {
    pub infer: Infer,
    pub info: Info,
    /// Value of the header `x-compute-type`.
    pub compute_type: HeaderValue,
    pub metrics: PrometheusHandle,
    pub options: HttpOptions,
    stopping: AtomicBool,
}

impl AppState {
    pub fn new(
        infer: Infer,
        info: Info,
        compute_type: HeaderValue,
        metrics: PrometheusHandle,
        options: HttpOptions,
    ) -> Self {
        Self {
            infer,
            info,
            compute_type,
            metrics,
            options,
            stopping: AtomicBool::new(false),
        }
    }

    /// From now on new requests and the readiness probe get 503; running requests go on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.infer.shutdown();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

impl FromRef<Arc<AppState>> for PayloadLimit {
    fn from_ref(state: &Arc<AppState>) -> Self {
        Self(state.options.payload_limit)
    }
}
