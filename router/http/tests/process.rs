//! The command as a process: exit codes, signals, standard input, logs.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use common::{alphabet, argv, model_folder};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use text_generation_mock_shard::{MockConfig, MockShard};

const ARGV: &str = "ROUTER_ARGV";
/// Those that run when a router is told to stop.
const STREAMS: usize = 50;

/// Not a test: the router process of the tests below, which run this binary again.
#[test]
#[ignore = "is the router process of the other tests"]
fn as_router() {
    let argv = std::env::var(ARGV).expect("the arguments");
    let argv: Vec<String> = serde_json::from_str(&argv).expect("a list");
    let code = text_generation_http::main_from_args(argv, |folder: &Path| {
        Err(format!("no converter for\n{}", folder.display()))
    });
    std::process::exit(code);
}

/// With the soft limit of open files that most systems set.
fn router(argv: &[String]) -> Command {
    limited_router("ulimit -S -n 1024", argv)
}

fn limited_router(limit: &str, argv: &[String]) -> Command {
    let mut command = Command::new("sh");
    let program = std::env::current_exe().expect("this program");
    command
        .args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")])
        .arg(program)
        .args(["--exact", "as_router", "--ignored", "--nocapture"])
        .env(ARGV, json!(argv).to_string())
        .env_remove("LOG_LEVEL")
        .env_remove("LISTEN_PID")
        .env("API_KEY", "hunter2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A router that serves, with what it has logged so far.
struct Serving {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    log: Vec<Value>,
    url: String,
}

impl Serving {
    fn start(argv: &[String]) -> Self {
        Self::spawn(router(argv))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("a process");
        let stdout = child.stdout.take().expect("a pipe");
        let mut serving = Self {
            child,
            output: BufReader::new(stdout),
            log: Vec::new(),
            url: String::new(),
        };
        let listening = serving.read_until("listening on ");
        serving.url = listening.replace("listening on ", "");
        serving.read_until("Connected");
        serving
    }

    /// Reads records until one's message starts with `start`.
    fn read_until(&mut self, start: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("a line") > 0 {
            // The test harness writes lines of its own.
            if let Ok(record) = serde_json::from_str::<Value>(&line) {
                let message = record["message"].as_str().unwrap_or_default().to_owned();
                self.log.push(record);
                if message.starts_with(start) {
                    return message;
                }
            }
            line.clear();
        }
        panic!("no record {start:?} in {:?}", self.log);
    }

    fn wait(mut self) -> (ExitStatus, String) {
        let mut errors = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut errors).expect("text");
        (self.child.wait().expect("an exit status"), errors)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("a signal");
    }
}

/// Exit code and standard error of a router that does not start.
async fn fails(argv: &[String]) -> (Option<i32>, String) {
    ends(router(argv)).await
}

async fn ends(router: Command) -> (Option<i32>, String) {
    let mut router = tokio::process::Command::from(router);
    let output = tokio::time::timeout(Duration::from_secs(60), router.kill_on_drop(true).output());
    let output = output.await.expect("a router that ends by itself");
    let output = output.expect("an exit status");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

/// A file of the model that keeps its reader busy, as one might that was made for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_is_busy_while_it_starts_ends_with_a_signal_and_with_its_parent() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    for signal in [Some(Signal::SIGTERM), Some(Signal::SIGINT), None] {
        let folder = model_folder();
        let path = folder.path().join("chat_template.jinja");
        let access = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&path, access).expect("a pipe with a name");
        let argv = argv(&mock.path(), folder.path(), &["--exit-on-stdin-eof"]);
        let mut child = router(&argv).spawn().expect("a process");
        // Opens when the router has opened it, which then reads for ever.
        let _busy = std::fs::File::options().write(true).open(&path);
        let stdin = child.stdin.take();
        if let Some(signal) = signal {
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("a signal");
        }
        // Dropped, and so closed, where nothing else is to end the router.
        let _open = signal.and(stdin);
        let started = std::time::Instant::now();
        let status = child.wait().expect("an exit status");
        assert_eq!(status.code(), Some(0), "{signal:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{signal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_lets_streams_finish_and_ends_with_zero() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mock = MockShard::start(alphabet()).expect("a mock shard");
        let folder = model_folder();
        let mut router = Serving::start(&argv(&mock.path(), folder.path(), &["--json-output"]));
        mock.hold();
        let body = json!({"inputs": "Hi!"});
        let request = reqwest::Client::new().post(format!("{}/generate_stream", router.url));
        let request = request
            .bearer_auth("hunter2")
            .header("x-request-id", "id-7")
            .json(&body);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let request = request.try_clone().expect("a body that can be sent again");
            streams.push(request.send().await.expect("an answer"));
        }
        router.signal(signal);
        router.read_until("stopping");
        mock.resume();
        for stream in streams {
            let text = stream.text().await.expect("the whole stream");
            assert!(text.contains(r#""generated_text":"abc""#), "{text}");
        }

        router.read_until("Success");
        let success = router.log.last().expect("a record");
        assert_eq!(success["level"], "INFO");
        assert_eq!(success["request_id"], "id-7");
        assert_eq!(success["generated_tokens"], 4);
        assert_eq!(success["target"], "text_generation_http::timings");
        assert!(success["timestamp"].is_string());
        assert!(!format!("{:?}", router.log).contains("hunter2"));
        let (status, errors) = router.wait();
        assert_eq!(status.code(), Some(0), "{errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cluster_sets_and_signals_that_ask_for_nothing_end_no_router() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let mut command = router(&argv(&mock.path(), folder.path(), &["--json-output"]));
    command
        .env("PROMETHEUS_PORT", "tcp://10.0.0.9:80")
        .env("VALIDATION_WORKERS", "")
        .env("OPEN_METRICS", "1");
    let router = Serving::spawn(command);
    let warned = |record: &&Value| record["message"].to_string().contains("PROMETHEUS_PORT=");
    assert_eq!(router.log.iter().filter(warned).count(), 1);
    for signal in [
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGPROF,
    ] {
        router.signal(signal);
    }
    let metrics = reqwest::get(format!("{}/metrics", router.url)).await;
    assert_eq!(metrics.expect("an answer").status(), 200);
    router.signal(Signal::SIGHUP);
    let (status, errors) = router.wait();
    assert!(status.success(), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_about_a_variable_names_it() {
    let folder = model_folder();
    let with = |name: &str, value: &str| {
        let flags = &["--max-total-tokens=8"];
        let mut command = router(&argv(Path::new("none"), folder.path(), flags));
        command.env(name, value);
        ends(command)
    };
    let (code, errors) = with("MAX_INPUT_TOKENS", "8").await;
    assert_eq!(code, Some(1));
    assert!(
        errors.ends_with("(set in the environment: MAX_INPUT_TOKENS)\n"),
        "{errors}"
    );
    let (code, errors) = with("OPEN_METRICS", "perhaps").await;
    assert_eq!(code, Some(2));
    assert!(
        errors.contains("in the environment by OPEN_METRICS"),
        "{errors}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_cannot_be_is_told_once() {
    for (recurrent, caching, told) in [
        (true, "true", 1),
        (true, "per-key", 1),
        (true, "false", 0),
        (false, "true", 0),
    ] {
        let model = MockConfig {
            recurrent,
            ..alphabet()
        };
        let mock = MockShard::start(model).expect("a mock shard");
        let folder = model_folder();
        let caching = format!("--prefix-caching={caching}");
        let flags = ["--json-output", &caching];
        let router = Serving::start(&argv(&mock.path(), folder.path(), &flags));
        let messages = router.log.iter().map(|record| &record["message"]);
        let of_caching = messages.filter(|text| text.to_string().contains("nothing is cached"));
        assert_eq!(of_caching.count(), told, "{recurrent} {caching}");
        router.signal(Signal::SIGTERM);
        assert_eq!(router.wait().0.code(), Some(0));
    }
}

/// A pipe holds 64 KiB, some 160 lines; this test reads no more of it once the server is up.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_changes_nothing() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let router = Serving::start(&argv(&mock.path(), folder.path(), &["--json-output"]));
    let client = reqwest::Client::new();
    let ask = async || {
        let request = client.post(format!("{}/generate", router.url));
        let request = request
            .bearer_auth("hunter2")
            .json(&json!({"inputs": "Hi!"}));
        let answer = request.timeout(Duration::from_secs(30)).send().await;
        assert_eq!(answer.expect("an answer").status(), 200);
    };
    for _ in 0..40 {
        futures::future::join_all((0..20).map(|_| ask())).await;
    }
    router.signal(Signal::SIGTERM);
    let (status, errors) = router.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_files_are_limited_by_the_hard_limit_alone() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let router = Serving::start(&argv(&mock.path(), folder.path(), &["--json-output"]));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", router.child.id()));
    let limits = limits.expect("the limits of the process");
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let values: Vec<&str> = files.expect("a limit").split_whitespace().collect();
    assert_eq!(values[3], values[4], "{values:?}");
    router.signal(Signal::SIGTERM);
    assert_eq!(router.wait().0.code(), Some(0));
}

/// Idle connections give their files to those that ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_files_to_open_still_answers() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let argv = argv(&mock.path(), folder.path(), &["--json-output"]);
    let router = Serving::spawn(limited_router("ulimit -n 60", &argv));
    let address = router.url.trim_start_matches("http://");
    let mut idle = Vec::new();
    for _ in 0..100 {
        let connection = tokio::net::TcpStream::connect(address).await;
        idle.push(connection.expect("a connection"));
    }
    let live = reqwest::Client::new().get(format!("{}/live", router.url));
    let answer = live.timeout(Duration::from_secs(30)).send().await;
    assert_eq!(answer.expect("an answer").status(), 200);
    router.signal(Signal::SIGTERM);
    assert_eq!(router.wait().0.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let mut router = Serving::start(&argv(&mock.path(), folder.path(), &["--json-output"]));
    mock.hold();
    let request = reqwest::Client::new().post(format!("{}/generate_stream", router.url));
    let request = request
        .bearer_auth("hunter2")
        .json(&json!({"inputs": "Hi!"}));
    let stream = request.send().await.expect("an answer");
    router.signal(Signal::SIGTERM);
    router.read_until("stopping");
    router.signal(Signal::SIGTERM);
    let (status, errors) = router.wait();
    assert_eq!(status.code(), Some(1));
    assert!(errors.contains("second signal"), "{errors}");
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_port_answers_for_probes_from_before_the_start_until_the_end() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let inherited = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = inherited.local_addr().expect("an address").port();
    fcntl(&inherited, FcntlArg::F_SETFD(FdFlag::empty())).expect("a file that stays open");
    let named = port.to_string();
    let flags = [
        "--json-output",
        "--prometheus-port",
        &named,
        "--drain-delay=60",
    ];
    let mut command = router(&argv(&mock.path(), folder.path(), &flags));
    command
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDS_FIRST_FD", inherited.as_raw_fd().to_string());
    let url = format!("http://127.0.0.1:{port}");
    let http = reqwest::Client::new();
    let early = tokio::spawn(http.get(format!("{url}/metrics")).send());
    let router = Serving::spawn(command);
    drop(inherited);
    let early = early.await.expect("a task").expect("an answer");
    assert_eq!(
        early.status(),
        200,
        "nobody is refused, and no key is asked for"
    );
    let status = async |path: &str| {
        let response = http.get(format!("{url}{path}")).send().await;
        response.expect("an answer").status()
    };
    assert_eq!(status("/ready").await, 200);
    router.signal(Signal::SIGTERM);
    common::until("it leaves", async || status("/ready").await == 503).await;
    assert_eq!(status("/live").await, 200);
    let request = http.post(format!("{}/generate", router.url));
    let request = request
        .bearer_auth("hunter2")
        .json(&json!({"inputs": "Hi!"}));
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    router.signal(Signal::SIGTERM);
    assert_eq!(router.wait().0.code(), Some(1));
    assert!(http.get(format!("{url}/live")).send().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_standard_input_ends_streams_with_an_error_when_asked_for() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let flags = ["--json-output", "--exit-on-stdin-eof", "--drain-delay=60"];
    let mut router = Serving::start(&argv(&mock.path(), folder.path(), &flags));
    mock.hold();
    let request = reqwest::Client::new().post(format!("{}/generate_stream", router.url));
    let request = request
        .bearer_auth("hunter2")
        .json(&json!({"inputs": "Hi!"}));
    let stream = request.send().await.expect("an answer");
    drop(router.child.stdin.take());
    let text = stream.text().await.expect("the whole stream");
    assert!(text.contains(r#""error_type":"shutting_down""#), "{text}");
    let (status, errors) = router.wait();
    assert_eq!(status.code(), Some(0), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_prevents_a_start_is_one_line_and_code_one() {
    let mock = MockShard::start(alphabet()).expect("a mock shard");
    let folder = model_folder();
    let empty = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let nowhere = Path::new("/nonexistent/shard-0");
    let (mock, folder) = (mock.path(), folder.path());
    for (argv, expected) in [
        (
            argv(&mock, folder, &["--port", &port]),
            "choose another address with `--hostname` and `--port`",
        ),
        (argv(nowhere, folder, &[]), "`--master-shard-uds-path`"),
        (
            argv(&mock, nowhere, &[]),
            "`--tokenizer-name /nonexistent/shard-0` is not a folder",
        ),
        (argv(&mock, empty.path(), &[]), "no converter for"),
        (
            argv(
                &mock,
                folder,
                &["--max-input-tokens=9", "--max-total-tokens=9"],
            ),
            "`--max-input-tokens` must be <",
        ),
        (
            argv(&mock, folder, &["--tokenizer-config-path=x"]),
            "`--tokenizer-config-path x`: x: does not exist",
        ),
        (
            argv(&mock, folder, &["--answer-index-mib=9"]),
            "`--answer-index-mib 9` keeps earlier answers to draft from, and the shards do not draft",
        ),
    ] {
        let (code, errors) = fails(&argv).await;
        assert_eq!(code, Some(1), "{argv:?}: {errors}");
        assert!(errors.contains(expected), "{errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
    }
}

#[tokio::test]
async fn wrong_flags_end_with_two_and_the_other_commands_with_zero() {
    let argv = |flags: &[&str]| -> Vec<String> {
        let name = ["text-generation-router"];
        name.iter().chain(flags).map(|&flag| flag.into()).collect()
    };
    let (code, errors) = fails(&argv(&["--no-such-flag"])).await;
    assert_eq!(code, Some(2));
    assert!(errors.contains("--no-such-flag"));
    let (code, errors) = fails(&argv(&["--port=0"])).await;
    assert_eq!(code, Some(1));
    assert!(errors.contains("`--tokenizer-name` is not set"), "{errors}");
    let check = argv(&["check", "--max-best-of=3"]);
    assert_eq!(fails(&check).await, (Some(0), String::new()));
    let (code, errors) = fails(&argv(&["check", "--tool-call-parser=x"])).await;
    assert_eq!(code, Some(2));
    assert!(errors.contains("is no known format"), "{errors}");
    for flag in ["--api-key-file=/nonexistent/keys", "--log-level=a=b=c"] {
        let (code, errors) = fails(&argv(&["check", flag])).await;
        assert_eq!(code, Some(1));
        assert!(errors.starts_with("Error: "), "{errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
    }
    let output = router(&argv(&["print-schema"]))
        .output()
        .expect("an exit status");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = &text[text.find('{').expect("JSON")..];
    let document: Value = serde_json::from_str(document.trim_end()).expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
}
