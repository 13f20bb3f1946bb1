//! The exporter behind `/metrics`. The names are in `text_generation_core::metrics`.

use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use axum::http::StatusCode;
use metrics::counter;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use text_generation_core::metrics::{
    BATCH_NEXT_SIZE, EXPERT_LOAD_IMBALANCE, REQUEST_GENERATED_TOKENS, REQUEST_INPUT_LENGTH,
    REQUEST_MAX_NEW_TOKENS, REQUEST_SKIPPED_TOKENS,
};

/// Answers that are errors, of every route and of paths without one. Labels `status` and `error_type`.
const HTTP_ERRORS: &str = "tgi_http_errors";

/// Buckets of ratios to what would be even. Up to 1.5 they are fine: there a step of many tokens loses a few per cent.
const IMBALANCES: [f64; 16] = [
    1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0,
];

static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// Installs the recorder of this process. Must run before anything is recorded: earlier values would be lost.
/// A second server in the same process shares the recorder of the first.
///
/// # Errors
/// When a recorder that is not ours is installed.
pub fn install(max_input_tokens: u32, max_total_tokens: u32) -> anyhow::Result<PrometheusHandle> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = installed.as_ref() {
        return Ok(handle.clone());
    }
    let handle = builder(max_input_tokens, max_total_tokens)?
        .install_recorder()
        .context("cannot install the metrics recorder")?;
    *installed = Some(handle.clone());
    Ok(handle)
}

/// Counts an answer that is an error.
pub fn http_error(status: StatusCode, error_type: &'static str) {
    let status = status.as_str().to_owned();
    counter!(HTTP_ERRORS, "status" => status, "error_type" => error_type).increment(1);
}

/// Histograms in buckets, as the dashboards of TGI expect them; without buckets they would be summaries.
fn builder(max_input_tokens: u32, max_total_tokens: u32) -> anyhow::Result<PrometheusBuilder> {
    let durations: Vec<f64> = (1..=35).map(|n| 0.0001 * 1.5_f64.powi(n)).collect();
    let hundredths = |max: u32| -> Vec<f64> {
        (1..=100)
            .map(|n| f64::from(max) / 100.0 * f64::from(n))
            .collect()
    };
    let counts = |most: u32| -> Vec<f64> { (1..=most).map(f64::from).collect() };
    let mut builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("duration".to_owned()), &durations)?;
    for (name, buckets) in [
        (REQUEST_INPUT_LENGTH, hundredths(max_input_tokens)),
        (REQUEST_GENERATED_TOKENS, hundredths(max_total_tokens)),
        (REQUEST_MAX_NEW_TOKENS, hundredths(max_total_tokens)),
        (REQUEST_SKIPPED_TOKENS, counts(16)),
        (BATCH_NEXT_SIZE, counts(1024)),
        (EXPERT_LOAD_IMBALANCE, IMBALANCES.to_vec()),
    ] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &buckets)?;
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_histogram_has_its_buckets() {
        let recorder = builder(100, 200).expect("good buckets").build_recorder();
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!("tgi_request_queue_duration").record(0.0002);
            metrics::histogram!(REQUEST_INPUT_LENGTH).record(7.0);
            metrics::histogram!(REQUEST_GENERATED_TOKENS).record(7.0);
            metrics::histogram!(BATCH_NEXT_SIZE).record(3.0);
            metrics::histogram!(EXPERT_LOAD_IMBALANCE).record(1.07);
        });
        let page = recorder.handle().render();
        for line in [
            r#"tgi_request_queue_duration_bucket{le="0.00015000000000000001"} 0"#,
            r#"tgi_request_queue_duration_bucket{le="0.00022500000000000002"} 1"#,
            r#"tgi_request_input_length_bucket{le="7"} 1"#,
            r#"tgi_request_generated_tokens_bucket{le="6"} 0"#,
            r#"tgi_batch_next_size_bucket{le="1024"} 1"#,
            r#"tgi_expert_load_imbalance_bucket{le="1.05"} 0"#,
            r#"tgi_expert_load_imbalance_bucket{le="1.1"} 1"#,
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
    }
}
