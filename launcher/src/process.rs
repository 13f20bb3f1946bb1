//! A child process in its own group: spawn, terminate, wait with a limit.

mod pipes;

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use text_generation_process::settings::is_service_link;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use self::pipes::{Forwarder, forward_until_exit};
use crate::error::LauncherError;
use crate::logs::{Console, Origin, Progress, Record};
use crate::notify;
use crate::plan::ProcessSpec;

/// What the reason of a failure begins with, on standard error of our own commands.
pub const REASON: &str = "Error: ";

const TICK: Duration = Duration::from_millis(250);

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Exit {
    pub status: ExitStatus,
    /// The last error it reported, as one line.
    pub last_error: Option<String>,
    /// True where that error was its last word, which is not in the log: whoever handles the exit says it.
    pub unsaid: bool,
    /// The last log record it wrote on standard output.
    pub last_record: Option<Record>,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (None, Some(number)) => {
                let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
                write!(f, "signal {number} ({name})")?;
            }
            (None, None) => f.write_str("unknown exit status")?,
        }
        if self.status.signal() == Some(Signal::SIGKILL as i32) {
            f.write_str(", perhaps because the system ran out of memory")?;
        }
        match &self.last_error {
            Some(error) => write!(f, ": {error}"),
            None => f.write_str(": no error was reported"),
        }
    }
}

/// A running child. Its standard input stays open as long as this value lives: its end tells the child to stop.
/// Dropping it kills the whole group.
#[derive(Debug)]
pub struct Process {
    pub name: String,
    group: Pid,
    exit: watch::Receiver<Option<Exit>>,
    progress: watch::Receiver<Option<Progress>>,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts the process and forwards its output to `console`, on the current runtime.
    pub fn spawn(spec: ProcessSpec, console: Console) -> Result<Self, LauncherError> {
        let mut command = command(&spec);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let inherited = spec.inherited.as_deref().map(keep_open).transpose();
        let cannot_run = |source| LauncherError::CannotRun {
            program: spec.program,
            source,
        };
        inherited.map_err(|errno| cannot_run(errno.into()))?;
        let mut child = command.spawn().map_err(cannot_run)?;
        // Nothing else was started in between, on the one thread of the launcher, and nothing after it gets the file.
        drop(spec.inherited);
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(
            id.ok_or_else(|| cannot_run(std::io::Error::other("it has no process id")))?,
        );
        let stdin = child.stdin.take();
        let origin = Origin {
            target: spec.program.replace('-', "_"),
            rank: spec.rank,
        };
        let (sender, exit) = watch::channel(None);
        let (told, progress) = watch::channel(None);
        let forwarder = Forwarder::new(console, origin, told);
        tokio::spawn(async move {
            let exit = forward_until_exit(child, group, forwarder).await;
            sender.send_replace(Some(exit));
        });
        Ok(Self {
            name: spec.name,
            group,
            exit,
            progress,
            stdin,
        })
    }

    pub fn has_ended(&self) -> bool {
        self.exit.borrow().is_some()
    }

    /// Tells a process that waits on its standard input to go on. An error where it has ended.
    pub async fn release(&mut self) -> io::Result<()> {
        match &mut self.stdin {
            Some(stdin) if self.exit.borrow().is_none() => stdin.write_all(b"\n").await,
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Ends its standard input, which tells our own processes that their work has nobody left to be done for, or by.
    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// What it has told last of its start.
    pub fn progress(&self) -> watch::Receiver<Option<Progress>> {
        self.progress.clone()
    }

    /// Resolves when the process has ended and its output was read to the end.
    pub fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            match exit
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|exit| exit.clone())
            {
                Some(exit) => exit,
                // The sender lives until it has sent, unless the runtime itself is going down.
                None => std::future::pending().await,
            }
        }
    }

    /// Resolves when the process has stood still for `limit`, as SIGSTOP has it: it does not end, and answers nobody.
    ///
    /// Time is counted in ticks, so that a pause of this process is not taken for one of the other.
    pub fn stopped(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        let path = format!("/proc/{}/stat", self.group);
        async move {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut still = Duration::ZERO;
            while still < limit {
                ticks.tick().await;
                let stands = fs::read_to_string(&path).is_ok_and(|stat| is_stopped(&stat));
                still = if stands { still + TICK } else { Duration::ZERO };
            }
        }
    }

    /// Sends a signal to every process of the group, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        if !self.has_ended() {
            signal_group(self.group, signal);
        }
    }

    /// Waits for the end until `deadline`, then kills the group. Returns whether the process ended by itself.
    pub async fn end_by(&self, deadline: Instant) -> bool {
        let in_time = timeout_at(deadline, self.exited()).await.is_ok();
        if !in_time {
            self.signal(Signal::SIGKILL);
            self.exited().await;
        }
        in_time
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// Runs a process that answers and ends, with nothing on its standard input. Dropping the future kills it.
pub async fn output(spec: &ProcessSpec) -> io::Result<Output> {
    let mut command = command(spec);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command.output().await
}

/// In a group of its own: what a terminal signals to the launcher is for the launcher to pass on.
///
/// Our own programs see by `LAUNCHER_PID` that they have to end with this process, and ask the kernel to see to it. The
/// kernel takes the end of the thread that starts them for that of the process: it must be one that lives as long.
fn command(spec: &ProcessSpec) -> Command {
    let mut command = Command::new(command_path(spec.program));
    command.args(&spec.args).process_group(0);
    command.env("LAUNCHER_PID", std::process::id().to_string());
    for name in spec.env_remove.iter().chain(&notify::VARIABLES) {
        command.env_remove(name);
    }
    // What the launcher has ignored is no setting of its children either.
    for (name, value) in std::env::vars_os() {
        if is_service_link(&name.to_string_lossy(), &value.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    command
}

/// Lets a file stay open in the next process that is started.
fn keep_open(file: &OwnedFd) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).map(|_| ())
}

/// The command beside this executable, where an installation puts all of them; else `PATH` decides.
pub fn command_path(program: &str) -> PathBuf {
    let own = std::env::current_exe();
    let beside = own.ok().map(|own| own.with_file_name(program));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| program.into())
}

/// Whether `/proc/<pid>/stat` says so, behind the name in parentheses, which may hold any character.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| state.starts_with('T'))
}

/// A group that is already gone needs no signal, so a failure is no error.
fn signal_group(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}
