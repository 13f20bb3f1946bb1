//! Several launchers, each with an address of its own on this host, are one server.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Ended, Launcher, free_port};

const ADDRESSES: [&str; 3] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
/// All nodes end within this time after something was lost.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Two or more launchers that look for each other.
struct Nodes {
    launchers: Vec<Launcher>,
    port: u16,
    model: TempDir,
}

impl Nodes {
    /// Node `r` is started with the flags at place `r` too.
    fn start(flags: &[&[&str]]) -> Self {
        let mut nodes = Self {
            launchers: Vec::new(),
            port: free_port(),
            model: tempfile::tempdir().unwrap(),
        };
        for (rank, own) in flags.iter().enumerate() {
            let launcher = nodes.node(rank, flags.len(), own);
            nodes.launchers.push(launcher);
        }
        nodes
    }

    fn node(&self, rank: usize, count: usize, flags: &[&str]) -> Launcher {
        let (rank_text, count, port) = (rank.to_string(), count.to_string(), self.port.to_string());
        let mut all = vec!["--nnodes", &count, "--node-rank", &rank_text];
        all.extend(["--master-addr", ADDRESSES[0], "--master-port", &port]);
        all.extend(["--local-addr", ADDRESSES[rank], "--num-shard", "1"]);
        all.extend(flags);
        let model = self.model.path().display().to_string();
        // Where there is no router, none is asked.
        let check = if rank == 0 { "" } else { "refuse" };
        Launcher::start(&all, &[("FAKE_MODEL", &model), ("FAKE_CHECK", check)])
    }

    /// Waits for the end of all.
    fn end(self) -> Vec<Ended> {
        self.launchers.into_iter().map(Launcher::end).collect()
    }
}

const PLAIN: &[&str] = &["--cluster-insecure"];

fn env<'a>(start: &'a Value, name: &str) -> &'a str {
    start["env"][name].as_str().unwrap_or_default()
}

#[test]
fn nodes_are_one_group_and_a_stop_of_any_stops_all_in_order() {
    let nodes = Nodes::start(&[PLAIN, PLAIN, PLAIN]);
    nodes.launchers[0].wait_until_ready();
    nodes.launchers[1].signal(Signal::SIGTERM);
    let port = nodes.port;
    let ended = nodes.end();

    let mut groups = Vec::new();
    for (rank, node) in ended.iter().enumerate() {
        assert_eq!(node.code, Some(0), "{:#?}", node.output);
        let start = node.start_of(&format!("shard {rank}"));
        let meeting = (port + 1).to_string();
        for (name, value) in [
            ("RANK", rank.to_string().as_str()),
            ("WORLD_SIZE", "3"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("MASTER_ADDR", ADDRESSES[0]),
            ("MASTER_PORT", &meeting),
        ] {
            assert_eq!(env(start, name), value, "{name} of {rank}");
        }
        groups.push(env(start, "SHARD_GROUP").to_owned());
        node.assert_nothing_left();
    }
    assert!(!groups[0].is_empty() && groups.iter().all(|group| *group == groups[0]));
    let words = |node: usize| {
        let start = ended[node].start_of(&format!("shard {node}"));
        start["argv"].to_string()
    };
    for node in [1, 2] {
        let address = format!("{}:{}", ADDRESSES[node], usize::from(port) + 1 + node);
        assert!(words(node).contains(&format!(r#""--listen","{address}","--cluster-insecure""#)));
        assert!(
            words(0).contains(&format!(r#""--remote-url","http://{address}""#)),
            "{}",
            words(0)
        );
    }
    let events = ended[0].events();
    let order = ["router SIGTERM", "router drained", "shard 0 SIGTERM"];
    assert!(events.ends_with(&order.map(str::to_owned)), "{events:?}");
    assert!(ended.iter().all(|node| node.starts_of("router").len() <= 1));
    assert!(ended[1].starts_of("router").is_empty());
}

/// What is done to node 1 of two that serve, and what node 0 says of it, or node 0 to itself.
#[test]
fn whatever_is_lost_ends_all_nodes_in_time_and_is_named() {
    type Harm = fn(&[Launcher]);
    let cases: [(Harm, usize, &str); 4] = [
        (
            |nodes| nodes[1].signal(Signal::SIGKILL),
            0,
            "node 1 (127.0.0.3) is lost: its launcher closed the connection unexpectedly",
        ),
        (
            |nodes| nodes[0].signal(Signal::SIGKILL),
            1,
            "node 0 (127.0.0.2) is lost: its launcher closed the connection unexpectedly",
        ),
        (
            |nodes| nodes[1].signal_child("shard 1", Signal::SIGKILL),
            0,
            "node 1 (127.0.0.3) ends: shard 1 stopped: signal 9 (SIGKILL)",
        ),
        (
            |nodes| nodes[0].signal_child("shard 0", Signal::SIGSTOP),
            1,
            "node 0 (127.0.0.2) ends: shard 0 did not answer its health service for 5 s",
        ),
    ];
    std::thread::scope(|scope| {
        for (harm, witness, said) in cases {
            scope.spawn(move || {
                let nodes = Nodes::start(&[PLAIN, PLAIN]);
                nodes.launchers[0].wait_until_ready();
                harm(&nodes.launchers);
                let began = Instant::now();
                let ended = nodes.end();
                assert!(began.elapsed() < END_LIMIT, "{:?}: {said}", began.elapsed());
                assert!(
                    ended[witness].error().contains(said),
                    "{}",
                    ended[witness].error()
                );
                assert!(ended.iter().all(|node| node.code != Some(0)));
            });
        }
    });
}

#[test]
fn a_node_that_would_serve_something_else_is_refused_and_told_why() {
    let nodes = Nodes::start(&[
        &["--cluster-insecure", "--shard-startup-timeout", "3"],
        &["--cluster-insecure", "--dtype", "float16"],
    ]);
    let ended = nodes.end();
    let said = "--dtype is `float16` there and not given on node 0";
    assert!(ended[1].error().contains(said), "{}", ended[1].error());
    let refused = ended[0].output.iter().any(|line| line.contains(said));
    assert!(refused, "{:#?}", ended[0].output);
    let missing = "node 1 did not connect within 3 s";
    assert!(ended[0].error().contains(missing), "{}", ended[0].error());
    assert!(ended.iter().all(|node| node.code == Some(1)));
}

#[test]
fn a_node_that_is_alone_says_whom_it_misses() {
    let nodes = Nodes::start(&[]);
    let alone = nodes.node(
        1,
        2,
        &["--cluster-insecure", "--shard-startup-timeout", "1"],
    );
    let ended = alone.end();
    let said = format!(
        "cannot connect to node 0 at 127.0.0.2:{} within 1 s",
        nodes.port
    );
    assert!(ended.error().contains(&said), "{}", ended.error());
}
