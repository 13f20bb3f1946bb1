//! `text-generation-router check`: what would keep a start from working, without shards and without ports.

#![allow(clippy::expect_used, reason = "a test may fail where it cannot go on")]

mod common;

use std::net::TcpListener;
use std::path::Path;

use clap::Parser;
use common::model_folder;
use serde_json::json;
use text_generation_http::args::{Cli, Command};
use text_generation_http::startup::check;

/// What the check says to these flags: nothing where a start would work.
async fn verdict(flags: &[&str]) -> Option<String> {
    let command = ["text-generation-router", "check"];
    let config = match Cli::try_parse_from(command.iter().chain(flags)) {
        Ok(cli) => match cli.command {
            Some(Command::Check(config)) => config,
            other => return Some(format!("{other:?} is another command")),
        },
        Err(error) => return Some(error.to_string()),
    };
    let converter = |folder: &Path| Err(format!("no converter for {}", folder.display()));
    let checked = check(&config, converter).await;
    checked.err().map(|error| format!("{error:#}"))
}

async fn refused(flags: &[&str], expected: &str) {
    let reason = verdict(flags).await.unwrap_or_default();
    assert!(reason.contains(expected), "{flags:?}: {reason:?}");
}

#[tokio::test]
async fn flags_are_judged_without_the_model() {
    assert_eq!(verdict(&[]).await, None);
    let events = r#"--kv-events-config={"enable_kv_cache_events": true, "endpoint": "#;
    let cases = [
        ("--tool-call-parser=hermes2", "'--tool-call-parser "),
        (
            "--tool-call-parser=hermes2",
            "is no known format: use auto, none or one of `",
        ),
        ("--reasoning-parser=r1", "is no known format"),
        ("--tenant-header=authorization", "this header holds secrets"),
        ("--priority-header=a b", "not a valid header name"),
        ("--cors-allow-origin=\n", "--cors-allow-origin"),
        ("--metrics-aliases=sglang", "must be vllm"),
        ("--prefix-caching=maybe", "must be true, false or per-key"),
        (
            "--prefix-caching=per-key",
            "`--prefix-caching per-key` needs keys to keep apart",
        ),
        ("--generation-config=mine", "must be `auto` or `none`"),
        ("--max-batch-size=0", "--max-batch-size"),
        ("--max-queue-time=0", "must be above 0"),
        (
            "--waiting-served-ratio=-1",
            "must be `auto` or a number >= 0",
        ),
        ("--api-key-file=/no/keys", "/no/keys (`--api-key-file`)"),
        (
            "--api-key= ",
            "`--api-key` (or API_KEY): an API key must not be empty",
        ),
        ("--kv-events-config=true", "must be a JSON object such as"),
        (
            r#"--kv-events-config={"enable": true}"#,
            "unknown field `enable`",
        ),
        (
            &format!("{events}\"tcp://no port\"}}"),
            "cannot listen on `endpoint` tcp://no port",
        ),
        (
            "--otlp-endpoint=collector:4317",
            "`--otlp-endpoint` must be an address such as http://localhost:4317",
        ),
        (
            "--otlp-endpoint=http://[",
            "`--otlp-endpoint` http://[ cannot be used",
        ),
        (
            "--tokenizer-config-path=/no/config.json",
            "`--tokenizer-config-path /no/config.json`: config.json: does not exist",
        ),
    ];
    for (flag, expected) in cases {
        refused(&[flag], expected).await;
    }
    let limits = ["--max-input-tokens=9", "--max-total-tokens=9"];
    refused(
        &limits,
        "`--max-input-tokens` must be < `--max-total-tokens`",
    )
    .await;
    let files = [
        "--cluster-cert=/no/c",
        "--cluster-key=/no/k",
        "--cluster-ca=/no/a",
    ];
    refused(&files, "cannot read /no/c").await;
}

#[tokio::test]
async fn files_that_flags_name_are_read_without_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("written");
        path.display().to_string()
    };
    let keys = file("keys", "team key=hunter2 weight=heavy");
    let reason = verdict(&["--api-key-file", &keys])
        .await
        .unwrap_or_default();
    assert!(reason.contains("line 1 (`--api-key-file`)"), "{reason}");
    assert!(!reason.contains("hunter2"), "{reason}");
    let reason = verdict(&["--api-key=hun\tter2"]).await.unwrap_or_default();
    assert!(
        reason.contains("control characters") && !reason.contains("ter2"),
        "{reason}"
    );
    let template = file("config.json", r#"{"chat_template": "{% if %}"}"#);
    refused(
        &["--tokenizer-config-path", &template],
        "cannot be compiled",
    )
    .await;
}

#[tokio::test]
async fn the_folder_of_the_model_is_read_where_it_is_named() {
    let folder = model_folder();
    let model = folder.path().display().to_string();
    let named = ["--tokenizer-name", &model];
    assert_eq!(verdict(&named).await, None);
    refused(&["--tokenizer-name=/no/model"], "is not a folder").await;
    let unfit = [&named[..], &["--reasoning-parser=openai"]].concat();
    refused(
        &unfit,
        "`--reasoning-parser openai` does not fit this model",
    )
    .await;
    let fit = [&unfit[..], &["--tool-call-parser=openai"]].concat();
    assert_eq!(verdict(&fit).await, None);
    std::fs::write(folder.path().join("tokenizer.json"), json!({}).to_string()).expect("written");
    refused(&named, "tokenizer.json").await;
    std::fs::remove_file(folder.path().join("tokenizer.json")).expect("removed");
    refused(&named, "no converter for").await;
}

#[tokio::test]
async fn no_port_is_opened() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let events =
        json!({"enable_kv_cache_events": true, "endpoint": format!("tcp://127.0.0.1:{port}")});
    let flags = [
        "--hostname=127.0.0.1".to_owned(),
        format!("--port={port}"),
        format!("--prometheus-port={port}"),
        format!("--kv-events-config={events}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    assert_eq!(verdict(&flags).await, None);
}
