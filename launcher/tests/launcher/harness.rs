//! Runs the real launcher with fakes in place of `text-generation-server` and `text-generation-router`.
//!
//! The fakes need Python with grpcio and grpcio-health-checking: the interpreter TEXT_GENERATION_PYTHON names, or python3.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// Names and values.
pub type Env<'a> = &'a [(&'a str, &'a str)];

/// A launcher at work, and what can be seen of it from outside.
#[derive(Debug)]
pub struct Launcher {
    child: Child,
    output: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    folder: TempDir,
    _bin: TempDir,
    pub port: u16,
}

/// What is left when the launcher has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub output: Vec<String>,
    pub journal: Vec<Value>,
    /// What is still in the folder for temporary files.
    pub left_files: Vec<PathBuf>,
}

impl Launcher {
    /// Starts it with `--model-id org/model` on a free port, and these flags and variables.
    pub fn start(flags: &[&str], env: Env<'_>) -> Self {
        Self::start_onto(flags, env, Stdio::piped(), Stdio::piped())
    }

    /// The same with another standard output and error, of which nothing is read here.
    pub fn start_onto(flags: &[&str], env: Env<'_>, stdout: Stdio, stderr: Stdio) -> Self {
        let port = free_port();
        let port_text = port.to_string();
        let mut all = vec![
            "--model-id",
            "org/model",
            "--port",
            &port_text,
            "--hostname",
            "127.0.0.1",
        ];
        all.extend(flags);
        let mut launcher = Self::run(&all, env, stdout, stderr);
        launcher.port = port;
        launcher
    }

    /// Starts it with these flags alone.
    pub fn start_bare(flags: &[&str], env: Env<'_>) -> Self {
        Self::run(flags, env, Stdio::piped(), Stdio::piped())
    }

    fn run(flags: &[&str], env: Env<'_>, stdout: Stdio, stderr: Stdio) -> Self {
        let folder = tempfile::Builder::new().prefix("tg").tempdir().unwrap();
        let temporary = folder.path().join("t");
        fs::create_dir(&temporary).unwrap();
        let bin = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut child = Command::new(install(bin.path()))
            .args(flags)
            .env_clear()
            .env("PATH", "/nonexistent")
            .env("TMPDIR", &temporary)
            .env("FAKE_JOURNAL", folder.path().join("journal"))
            // Most tests count processes and their events.
            .env("STANDBY_SHARDS", "false")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let output = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|pipe| collect(pipe, &output)));
        readers.extend(child.stderr.take().map(|pipe| collect(pipe, &output)));
        Self {
            child,
            output,
            readers,
            folder,
            _bin: bin,
            port: 0,
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Sends SIGTERM until one is taken for a second one, which those are not that come right after the first.
    pub fn insist(&self) {
        self.wait_for("a second signal", || {
            self.signal(Signal::SIGTERM);
            let output = self.output.lock().unwrap();
            let hurried = output
                .iter()
                .any(|line| line.contains("by a second signal"));
            hurried.then_some(())
        });
    }

    /// Waits for an output line that contains `text`.
    pub fn wait_for_line(&self, text: &str) -> String {
        self.wait_for(text, || {
            self.output
                .lock()
                .unwrap()
                .iter()
                .find(|line| line.contains(text))
                .cloned()
        })
    }

    /// Waits until so many output lines contain `text`.
    pub fn wait_for_lines(&self, text: &str, times: usize) {
        self.wait_for(&format!("{text}, {times} times"), || {
            let output = self.output.lock().unwrap();
            let found = output.iter().filter(|line| line.contains(text)).count();
            (found >= times).then_some(())
        });
    }

    /// Waits until the banner is out.
    pub fn wait_until_ready(&self) {
        self.wait_for_line("curl http");
    }

    /// Waits for an event in the journal of the fakes and returns its process id.
    pub fn wait_for_event(&self, process: &str, event: &str) -> Pid {
        let found = || {
            self.journal()
                .into_iter()
                .find(|entry| entry["process"] == process && entry["event"] == event)
        };
        let entry = self.wait_for(&format!("{process} {event}"), found);
        Pid::from_raw(entry["pid"].as_i64().unwrap() as i32)
    }

    /// Waits until a process is there no more, whoever it belongs to.
    pub fn wait_until_gone(&self, pid: Pid) {
        self.wait_for("its end", || is_gone(pid).then_some(()));
    }

    /// Waits until a process has made an event so many times.
    pub fn wait_for_events(&self, process: &str, event: &str, times: usize) {
        self.wait_for(&format!("{process} {event}, {times} times"), || {
            let journal = self.journal();
            let found = journal
                .iter()
                .filter(|entry| entry["process"] == process && entry["event"] == event);
            (found.count() >= times).then_some(())
        });
    }

    /// Sends a signal to a fake that has started; of several starts to the latest.
    pub fn signal_child(&self, process: &str, signal: Signal) {
        self.wait_for_event(process, "start");
        let latest = |entry: &&Value| entry["process"] == process && entry["event"] == "start";
        let journal = self.journal();
        let pid = journal.iter().rev().find(latest).unwrap()["pid"].as_i64();
        kill(Pid::from_raw(pid.unwrap() as i32), signal).unwrap();
    }

    pub fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
        text.split_inclusive('\n')
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Process id of the helper that a shard in mode `helper` started.
    pub fn helper(&self) -> Pid {
        let path = self.folder.path().join("journal.helper");
        Pid::from_raw(fs::read_to_string(path).unwrap().parse().unwrap())
    }

    /// Waits for the end, and for the end of every process that was started.
    pub fn end(mut self) -> Ended {
        let began = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(
                began.elapsed() < LIMIT,
                "the launcher does not end: {}",
                self.text()
            );
            thread::sleep(Duration::from_millis(5));
        };
        let journal = self.journal();
        let pids: Vec<Pid> = journal
            .iter()
            .map(|entry| Pid::from_raw(entry["pid"].as_i64().unwrap() as i32))
            .collect();
        self.wait_for("the end of all children", || {
            pids.iter().all(|pid| is_gone(*pid)).then_some(())
        });
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let left = fs::read_dir(self.folder.path().join("t")).unwrap();
        let left_files = left.map(|entry| entry.unwrap().path()).collect();
        Ended {
            code,
            output: self.output.lock().unwrap().clone(),
            journal,
            left_files,
        }
    }

    /// Asks again and again until there is an answer.
    pub fn wait_until<T>(&self, found: impl FnMut() -> Option<T>) -> T {
        self.wait_for("what was asked for", found)
    }

    fn wait_for<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(value) = found() {
                return value;
            }
            assert!(
                began.elapsed() < LIMIT,
                "no sign of {what}: {}",
                self.text()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn text(&self) -> String {
        self.output.lock().unwrap().join("\n")
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Only after a failed test; children follow by the end of their standard input.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The only line of level ERROR.
    pub fn error(&self) -> &str {
        let own: Vec<&String> = self
            .output
            .iter()
            .filter(|line| line.contains("ERROR") && line.contains("text_generation_launcher"))
            .collect();
        assert_eq!(own.len(), 1, "one error line expected: {:#?}", self.output);
        own[0]
    }

    /// `process event` of every journal entry, in order.
    pub fn events(&self) -> Vec<String> {
        let words = |entry: &Value| {
            format!(
                "{} {}",
                entry["process"].as_str().unwrap(),
                entry["event"].as_str().unwrap()
            )
        };
        self.journal.iter().map(words).collect()
    }

    /// The entry that a process made when it started first.
    pub fn start_of(&self, process: &str) -> &Value {
        self.starts_of(process)[0]
    }

    /// The entries that a process made when it started, in order.
    pub fn starts_of(&self, process: &str) -> Vec<&Value> {
        let starts = |entry: &&Value| entry["process"] == process && entry["event"] == "start";
        self.journal.iter().filter(starts).collect()
    }

    pub fn assert_nothing_left(&self) {
        assert_eq!(self.left_files, Vec::<PathBuf>::new());
    }
}

/// True for processes that ended, even if nobody has collected their status.
pub fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| rest.trim_start().starts_with(['Z', 'X']) || rest.is_empty())
}

/// A start that ends with an error and leaves nothing.
pub fn failed(flags: &[&str], env: Env<'_>) -> Ended {
    let ended = Launcher::start(flags, env).end();
    assert_eq!(ended.code, Some(1), "{:#?}", ended.output);
    ended.assert_nothing_left();
    ended
}

/// The first of some ports in a row that are free on every address and that no other caller gets.
///
/// They lie below those that the kernel gives to connections, which may take any of those at any time.
pub fn free_port() -> u16 {
    const IN_A_ROW: u16 = 8;
    const RUNS: u32 = 2_500;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let from = std::process::id().wrapping_mul(97);
    loop {
        let run = from.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % RUNS;
        let first = 12_000 + IN_A_ROW * u16::try_from(run).unwrap();
        let listeners = (first..first + IN_A_ROW).map(|port| TcpListener::bind(("0.0.0.0", port)));
        if listeners.collect::<Result<Vec<_>, _>>().is_ok() {
            return first;
        }
    }
}

/// Puts the launcher and the fakes into one folder, as an installation does, and returns the launcher's path.
fn install(bin: &Path) -> PathBuf {
    fs::write(
        bin.join("fake_common.py"),
        include_str!("fakes/fake_common.py"),
    )
    .unwrap();
    let fakes = [
        (
            "text-generation-server",
            include_str!("fakes/text-generation-server"),
        ),
        (
            "text-generation-router",
            include_str!("fakes/text-generation-router"),
        ),
    ];
    for (name, source) in fakes {
        let path = bin.join(name);
        fs::write(&path, format!("#!{}\n{source}", python())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let launcher = bin.join("text-generation-launcher");
    fs::hard_link(env!("CARGO_BIN_EXE_text-generation-launcher"), &launcher).unwrap();
    launcher
}

/// Path of the interpreter, found out once.
fn python() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(find_python)
}

fn find_python() -> String {
    let named = std::env::var("TEXT_GENERATION_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = "import grpc_health, sys; print(sys.executable)";
    let output = Command::new(&named).args(["-c", script]).output().unwrap();
    assert!(
        output.status.success(),
        "{named} lacks grpcio-health-checking; name an interpreter with it in TEXT_GENERATION_PYTHON"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn collect(pipe: impl Read + Send + 'static, output: &Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            output.lock().unwrap().push(line.unwrap());
        }
    })
}
