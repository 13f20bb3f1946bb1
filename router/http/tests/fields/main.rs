//! `docs/fields.md` tells the truth: each of its rows is sent to the server.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

#[path = "../common/mod.rs"]
mod common;

mod foreign;
mod names;
mod probe;
mod remedies;
mod rows;

use std::collections::BTreeSet;

use probe::Probe;
use rows::{implied, rows};

#[tokio::test]
async fn every_row_of_the_tables_is_true() {
    let rows = rows();
    assert!(rows.len() > 200, "{}", rows.len());
    let wrong = Probe::start().await.wrong(&rows).await;
    assert!(wrong.is_empty(), "{wrong}");
}

#[tokio::test]
async fn what_only_other_apis_have_is_refused_or_harmless() {
    let implied = implied(&rows());
    assert!(implied.len() > 300, "{}", implied.len());
    let wrong = Probe::start().await.wrong(&implied).await;
    assert!(wrong.is_empty(), "{wrong}");
}

/// The fields that the server's own description has.
fn described(schema: &str) -> BTreeSet<String> {
    let document = serde_json::to_value(text_generation_http::routes::openapi()).expect("JSON");
    let properties = &document["components"]["schemas"][schema]["properties"];
    let properties = properties.as_object().expect(schema);
    properties.keys().cloned().collect()
}

#[test]
fn the_tables_have_every_field_that_is_described() {
    let rows = rows();
    for (route, schema) in [
        ("/v1/chat/completions", "ChatBody"),
        ("/v1/completions", "CompletionBody"),
        ("/v1/score", "ScoreBody"),
        ("/v1/classify", "ClassifyBody"),
        ("/v1/responses", "ResponsesBody"),
        ("/v1/messages", "MessagesBody"),
        ("/generate", "GenerateParameters"),
        ("/", "CompatGenerateBody"),
    ] {
        let listed = rows.iter().filter(|row| row.route == route);
        let listed: Vec<&String> = listed.map(|row| &row.field).collect();
        let unique: BTreeSet<String> = listed.iter().copied().cloned().collect();
        assert_eq!(listed.len(), unique.len(), "{route} has a field twice");
        let missing: Vec<_> = described(schema).difference(&unique).cloned().collect();
        assert!(missing.is_empty(), "{route} lacks {missing:?}");
    }
}
