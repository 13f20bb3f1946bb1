//! The port for probes and metrics, which is open before anything else and never closes while the server lives.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{Launcher, free_port};

/// The whole answer of a GET.
fn ask(port: u16, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    answer(connect(port)?, &request)
}

fn connect(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port))
}

/// The answer to a request, up to the end of the connection.
fn answer(mut stream: TcpStream, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What the port says of a server that starts.
fn phase(port: u16) -> Value {
    status(port)["phase"].clone()
}

fn status(port: u16) -> Value {
    let answer = ask(port, "/ready").unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert!(body["seconds"].is_u64(), "{body}");
    body
}

fn start(port: u16, env: &[(&str, &str)]) -> Launcher {
    Launcher::start(&["--prometheus-port", &port.to_string()], env)
}

#[test]
fn it_tells_the_phases_of_the_start_and_then_is_the_routers() {
    let port = free_port();
    let launcher = start(port, &[("FAKE_DOWNLOAD", "gate"), ("FAKE_ROUTER", "gate")]);
    launcher.wait_for_event("download", "waits");
    assert_eq!(phase(port), "downloading");
    assert!(ask(port, "/live").unwrap().starts_with("HTTP/1.1 200 "));
    for path in ["/health", "/metrics"] {
        let answer = ask(port, path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    let ready = Arc::new(AtomicBool::new(false));
    let asking = thread::spawn({
        let ready = ready.clone();
        move || -> io::Result<()> {
            while !ready.load(Ordering::Acquire) {
                assert!(ask(port, "/health")?.starts_with("HTTP/1."));
            }
            Ok(())
        }
    });
    launcher.signal_child("download", Signal::SIGUSR1);
    launcher.wait_for_event("router", "waits");
    assert_eq!(phase(port), "warming up");
    launcher.signal_child("router", Signal::SIGUSR2);
    launcher.wait_until_ready();
    ready.store(true, Ordering::Release);
    asking.join().unwrap().expect("an answer to every question");
    let answer = ask(port, "/health").unwrap();
    assert!(answer.contains("x-router-instance: "), "{answer}");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.end().code, Some(0));
}

#[test]
fn connections_from_before_the_router_are_answered() {
    let port = free_port();
    let launcher = start(port, &[("FAKE_ROUTER", "gate")]);
    launcher.wait_for_event("router", "waits");
    let early = connect(port).unwrap();
    // Connections are accepted in order: an answer to a later one shows that the launcher has the first.
    assert_eq!(phase(port), "warming up");
    launcher.signal_child("router", Signal::SIGUSR2);
    launcher.wait_until_ready();
    // A client that would keep the connection.
    let answer = answer(early, "GET /live HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.end().code, Some(0));
}

#[test]
fn it_is_open_while_shards_load() {
    let port = free_port();
    let launcher = start(port, &[("FAKE_SHARD_0", "not-serving")]);
    launcher.wait_for_event("shard 0", "start");
    assert_eq!(phase(port), "loading");
    launcher.signal(Signal::SIGTERM);
    assert_eq!(launcher.end().code, Some(0));
    assert!(ask(port, "/live").is_err());
}

#[test]
fn it_tells_how_much_of_the_weights_is_read_whatever_is_logged() {
    for level in ["info", "warn"] {
        let port = free_port();
        let launcher = start(port, &[("FAKE_SHARD_0", "loading"), ("LOG_LEVEL", level)]);
        launcher.wait_for_event("shard 0", "start");
        let told = launcher.wait_until(|| status(port)["percent"].as_u64());
        assert_eq!(told, 40);
        assert_eq!(
            status(port)["error"],
            "the server is starting: loading, 40 %"
        );
        launcher.signal(Signal::SIGTERM);
        assert_eq!(launcher.end().code, Some(0));
    }
}

#[test]
fn it_is_open_while_a_start_is_stopped() {
    let port = free_port();
    let launcher = start(port, &[("FAKE_DOWNLOAD", "slow-stop")]);
    launcher.wait_for_event("download", "start");
    launcher.signal(Signal::SIGTERM);
    launcher.wait_for_event("download", "SIGTERM");
    assert_eq!(phase(port), "stopping");
    assert!(ask(port, "/live").unwrap().starts_with("HTTP/1.1 200 "));
    launcher.signal_child("download", Signal::SIGUSR1);
    assert_eq!(launcher.end().code, Some(0));
    assert!(ask(port, "/live").is_err());
}

#[test]
fn a_taken_port_ends_the_start_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ended = start(port, &[]).end();
    assert_eq!(ended.code, Some(1));
    let error = ended.error();
    assert!(
        error.contains("--prometheus-port") && error.contains(&port.to_string()),
        "{error}"
    );
    assert_eq!(ended.events(), Vec::<String>::new());
}
