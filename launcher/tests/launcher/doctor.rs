//! `text-generation-launcher doctor` gathers what it and the server's doctor find, and starts nothing.

use std::net::TcpListener;

use crate::harness::{Ended, Env, Launcher, free_port};

fn examined(flags: &[&str], env: Env<'_>) -> Ended {
    let mut all = vec!["doctor", "--hostname", "127.0.0.1"];
    all.extend(flags);
    let mut variables = vec![("FAKE_VERSION", env!("CARGO_PKG_VERSION"))];
    variables.extend(env);
    let ended = Launcher::start_bare(&all, &variables).end();
    ended.assert_nothing_left();
    ended
}

fn has(ended: &Ended, parts: &[&str]) -> bool {
    let mut lines = ended.output.iter();
    lines.any(|line| parts.iter().all(|part| line.contains(part)))
}

#[test]
fn a_machine_on_which_a_start_would_work() {
    let port = free_port().to_string();
    let flags = [
        "--port",
        &port,
        "--model-id",
        "org/model",
        "--num-shard",
        "2",
        "--dtype",
        "bfloat16",
    ];
    let ended = examined(&flags, &[]);
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    assert!(has(&ended, &[&format!("listen on 127.0.0.1:{port}")]));
    assert!(has(&ended, &["ok", "memory", "1 GiB of weights"]));
    assert_eq!(ended.events(), ["doctor start"]);
    let asked = ended.start_of("doctor")["argv"].to_string();
    for flag in ["org/model", "--num-shard", "bfloat16"] {
        assert!(asked.contains(flag), "{asked}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once_and_the_exit_code_tells() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let also_taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let probes = also_taken.local_addr().unwrap().port().to_string();
    let nodes_taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let meeting = nodes_taken.local_addr().unwrap().port().to_string();
    let flags = [
        "--port",
        &port,
        "--prometheus-port",
        &probes,
        "--nnodes=2",
        "--master-addr=127.0.0.1",
        "--cluster-insecure",
        "--master-port",
        &meeting,
        "--cuda-memory-fraction",
        "2",
    ];
    let ended = examined(&flags, &[("FAKE_DOCTOR", "ill"), ("FAKE_VERSION", "0.0.9")]);
    assert_eq!(ended.code, Some(1));
    assert!(has(&ended, &["error", "flags", "--cuda-memory-fraction"]));
    assert!(has(&ended, &["error", "address", "--port"]));
    assert!(has(&ended, &["error", "address", "--prometheus-port"]));
    assert!(has(&ended, &["error", "address", "--master-port"]));
    assert!(has(&ended, &["error", "software", "0.0.9"]));
    assert!(has(&ended, &["error", "memory", "1 GiB of weights"]));
    assert!(has(&ended, &["-> buy a larger one"]));
    assert!(has(&ended, &["warning", "no model given"]));
    assert!(
        has(&ended, &["A start would fail: 6 errors"]),
        "{:#?}",
        ended.output
    );
}

#[test]
fn a_wrong_share_of_memory_is_told_once_by_its_flag() {
    let port = free_port().to_string();
    let flags = ["--port", &port, "--gpu-memory-utilization", "90"];
    let ended = examined(&flags, &[("FAKE_DOCTOR", "share")]);
    assert_eq!(ended.code, Some(1));
    assert!(has(&ended, &["error", "flags", "--gpu-memory-utilization"]));
    assert!(
        !has(&ended, &["CUDA_MEMORY_FRACTION"]),
        "{:#?}",
        ended.output
    );
}

#[test]
fn a_start_without_a_model_is_not_promised() {
    let port = free_port().to_string();
    let ended = examined(&["--port", &port, "--max-batch-size", "200"], &[]);
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    assert!(has(&ended, &["A start needs a model, and none was named"]));
    assert!(!has(&ended, &["start would work"]), "{:#?}", ended.output);
    let above = "--max-batch-size 200 is above --max-concurrent-requests 128";
    assert!(
        has(&ended, &["warning", "flags", above]),
        "{:#?}",
        ended.output
    );
}

#[test]
fn a_log_level_that_a_start_would_refuse_is_a_finding() {
    let port = free_port().to_string();
    let ended = examined(&["--port", &port], &[("LOG_LEVEL", "verbose")]);
    assert_eq!(ended.code, Some(1));
    let said = [
        "error",
        "flags",
        "LOG_LEVEL `verbose` (set in the environment) must be",
    ];
    assert!(has(&ended, &said), "{:#?}", ended.output);
}

#[test]
fn a_doctor_of_the_server_that_fails_is_a_finding() {
    let port = free_port().to_string();
    let ended = examined(
        &["--port", &port, "--json-output"],
        &[("FAKE_DOCTOR", "fail")],
    );
    assert_eq!(ended.code, Some(1));
    assert!(has(
        &ended,
        &["\"error\"", "WORLD_SIZE must be a whole number"]
    ));
}

#[test]
fn what_the_router_refuses_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let port = free_port().to_string();
    let flags = ["--port", &port, "--model-id", folder];
    let ended = examined(&flags, &[("FAKE_CHECK", "refuse")]);
    assert_eq!(ended.code, Some(1));
    assert!(has(
        &ended,
        &["error", "flags", "`--reasoning-parser openai`"]
    ));
    assert!(!has(&ended, &["tokenizer"]), "{:#?}", ended.output);
    let ended = examined(&flags, &[("FAKE_CHECK", "refuse-model")]);
    assert_eq!(ended.code, Some(1));
    assert!(has(&ended, &["ok", "flags"]));
    assert!(has(&ended, &["error", "tokenizer", "does not fit"]));
    let asked = ended.starts_of("check")[1]["argv"].to_string();
    assert!(
        asked.contains(&format!(r#""--tokenizer-name","{folder}""#)),
        "{asked}"
    );
    let ended = examined(&flags, &[]);
    assert!(has(&ended, &["ok", "tokenizer"]), "{:#?}", ended.output);
}
