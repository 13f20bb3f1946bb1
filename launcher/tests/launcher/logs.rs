//! What children say reaches the log whole; what is secret does not.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::harness::{Env, Launcher};
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn long_and_many_lines_survive() {
    let launcher = Launcher::start(&["--json-output"], &[("FAKE_SHARD_0", "noise")]);
    launcher.wait_for_line("Server ready");
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    let records: Vec<Value> = ended
        .output
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();

    let long = records
        .iter()
        .find(|record| record["number"] == "long")
        .unwrap();
    assert_eq!(
        (long["message"].as_str().unwrap(), &long["rank"]),
        ("x".repeat(1_000_000).as_str(), &0.into())
    );
    let plain = records
        .iter()
        .find(|record| record["message"].as_str().unwrap().starts_with("yy"))
        .unwrap();
    assert_eq!(
        (plain["message"].as_str().unwrap().len(), &plain["level"]),
        (1_000_000, &"INFO".into())
    );
    assert!(
        records
            .iter()
            .any(|record| record["message"] == "not utf-8 \u{fffd}")
    );

    let many = records.iter().filter(|record| record["message"] == "many");
    assert!(
        many.map(|record| record["number"].as_u64().unwrap())
            .eq(0..5000)
    );
    let errors = records
        .iter()
        .filter(|record| record["level"] == "WARN" && record["rank"] == 0);
    let expected = (0..5000).map(|number| format!("error text {number}"));
    assert!(
        errors
            .map(|record| record["message"].as_str().unwrap().to_owned())
            .eq(expected)
    );
}

#[test]
fn text_lines_carry_level_and_rank() {
    let launcher = Launcher::start(&["--num-shard", "2"], &[("FAKE_SHARD_1", "noise")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    let has = |line: &str| ended.output.iter().any(|output| output.ends_with(line));
    assert!(has("  INFO fake: many number=4999 rank=1"));
    assert!(has("  WARN text_generation_server: error text 4999 rank=1"));
    assert!(has("  WARN fake: router speaks queue=3"));
}

#[test]
fn log_level_holds_for_children() {
    let launcher = Launcher::start(&[], &[("LOG_LEVEL", "warn"), ("FAKE_SHARD_0", "noise")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    // It tells the launcher more than the launcher prints.
    assert!(
        ended.start_of("shard 0")["argv"]
            .to_string()
            .contains(r#""--logger-level","INFO""#)
    );
    assert_eq!(ended.start_of("router")["env"]["LOG_LEVEL"], "warn");
    assert!(!ended.output.iter().any(|line| line.contains("INFO")));
    assert!(
        ended
            .output
            .iter()
            .any(|line| line.contains("error text 0"))
    );
}

#[test]
fn the_api_key_reaches_the_router_and_nothing_else() {
    let ways: [(&[&str], Env<'_>); 2] = [
        (&["--api-key", "hunter2"], &[]),
        (&[], &[("API_KEY", "hunter2")]),
    ];
    for (flags, env) in ways {
        let level = [("LOG_LEVEL", "trace")];
        let launcher = Launcher::start(&[flags, &["--env"]].concat(), &[env, &level].concat());
        launcher.wait_until_ready();
        launcher.signal(Signal::SIGTERM);
        let ended = launcher.end();
        assert_eq!(ended.start_of("router")["env"]["API_KEY"], "hunter2");
        assert!(
            ended
                .journal
                .iter()
                .all(|entry| !entry["argv"].to_string().contains("hunter2"))
        );
        for process in ["download", "shard 0"] {
            assert_eq!(ended.start_of(process)["env"]["API_KEY"], Value::Null);
        }
        assert!(!ended.output.iter().any(|line| line.contains("hunter2")));
        assert!(
            ended
                .output
                .iter()
                .any(|line| line.contains("Authorization: Bearer $API_KEY"))
        );
    }
}

#[test]
fn a_reader_that_does_not_read_blocks_nothing() {
    let (unread, stdout) = std::io::pipe().unwrap();
    let env = [("FAKE_SHARD_0", "flood")];
    let launcher = Launcher::start_onto(&[], &env, stdout.into(), std::process::Stdio::null());
    // The shard has written far more than pipes and queue hold, and the start went on.
    launcher.wait_for_event("router", "start");
    launcher.signal(Signal::SIGTERM);
    launcher.wait_for_event("router", "drained");
    launcher.wait_for_event("shard 0", "SIGTERM");
    let lines: Vec<String> = BufReader::new(unread).lines().map(Result::unwrap).collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("log lines were lost"))
    );
    assert_eq!(launcher.end().code, Some(0));
}

#[test]
fn outputs_that_fail_change_nothing() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let launcher = Launcher::start_onto(&[], &[], full().into(), full().into());
    launcher.wait_for_event("router", "start");
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(
        ended.events()[3..],
        ["router SIGTERM", "router drained", "shard 0 SIGTERM"]
    );
    ended.assert_nothing_left();
}
