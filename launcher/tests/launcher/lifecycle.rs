//! Start, stop and signals of the real launcher.

use std::fs;

use crate::harness::{Launcher, free_port, is_gone};
use nix::sys::signal::Signal;
use serde_json::Value::Null;

#[test]
fn it_starts_everything_and_stops_the_router_before_the_shards() {
    let env = [
        ("HOSTNAME", "a1b2c3"),
        ("HUGGING_FACE_HUB_TOKEN", "hf_1"),
        ("LOG_LEVEL", "info"),
    ];
    let launcher = Launcher::start(&["--num-shard", "2"], &env);
    launcher.wait_until_ready();
    launcher.wait_for_line(&format!("API       http://127.0.0.1:{}", launcher.port));
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();

    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let events = ended.events();
    assert_eq!(events[0], "download start");
    let mut starts = events[1..3].to_vec();
    starts.sort();
    assert_eq!(starts, ["shard 0 start", "shard 1 start"]);
    assert_eq!(
        events[3..6],
        ["router start", "router SIGTERM", "router drained"]
    );
    let mut stops = events[6..].to_vec();
    stops.sort();
    assert_eq!(stops, ["shard 0 SIGTERM", "shard 1 SIGTERM"]);
    assert_eq!(
        ended
            .output
            .iter()
            .filter(|line| line.contains("Shard ready in"))
            .count(),
        2
    );
    ended.assert_nothing_left();

    let (first, second) = (
        &ended.start_of("shard 0")["env"],
        &ended.start_of("shard 1")["env"],
    );
    assert_eq!(
        (&first["RANK"], &first["WORLD_SIZE"]),
        (&"0".into(), &"2".into())
    );
    assert_eq!(
        (&second["RANK"], &second["WORLD_SIZE"]),
        (&"1".into(), &"2".into())
    );
    assert_eq!(
        (&first["HF_TOKEN"], &first["LOG_LEVEL"]),
        (&"hf_1".into(), &serde_json::Value::Null)
    );
    assert_eq!(ended.start_of("router")["env"]["COMPUTE_TYPE"], "2-cpu");
    let arguments = ended.start_of("router")["argv"].to_string();
    assert!(
        arguments.contains(r#""--tokenizer-name","/models/fake","--model-id","org/model""#),
        "{arguments}"
    );
}

#[test]
fn ranks_of_whoever_has_started_the_launcher_are_not_those_of_its_shards() {
    let env = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "host-0"),
        ("MASTER_PORT", "4321"),
    ];
    let launcher = Launcher::start(&[], &env);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    let port = free_port().to_string();
    let examined = Launcher::start_bare(&["doctor", "--port", &port], &env).end();
    let [download, shard, doctor] = [
        ended.start_of("download"),
        ended.start_of("shard 0"),
        examined.start_of("doctor"),
    ]
    .map(|start| &start["env"]);
    for (name, _) in env {
        assert_eq!((&download[name], &doctor[name]), (&Null, &Null), "{name}");
    }
    assert_eq!(
        (&shard["RANK"], &shard["WORLD_SIZE"]),
        (&"0".into(), &"1".into())
    );
    assert_eq!(
        (&shard["MASTER_ADDR"], &shard["MASTER_PORT"]),
        (&Null, &Null)
    );
}

#[test]
fn sockets_are_in_a_private_directory() {
    let launcher = Launcher::start(&[], &[]);
    launcher.wait_until_ready();
    let entry = launcher
        .journal()
        .into_iter()
        .find(|entry| entry["process"] == "shard 0")
        .unwrap();
    let arguments = entry["argv"].as_array().unwrap().clone();
    let position = arguments
        .iter()
        .position(|argument| argument == "--uds-path")
        .unwrap();
    let directory = std::path::Path::new(arguments[position + 1].as_str().unwrap())
        .parent()
        .unwrap();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(directory).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    assert!(arguments.contains(&"--socket-dir-owned".into()));
    launcher.signal(Signal::SIGINT);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0));
    ended.assert_nothing_left();
}

#[test]
fn a_given_socket_prefix_is_used_and_cleaned() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("s").display().to_string();
    let launcher = Launcher::start(
        &["--shard-uds-path", &prefix, "--max-shard-losses", "1"],
        &[],
    );
    launcher.wait_until_ready();
    assert!(folder.path().join("s-0").exists());
    launcher.signal_child("shard 0", Signal::SIGKILL);
    let ended = launcher.end();
    assert!(
        !ended.start_of("shard 0")["argv"]
            .to_string()
            .contains("--socket-dir-owned")
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn json_output_is_json_to_the_last_line() {
    let launcher = Launcher::start(&["--json-output", "--env", "--usage-stats", "off"], &[]);
    launcher.wait_for_line("Server ready");
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    let parse = |line: &String| serde_json::from_str::<serde_json::Value>(line).expect(line);
    let records: Vec<_> = ended.output.iter().map(parse).collect();
    let with = |text: &str| {
        records
            .iter()
            .find(|record| record["message"].as_str().unwrap().contains(text))
            .unwrap()
    };
    assert_eq!(with("Server ready")["level"], "INFO");
    assert!(
        with("Server ready")["url"]
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:")
    );
    assert!(
        with("Runtime environment")["message"]
            .as_str()
            .unwrap()
            .contains("GPUs: none")
    );
    with("--usage-stats has no effect");
    let forwarded = with("router speaks");
    assert_eq!(
        (&forwarded["level"], &forwarded["queue"]),
        (&"WARN".into(), &3.into())
    );
}

#[test]
fn a_signal_ends_the_download() {
    let launcher = Launcher::start(&[], &[("FAKE_DOWNLOAD", "hang")]);
    launcher.wait_for_event("download", "start");
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.events(), ["download start", "download SIGTERM"]);
}

#[test]
fn a_signal_ends_the_start_of_shards() {
    let launcher = Launcher::start(&[], &[("FAKE_SHARD_0", "not-serving")]);
    launcher.wait_for_event("shard 0", "start");
    launcher.signal(Signal::SIGINT);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(
        ended.events(),
        ["download start", "shard 0 start", "shard 0 SIGTERM"]
    );
    ended.assert_nothing_left();
}

#[test]
fn a_router_that_drains_too_long_is_killed() {
    let launcher = Launcher::start(&["-g", "0"], &[("FAKE_ROUTER", "slow-drain")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0));
    assert!(
        ended
            .output
            .iter()
            .any(|line| line.contains("router did not stop in time and was killed"))
    );
    assert_eq!(ended.events().last().unwrap(), "shard 0 SIGTERM");
    ended.assert_nothing_left();
}

#[test]
fn a_signal_to_the_group_and_to_its_first_process_is_one() {
    let launcher = Launcher::start(&[], &[]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    launcher.signal(Signal::SIGINT);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    ended.assert_nothing_left();
}

#[test]
fn a_second_signal_stops_at_once() {
    let launcher = Launcher::start(&[], &[("FAKE_ROUTER", "slow-drain")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    launcher.wait_for_event("router", "SIGTERM");
    launcher.insist();
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(ended.error().contains("second signal"));
    ended.assert_nothing_left();
}

#[test]
fn kill_9_leaves_no_process_and_no_socket() {
    let launcher = Launcher::start(&["--num-shard", "2"], &[]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGKILL);
    let ended = launcher.end();
    assert_eq!(ended.code, None);
    ended.assert_nothing_left();
}

#[test]
fn helpers_of_a_dead_shard_end_with_it() {
    let launcher = Launcher::start(&["--max-shard-losses", "1"], &[("FAKE_SHARD_0", "helper")]);
    launcher.wait_until_ready();
    let helper = launcher.helper();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(is_gone(helper));
}

#[test]
fn signals_that_ask_for_nothing_do_nothing_and_a_hangup_drains() {
    let launcher = Launcher::start(&[], &[]);
    launcher.wait_for_event("download", "start");
    launcher.signal(Signal::SIGUSR1);
    launcher.wait_until_ready();
    for signal in [
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGVTALRM,
        Signal::SIGPROF,
        Signal::SIGIO,
        Signal::SIGPWR,
    ] {
        launcher.signal(signal);
    }
    launcher.signal(Signal::SIGHUP);
    launcher.wait_for_line("Received SIGHUP, stopping");
    launcher.signal(Signal::SIGHUP);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    assert!(ended.events().contains(&"router drained".to_owned()));
}
