//! What goes wrong is one clear line and an exit code, and nothing is left running.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;

use crate::harness::{Env, Launcher, failed, free_port};
use nix::sys::signal::{Signal, kill};

#[test]
fn a_failed_download_tells_why() {
    let ended = failed(&[], &[("FAKE_DOWNLOAD", "fail")]);
    assert!(
        ended
            .error()
            .ends_with("cannot prepare model `org/model`: no model named like this on the hub")
    );
    let said = ended
        .output
        .iter()
        .filter(|line| line.contains("no model named like this"));
    assert_eq!(said.count(), 1, "{:#?}", ended.output);
    assert_eq!(ended.events(), ["download start"]);
}

#[test]
fn a_download_without_a_folder_is_an_error() {
    let ended = failed(&[], &[("FAKE_DOWNLOAD", "silent")]);
    assert!(ended.error().contains("without naming the model's folder"));
}

#[test]
fn a_shard_that_dies_at_start_tells_why() {
    let ended = failed(
        &["--num-shard", "2"],
        &[("FAKE_SHARD_1", "die"), ("FAKE_SHARD_0", "not-serving")],
    );
    let expected =
        "shard 1 could not start: exit code 1: ValueError: weights are missing: lm_head.weight";
    assert!(ended.error().ends_with(expected), "{}", ended.error());
    assert!(
        ended
            .output
            .iter()
            .any(|line| line.contains("WARN") && line.contains("UserWarning"))
    );
}

#[test]
fn a_reason_is_said_once() {
    let env = [("FAKE_SHARD_0", "refuse"), ("FAKE_SHARD_1", "refuse")];
    let ended = failed(&["--num-shard", "2"], &env);
    let reason = "exit code 1: the model is of no known kind";
    assert!(ended.error().ends_with(reason), "{}", ended.error());
    let said = ended
        .output
        .iter()
        .filter(|line| line.contains("no known kind"));
    assert_eq!(said.count(), 1, "{:#?}", ended.output);
}

#[test]
fn a_shard_that_never_serves_times_out() {
    let ended = failed(
        &["--shard-startup-timeout", "1"],
        &[("FAKE_SHARD_0", "not-serving")],
    );
    assert!(
        ended
            .error()
            .contains("shard 0 was not ready within 1 s; if it only needs more time, raise")
    );
}

#[test]
fn a_router_that_dies_at_start_tells_why() {
    let ended = failed(&[], &[("FAKE_ROUTER", "die")]);
    assert!(
        ended
            .error()
            .ends_with("router could not start: exit code 1: unable to load tokenizer")
    );
}

#[test]
fn the_last_loss_of_a_shard_stops_everything() {
    let flags = ["--num-shard", "2", "--max-shard-losses", "1"];
    let launcher = Launcher::start(&flags, &[]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 1", Signal::SIGUSR1);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .error()
            .ends_with("shard 1 stopped: exit code 1: RuntimeError: the device is lost")
    );
    let events = ended.events();
    assert_eq!(
        events[events.len() - 3..],
        ["router start", "router end of input", "shard 0 SIGTERM"]
    );
    ended.assert_nothing_left();
}

#[test]
fn a_killed_shard_is_reported_with_its_signal() {
    let launcher = Launcher::start(&["--max-shard-losses", "1"], &[]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .error()
            .contains("shard 0 stopped: signal 9 (SIGKILL)"),
        "{}",
        ended.error()
    );
    ended.assert_nothing_left();
}

#[test]
fn the_death_of_the_router_stops_the_shards() {
    let launcher = Launcher::start(&[], &[]);
    launcher.wait_until_ready();
    launcher.signal_child("router", Signal::SIGUSR1);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .error()
            .ends_with("router stopped: exit code 1: RuntimeError: the batcher is gone")
    );
    assert_eq!(ended.events().last().unwrap(), "shard 0 SIGTERM");
    ended.assert_nothing_left();
}

#[test]
fn a_bad_place_for_sockets_is_found_before_the_download() {
    let ended = failed(&["--shard-uds-path", "/nonexistent/shard"], &[]);
    let error = ended.error();
    assert!(error.contains("cannot use /nonexistent for the shards' sockets"));
    assert!(ended.events().is_empty(), "{:?}", ended.events());
}

#[test]
fn two_servers_do_not_share_a_prefix_of_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("s").display().to_string();
    let flags = ["--shard-uds-path", &prefix];
    // The first one has no socket yet when the second comes.
    let first = Launcher::start(&flags, &[("FAKE_DOWNLOAD", "gate")]);
    let download = first.wait_for_event("download", "waits");
    let second = failed(&flags, &[]);
    let expected = "another server has its sockets there; give another --shard-uds-path";
    assert!(second.error().contains(expected), "{}", second.error());
    assert!(second.events().is_empty(), "{:?}", second.events());
    kill(download, Signal::SIGUSR1).unwrap();
    first.wait_until_ready();
    failed(&flags, &[]);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end().code, Some(0));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_port_in_use_is_found_before_the_download() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // The last of two values counts, so this replaces the free port of the harness.
    let ended = failed(&["--port", &port], &[]);
    assert!(
        ended
            .error()
            .contains(&format!("cannot listen on 127.0.0.1:{port}"))
    );
    assert!(ended.journal.is_empty());
}

#[test]
fn a_server_that_takes_the_port_is_not_ours() {
    let launcher = Launcher::start(&[], &[("FAKE_DOWNLOAD", "gate")]);
    let download = launcher.wait_for_event("download", "waits");
    // After the launcher's own check, and before its router comes.
    let impostor = TcpListener::bind(("127.0.0.1", launcher.port)).unwrap();
    thread::spawn(move || {
        for mut client in impostor.incoming().map(Result::unwrap) {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    kill(download, Signal::SIGUSR1).unwrap();
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .error()
            .contains("router could not start: exit code 1: cannot listen"),
        "{}",
        ended.error()
    );
    assert!(!ended.output.iter().any(|line| line.contains("curl http")));
    ended.assert_nothing_left();
}

#[test]
fn a_missing_command_is_named() {
    // The build has no other command beside the launcher. All tests with fakes show that those are found there.
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_text-generation-launcher"));
    launcher.args(["--model-id", "org/model", "--port"]);
    launcher.arg(free_port().to_string());
    let output = launcher.env("PATH", "/nonexistent").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("cannot run `text-generation-server`")
            && text.contains("install it beside text-generation-launcher"),
        "{text}"
    );
}

#[test]
fn arguments_that_cannot_work_start_nothing() {
    let cases: [(&[&str], Env<'_>, &str); 5] = [
        (
            &[],
            &[("NGROK_EDGE", "a")],
            "--ngrok-edge (or NGROK_EDGE) is not supported yet",
        ),
        (
            &["--sharded", "true"],
            &[],
            "set CUDA_VISIBLE_DEVICES, or give the number of shards with --num-shard",
        ),
        (
            &[],
            &[("LOG_LEVEL", "verbose")],
            "LOG_LEVEL `verbose` (set in the environment) must be",
        ),
        (
            &["--prometheus-port", "0"],
            &[],
            "--prometheus-port must not be 0",
        ),
        (
            &["--otlp-endpoint", "collector:4317"],
            &[],
            "--otlp-endpoint must be an address such as http://localhost:4317",
        ),
    ];
    for (flags, env, expected) in cases {
        let ended = failed(flags, env);
        assert!(ended.error().contains(expected), "{}", ended.error());
        assert!(ended.journal.is_empty());
    }
}

#[test]
fn a_model_must_be_named() {
    let ended = Launcher::start_bare(&[], &[]).end();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .error()
            .contains("no model is given: name one with --model-id")
    );
}

#[test]
fn flags_that_do_not_parse_exit_with_2() {
    for flags in [
        ["--no-such-flag", "1"],
        ["--max-best-of", "many"],
        ["--dtype", "int3"],
    ] {
        let ended = Launcher::start(&flags, &[]).end();
        assert_eq!(ended.code, Some(2), "{:#?}", ended.output);
        assert!(ended.output[0].contains(flags[0]));
    }
}

#[test]
fn too_little_virtual_memory_is_one_line() {
    let script = r#"ulimit -v 500000; exec "$0" --model-id org/model"#;
    let launcher = env!("CARGO_BIN_EXE_text-generation-launcher");
    let output = Command::new("sh")
        .args(["-c", script, launcher])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("limited to 488 MiB (`ulimit -v`)"), "{said}");
}
