//! `docs/errors.md` lists every error of the HTTP surface as it really is.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::StatusCode;
use text_generation_chat::ChatTemplateError;
use text_generation_core::error::{GrammarError, InferError, Overload, ValidationError};
use text_generation_http::error::ApiError;
use text_generation_images::FetchError;

/// One of each kind; `InferError` is matched exhaustively so that a new kind cannot be forgotten.
fn every_error() -> Vec<ApiError> {
    let kinds = [
        InferError::Validation(ValidationError::TopK),
        InferError::Validation(ValidationError::ImageFetch {
            path: String::new(),
            error: FetchError::Unreachable {
                host: String::new(),
            },
        }),
        InferError::Overloaded(Overload::Grammars),
        InferError::QueueTime(Duration::from_secs(1)),
        InferError::Generation(String::new()),
        InferError::ShardLost,
        InferError::AdapterChanged,
        InferError::Grammar(GrammarError::Rejected { id: 0 }),
        InferError::IncompleteGeneration,
        InferError::IncompleteGenerationStream,
        InferError::GrammarsStuck,
        InferError::ShuttingDown,
    ];
    for kind in &kinds {
        match kind {
            InferError::Validation(_)
            | InferError::Overloaded(_)
            | InferError::QueueTime(_)
            | InferError::Generation(_)
            | InferError::ShardLost
            | InferError::AdapterChanged
            | InferError::Grammar(_)
            | InferError::IncompleteGeneration
            | InferError::IncompleteGenerationStream
            | InferError::GrammarsStuck
            | InferError::ShuttingDown => {}
        }
    }
    let mut errors: Vec<ApiError> = kinds.into_iter().map(ApiError::from).collect();
    errors.extend([
        ApiError::malformed_json(""),
        ApiError::from(ChatTemplateError::Missing),
        ApiError::suffix_not_supported(),
        ApiError::no_instances(),
        ApiError::too_many_prompts(4),
        ApiError::unknown_model("", ""),
        ApiError::unsupported_media_type(""),
        ApiError::payload_too_large(1),
        ApiError::request_timeout(1),
        ApiError::unauthorized(),
        ApiError::not_the_admin(),
        ApiError::adapters_fixed(),
        ApiError::no_adapter(""),
        ApiError::not_found("/", None),
        ApiError::method_not_allowed("PUT", "/"),
        ApiError::unhealthy(""),
        ApiError::out_of_memory(),
        ApiError::too_many_connections(),
        ApiError::bad_request(""),
        ApiError::internal(),
    ]);
    errors
}

#[test]
fn the_table_lists_every_error() {
    let table = include_str!("../../../docs/errors.md");
    let http = table.split("## Shard").next().unwrap_or_default();
    let listed: BTreeSet<(u16, String)> = http
        .lines()
        .filter_map(|line| {
            let mut cells = line.trim_matches('|').split(" | ").map(str::trim).skip(1);
            let status = cells.next()?.parse().ok()?;
            Some((status, cells.next()?.trim_matches('`').to_owned()))
        })
        .collect();
    let real: BTreeSet<(u16, String)> = every_error()
        .iter()
        .map(|error| (error.status.as_u16(), error.body.error_type.to_owned()))
        .collect();
    assert_eq!(listed, real);
    assert!(real.contains(&(
        StatusCode::TOO_MANY_REQUESTS.as_u16(),
        "overloaded".to_owned()
    )));
}
