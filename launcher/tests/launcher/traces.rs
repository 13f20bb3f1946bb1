//! What a collector of traces gets of a start and of losses.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use text_generation_mock_collector::{
    MockCollector, ResourceSpans, Span, StatusCode, Value, attributes, text,
};
use tokio::runtime::{Builder, Runtime};

use crate::harness::{Ended, Env, Launcher};

/// A collector, served by a thread of the runtime.
struct Collecting {
    _runtime: Runtime,
    collector: MockCollector,
    endpoint: String,
}

impl Collecting {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (collector, endpoint) = runtime.block_on(MockCollector::start()).unwrap();
        Self {
            _runtime: runtime,
            collector,
            endpoint,
        }
    }

    fn launcher(&self, flags: &[&str], env: Env<'_>) -> Launcher {
        let flags = [&["--otlp-endpoint", &self.endpoint], flags].concat();
        Launcher::start(&flags, env)
    }

    fn resources(&self) -> Vec<ResourceSpans> {
        self.collector.resources()
    }

    /// The only span of a name below `parent`, None for the first of a trace.
    fn only(&self, name: &str, parent: Option<&Span>) -> Span {
        let mut found = self.all(name, parent);
        assert_eq!(found.len(), 1, "{name}: {:#?}", self.collector.spans());
        found.remove(0)
    }

    /// The spans of a name below `parent`, in the order of their begin.
    fn all(&self, name: &str, parent: Option<&Span>) -> Vec<Span> {
        let parent = parent.map_or(&[][..], |parent| &parent.span_id);
        let mut found = self.collector.spans();
        found.retain(|span| span.name == name && span.parent_span_id == parent);
        found.sort_by_key(|span| span.start_time_unix_nano);
        found
    }
}

/// The status of a span, and why.
fn status(span: &Span) -> (StatusCode, String) {
    let status = span.status.clone().unwrap_or_default();
    (status.code(), status.message)
}

fn stop(launcher: Launcher) -> Ended {
    launcher.signal(Signal::SIGTERM);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{:#?}", ended.output);
    ended
}

/// `whole` has these parts, one after the other.
fn assert_parts(collecting: &Collecting, whole: &Span, names: &[&str]) {
    let mut reached = whole.start_time_unix_nano;
    for name in names {
        let part = collecting.only(name, Some(whole));
        assert_eq!(part.trace_id, whole.trace_id);
        assert!(reached <= part.start_time_unix_nano, "{name}");
        reached = part.end_time_unix_nano;
    }
    assert!(reached <= whole.end_time_unix_nano);
}

/// Each rank has been loaded within `whole`.
fn assert_loaded(collecting: &Collecting, whole: &Span) {
    let shards = collecting.all("load shard", Some(whole));
    let ranks: Vec<_> = shards
        .iter()
        .map(|span| attributes(&span.attributes)["tgi.rank"].clone())
        .collect();
    assert_eq!(ranks, [Value::IntValue(0), Value::IntValue(1)]);
    for span in shards {
        assert!(whole.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(span.end_time_unix_nano <= whole.end_time_unix_nano);
    }
}

#[test]
fn a_start_is_a_trace_and_each_restart_after_a_loss_is_one() {
    let collecting = Collecting::start();
    let launcher = collecting.launcher(&["--num-shard", "2"], &[]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 1", Signal::SIGUSR1);
    launcher.wait_for_lines("Shard ready in", 4);
    stop(launcher);

    let start = collecting.only("start", None);
    assert_eq!(status(&start), (StatusCode::Unset, String::new()));
    let said = attributes(&start.attributes);
    assert_eq!(said["tgi.model_id"], text("org/model"));
    assert_parts(&collecting, &start, &["download", "load", "warm up"]);
    assert_loaded(&collecting, &collecting.only("load", Some(&start)));

    let restart = collecting.only("restart", None);
    assert_eq!(status(&restart), (StatusCode::Unset, String::new()));
    assert_ne!(restart.trace_id, start.trace_id);
    assert!(start.end_time_unix_nano <= restart.start_time_unix_nano);
    let reason = "shard 1 stopped: exit code 1: RuntimeError: the device is lost";
    let said = attributes(&restart.attributes);
    assert_eq!(said["tgi.loss.reason"], text(reason));
    assert_parts(&collecting, &restart, &["end shards"]);
    assert_loaded(&collecting, &restart);

    let resource = collecting.resources()[0].resource.clone().unwrap();
    let name = text("text-generation-inference.launcher");
    assert_eq!(attributes(&resource.attributes)["service.name"], name);
}

#[test]
fn failures_are_told_with_their_reasons_before_the_end() {
    let collecting = Collecting::start();
    let flags = ["--max-shard-losses", "2", "--otlp-service-name", "here"];
    let launcher = collecting.launcher(&flags, &[("FAKE_SHARD_0", "ok,die")]);
    launcher.wait_until_ready();
    launcher.signal_child("shard 0", Signal::SIGKILL);
    assert_eq!(launcher.end().code, Some(1));

    let died =
        "shard 0 could not start: exit code 1: ValueError: weights are missing: lm_head.weight";
    let restarts = collecting.all("restart", None);
    let told: Vec<_> = restarts.iter().map(status).collect();
    let given_up = format!("{died}; that was loss 2 within 600 s, see --max-shard-losses");
    let expected = [died.to_owned(), given_up].map(|reason| (StatusCode::Error, reason));
    assert_eq!(told, expected);

    let resource = collecting.resources()[0].resource.clone().unwrap();
    assert_eq!(
        attributes(&resource.attributes)["service.name"],
        text("here")
    );
}

#[test]
fn a_start_that_fails_is_told() {
    let collecting = Collecting::start();
    let launcher = collecting.launcher(&[], &[("FAKE_SHARD_0", "die")]);
    assert_eq!(launcher.end().code, Some(1));
    let start = collecting.only("start", None);
    let load = collecting.only("load", Some(&start));
    for span in [start, load] {
        let (code, reason) = status(&span);
        assert_eq!(code, StatusCode::Error);
        assert!(reason.starts_with("shard 0 could not start"), "{reason}");
    }
}

#[test]
fn the_environment_says_what_is_traced() {
    let collecting = Collecting::start();
    let launcher = collecting.launcher(&[], &[("OTEL_TRACES_SAMPLER", "always_off")]);
    launcher.wait_until_ready();
    stop(launcher);
    assert_eq!(collecting.resources(), []);
}

#[test]
fn a_collector_that_is_away_or_never_answers_holds_nothing_up() {
    // The listener's backlog takes the connection, and nobody reads it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    for endpoint in [&silent, "http://127.0.0.1:1"] {
        let patient = [("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")];
        let launcher = Launcher::start(&["--otlp-endpoint", endpoint], &patient);
        launcher.wait_until_ready();
        let told_to_stop = Instant::now();
        let ended = stop(launcher);
        assert!(told_to_stop.elapsed() < Duration::from_secs(20));
        let router = ended.start_of("router")["argv"].to_string();
        assert!(router.contains(endpoint), "{router}");
    }
}

#[test]
fn the_log_says_that_spans_are_lost() {
    let launcher = Launcher::start(&["--otlp-endpoint=http://127.0.0.1:1"], &[]);
    launcher.wait_until_ready();
    let ended = stop(launcher);
    let told = ended.output.iter().filter(|line| {
        line.contains("traces are dropped: the collector of `--otlp-endpoint` takes none")
    });
    assert_eq!(told.count(), 1, "{:#?}", ended.output);
}
