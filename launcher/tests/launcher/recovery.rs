//! A shard that is lost is started again with all the others, while the router goes on.

use nix::sys::signal::{Signal, kill};

use crate::harness::{Ended, Launcher};

/// The line of the launcher that tells of a loss.
fn loss(ended: &Ended) -> &str {
    let line = |line: &&String| line.contains("WARN") && line.contains("restarting all shards");
    ended.output.iter().find(line).unwrap()
}

#[test]
fn all_shards_start_again_on_the_same_sockets_and_the_router_goes_on() {
    let launcher = Launcher::start(&["--num-shard", "2"], &[]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 1", Signal::SIGUSR1);
    launcher.wait_for_lines("Shard ready in", 4);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();

    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let expected = "shard 1 stopped: exit code 1: RuntimeError: the device is lost; \
                    restarting all shards (loss 1 within 600 s)";
    assert!(loss(&ended).ends_with(expected), "{}", loss(&ended));
    assert_eq!(ended.starts_of("router").len(), 1);
    let (first, second) = (ended.starts_of("shard 0"), ended.starts_of("shard 1"));
    for starts in [&first, &second] {
        assert_eq!(starts.len(), 2);
        assert_eq!(starts[0]["argv"], starts[1]["argv"]);
    }
    let group =
        |start: &serde_json::Value| start["env"]["SHARD_GROUP"].as_str().unwrap().to_owned();
    assert_eq!(group(first[0]), group(second[0]));
    assert_eq!(group(first[1]), group(second[1]));
    assert_ne!(group(first[0]), group(first[1]));
    ended.assert_nothing_left();
}

const STANDBY: &[(&str, &str)] = &[("STANDBY_SHARDS", "true")];

#[test]
fn shards_on_standby_take_over_and_others_stand_by_for_the_next_loss() {
    let launcher = Launcher::start(&["--num-shard", "2"], STANDBY);
    launcher.wait_until_ready();
    let waiting = ["shard 0", "shard 1"].map(|shard| launcher.wait_for_event(shard, "standby"));
    launcher.signal_child("shard 1", Signal::SIGKILL);
    launcher.wait_for_lines("Shard ready in", 4);
    launcher.wait_for_events("shard 0", "standby", 2);
    launcher.wait_for_events("shard 1", "standby", 2);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();

    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let mut groups = Vec::new();
    for (shard, waited) in ["shard 0", "shard 1"].iter().zip(waiting) {
        let starts = ended.starts_of(shard);
        assert_eq!(starts.len(), 2);
        assert_eq!(starts[1]["pid"], waited.as_raw());
        let group = |start: &&serde_json::Value| start["env"]["SHARD_GROUP"].clone();
        groups.push(starts.iter().map(group).collect::<Vec<_>>());
    }
    assert_eq!(groups[0], groups[1]);
    assert_ne!(groups[0][0], groups[0][1]);
    ended.assert_nothing_left();
}

#[test]
fn a_shard_that_has_ended_on_standby_is_started_as_usual() {
    let launcher = Launcher::start(&["--num-shard", "2"], STANDBY);
    launcher.wait_until_ready();
    launcher.wait_for_event("shard 0", "standby");
    let waiting = launcher.wait_for_event("shard 1", "standby");
    kill(waiting, Signal::SIGKILL).unwrap();
    launcher.wait_until_gone(waiting);
    launcher.signal_child("shard 0", Signal::SIGKILL);
    launcher.wait_for_lines("Shard ready in", 4);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();

    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let told = |line: &String| line.contains("the standby process of shard 1");
    assert!(ended.output.iter().any(told), "{:#?}", ended.output);
    for shard in ["shard 0", "shard 1"] {
        let starts = ended.starts_of(shard);
        assert_eq!(starts[0]["argv"], starts[1]["argv"]);
    }
    ended.assert_nothing_left();
}

#[test]
fn a_shard_that_hangs_is_replaced() {
    let launcher = Launcher::start(&["--num-shard", "2"], &[]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGSTOP);
    launcher.wait_for_lines("Shard ready in", 4);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let expected = "shard 0 did not answer its health service for 5 s";
    assert!(loss(&ended).contains(expected), "{}", loss(&ended));
    assert_eq!(ended.starts_of("shard 1").len(), 2);
    ended.assert_nothing_left();
}

#[test]
fn a_shard_that_hangs_while_it_starts_is_found() {
    let launcher = Launcher::start(&["--num-shard", "2"], &[("FAKE_SHARD_1", "not-serving")]);
    launcher.wait_for_event("shard 1", "start");
    launcher.signal_child("shard 1", Signal::SIGSTOP);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1), "{:#?}", ended.output);
    let expected = "shard 1 could not start: a signal such as SIGSTOP stopped it, and it did not continue for 5 s";
    assert!(ended.error().ends_with(expected), "{}", ended.error());
    ended.assert_nothing_left();
}

#[test]
fn a_shard_that_hangs_while_it_starts_again_is_replaced() {
    let launcher = Launcher::start(&[], &[("FAKE_SHARD_0", "ok,not-serving,ok")]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    launcher.wait_for_events("shard 0", "start", 2);
    launcher.signal_child("shard 0", Signal::SIGSTOP);
    launcher.wait_for_lines("Shard ready in", 2);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    assert_eq!(ended.starts_of("shard 0").len(), 3);
    ended.assert_nothing_left();
}

#[test]
fn a_shard_that_says_it_does_not_serve_is_replaced() {
    let launcher = Launcher::start(&[], &[]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGUSR2);
    launcher.wait_for_lines("Shard ready in", 2);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let expected = "shard 0 reported NOT_SERVING for 5 s";
    assert!(loss(&ended).contains(expected), "{}", loss(&ended));
}

#[test]
fn a_shard_that_is_lost_while_it_starts_again_counts_until_the_server_gives_up() {
    let launcher = Launcher::start(&[], &[("FAKE_SHARD_0", "ok,die")]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    let expected = "shard 0 could not start: exit code 1: ValueError: weights are missing: lm_head.weight; \
                    that was loss 3 within 600 s, see --max-shard-losses";
    assert!(ended.error().ends_with(expected), "{}", ended.error());
    assert_eq!(ended.starts_of("shard 0").len(), 3);
    assert_eq!(ended.events().last().unwrap(), "router end of input");
    ended.assert_nothing_left();
}

#[test]
fn a_signal_while_shards_start_again_stops_everything() {
    let launcher = Launcher::start(&[], &[("FAKE_SHARD_0", "ok,not-serving")]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    launcher.wait_for_events("shard 0", "start", 2);
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    let events = ended.events();
    let last = ["router SIGTERM", "router drained", "shard 0 SIGTERM"];
    assert_eq!(events[events.len() - 3..], last);
    ended.assert_nothing_left();
}

#[test]
fn a_second_signal_while_shards_start_again_stops_at_once() {
    let env = [
        ("FAKE_SHARD_0", "ok,not-serving"),
        ("FAKE_ROUTER", "slow-drain"),
    ];
    let launcher = Launcher::start(&[], &env);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    launcher.wait_for_events("shard 0", "start", 2);
    launcher.signal(Signal::SIGTERM);
    launcher.wait_for_event("router", "SIGTERM");
    launcher.insist();
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert!(ended.error().contains("second signal"));
    ended.assert_nothing_left();
}

#[test]
fn shards_start_again_for_a_router_that_drains() {
    let launcher = Launcher::start(&[], &[("FAKE_ROUTER", "slow-drain")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    launcher.wait_for_event("router", "SIGTERM");
    launcher.signal_child("shard 0", Signal::SIGKILL);
    launcher.wait_for_lines("Shard ready in", 2);
    launcher.signal_child("router", Signal::SIGKILL);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    ended.assert_nothing_left();
}

#[test]
fn a_router_that_drains_is_told_that_no_shard_is_left() {
    let flags = ["--max-shard-losses", "1"];
    let launcher = Launcher::start(&flags, &[("FAKE_ROUTER", "slow-drain")]);
    launcher.wait_until_ready();
    launcher.signal(Signal::SIGTERM);
    launcher.wait_for_event("router", "SIGTERM");
    launcher.signal_child("shard 0", Signal::SIGKILL);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.events().last().unwrap(), "router end of input");
    ended.assert_nothing_left();
}

#[test]
fn the_death_of_the_router_ends_a_recovery() {
    let launcher = Launcher::start(&[], &[("FAKE_SHARD_0", "ok,not-serving")]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    launcher.wait_for_events("shard 0", "start", 2);
    launcher.signal_child("router", Signal::SIGUSR1);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(1));
    let expected = "router stopped: exit code 1: RuntimeError: the batcher is gone";
    assert!(ended.error().ends_with(expected), "{}", ended.error());
    ended.assert_nothing_left();
}
