//! What only the router can judge is found before the model is downloaded or loaded.

use nix::sys::signal::{Signal, kill};

use crate::harness::{Ended, Env, Launcher, failed};

fn refused(env: Env<'_>) -> Ended {
    failed(&["--api-key", "hunter2"], env)
}

#[test]
fn a_refusal_ends_the_download() {
    let ended = refused(&[("FAKE_CHECK", "refuse"), ("FAKE_DOWNLOAD", "hang")]);
    let error = ended.error();
    assert!(
        error.ends_with(": `--reasoning-parser openai` does not fit"),
        "{error}"
    );
    assert!(ended.starts_of("shard 0").is_empty());
    let check = ended.start_of("check");
    assert_eq!(check["env"]["API_KEY"], "hunter2");
    let flags = check["argv"].to_string();
    assert!(
        !flags.contains("hunter2") && !flags.contains("--tokenizer-name"),
        "{flags}"
    );
}

#[test]
fn wrong_usage_of_the_router_is_one_line() {
    let ended = refused(&[("FAKE_CHECK", "usage"), ("FAKE_DOWNLOAD", "hang")]);
    let error = ended.error();
    assert!(
        error.ends_with(": invalid value 'x' for '--metrics-aliases'"),
        "{error}"
    );
    assert!(!ended.output.iter().any(|line| line.contains("--help")));
}

#[test]
fn a_refusal_of_the_model_ends_the_loading() {
    let ended = refused(&[
        ("FAKE_CHECK", "refuse-model"),
        ("FAKE_SHARD_0", "not-serving"),
    ]);
    assert!(ended.error().ends_with("does not fit"), "{}", ended.error());
    assert!(ended.starts_of("router").is_empty());
    let checks = ended.starts_of("check");
    let flags = checks[checks.len() - 1]["argv"].to_string();
    assert!(
        flags.contains(r#""--tokenizer-name","/models/fake""#),
        "{flags}"
    );
}

#[test]
fn a_start_waits_for_no_check() {
    let launcher = Launcher::start(&[], &[("FAKE_CHECK", "hang")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    ended.assert_nothing_left();
}

#[test]
fn a_signal_ends_the_check() {
    let env = [("FAKE_CHECK", "hang"), ("FAKE_DOWNLOAD", "hang")];
    let launcher = Launcher::start(&[], &env);
    let check = launcher.wait_for_event("check", "start");
    launcher.wait_for_event("download", "start");
    launcher.signal(Signal::SIGTERM);
    launcher.wait_until_gone(check);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
}

#[test]
fn a_check_that_is_killed_refuses_nothing() {
    let env = [("FAKE_CHECK", "killed"), ("FAKE_DOWNLOAD", "gate")];
    let launcher = Launcher::start(&[], &env);
    let download = launcher.wait_for_event("download", "waits");
    launcher.wait_for_line("the check of the router ended early: signal: 9");
    kill(download, Signal::SIGUSR1).unwrap();
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.end().code, Some(0));
}
