//! Findings about this host: programs, address, sockets, open files, shared memory. Each finding is of its own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use tokio::process::Command;

use super::{Finding, Status};
use crate::args::ServerArgs;
use crate::error::LauncherError;
use crate::process::command_path;
use crate::sockets::Sockets;
use crate::{banner, checks};

const ROUTER: &str = "text-generation-router";
/// Files that the router has open beside connections of clients: sockets of shards, logs, libraries, probes.
const OTHER_FILES: u64 = 256;
/// What NCCL needs at least for a few ranks on one host. Containers have 64 MiB where nobody asks for more.
const LEAST_SHARED_MEMORY: u64 = 1 << 30;

/// Whether the flags fit each other.
pub fn flags(checked: Result<(), LauncherError>) -> Finding {
    match checked {
        Ok(()) => Finding::new("flags", Status::Ok, "launcher and router accept every flag"),
        Err(error) => Finding::new("flags", Status::Error, error.to_string())
            .remedied_by("correct the flag, or the variable of the same name"),
    }
}

/// A batch size that the number of requests keeps from being reached.
pub fn batch(warning: String) -> Finding {
    Finding::new("flags", Status::Warning, warning)
        .remedied_by("raise --max-concurrent-requests, or lower --max-batch-size")
}

/// A variable that is ignored.
pub fn variable(warning: &str) -> Finding {
    Finding::new("variables", Status::Warning, warning)
        .remedied_by("unset it, or give the flag of the same name")
}

/// Whether the processes may have the virtual memory that they need.
pub fn address_space() -> Option<Finding> {
    let error = checks::check_address_space().err()?;
    let finding = Finding::new("virtual memory", Status::Error, error.to_string());
    Some(finding.remedied_by("ulimit -v unlimited, or LimitAS=infinity in systemd"))
}

/// Whether the router can read the model's tokenizer and template, and its flags fit them.
pub fn tokenizer(checked: Result<(), LauncherError>) -> Finding {
    match checked {
        Ok(()) => Finding::new(
            "tokenizer",
            Status::Ok,
            "the router can read the tokenizer of the model",
        ),
        Err(error) => Finding::new("tokenizer", Status::Error, error.to_string())
            .remedied_by("repair the folder of the model, or change the flag that is named"),
    }
}

/// Whether the port for clients is free.
pub fn address(address: SocketAddr) -> Finding {
    port(address, "listen on", |source| LauncherError::Address {
        address,
        source,
    })
}

/// Whether the port for probes and metrics is free.
pub fn management_address(address: SocketAddr) -> Finding {
    let purpose = "answer probes and show metrics on";
    port(address, purpose, |source| {
        LauncherError::ManagementAddress { address, source }
    })
}

/// Whether node 0 can wait for the others.
pub fn nodes_address(address: Result<SocketAddr, LauncherError>) -> Finding {
    match address {
        Ok(address) => port(address, "wait for the other nodes on", |source| {
            LauncherError::NodeAddress { address, source }
        }),
        Err(error) => Finding::new("address", Status::Error, error.to_string())
            .remedied_by("give --master-addr an address or name of node 0"),
    }
}

fn port(
    address: SocketAddr,
    purpose: &str,
    refusal: impl FnOnce(io::Error) -> LauncherError,
) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::new("address", Status::Plan, format!("{purpose} {address}")),
        Err(source) => {
            let remedy = match source.kind() {
                io::ErrorKind::AddrNotAvailable => {
                    "`ip -brief address` shows the addresses of this host".to_owned()
                }
                io::ErrorKind::PermissionDenied => "choose a port above 1023".to_owned(),
                _ => format!(
                    "`ss -ltnp 'sport = :{}'` names who listens there",
                    address.port()
                ),
            };
            let text = refusal(source).to_string();
            Finding::new("address", Status::Error, text).remedied_by(remedy)
        }
    }
}

/// Who may call.
pub fn access(address: SocketAddr, server: &ServerArgs) -> Option<Finding> {
    banner::is_open(address, server).then(|| {
        let text =
            "no API key, all interfaces, web pages of every origin: anyone who reaches the port can use the server";
        Finding::new("access", Status::Warning, text)
            .remedied_by("set API_KEY, --hostname 127.0.0.1 or --cors-allow-origin")
    })
}

/// Whether the shards' sockets can be made.
pub fn sockets(given: Option<&Path>, shards: usize) -> Finding {
    match Sockets::prepare(given, shards) {
        Ok(sockets) => {
            if let Some(notice) = sockets.notice() {
                return Finding::new("sockets", Status::Warning, notice.to_owned());
            }
            let folder = Path::new(sockets.prefix()).parent().and_then(|path| {
                // One that was made for the trial is gone again.
                if sockets.directory_owned() {
                    path.parent()
                } else {
                    Some(path)
                }
            });
            let folder = folder.unwrap_or(Path::new("/")).display();
            Finding::new(
                "sockets",
                Status::Ok,
                format!("shards can create their sockets in {folder}"),
            )
        }
        Err(error) => Finding::new("sockets", Status::Error, error.to_string())
            .remedied_by("name another place with --shard-uds-path, or make TMPDIR writable"),
    }
}

/// Whether as many connections as are allowed can be open at once.
pub fn open_files(connections: u32) -> Option<Finding> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some(judge_open_files(most, connections))
}

fn judge_open_files(most: u64, connections: u32) -> Finding {
    let needed = u64::from(connections) + OTHER_FILES;
    let text = format!("at most {most} open files, for --max-connections {connections}");
    if most >= needed {
        Finding::new("files", Status::Ok, text)
    } else {
        Finding::new("files", Status::Warning, text).remedied_by(format!(
            "raise the limit (`ulimit -Hn {needed}`, LimitNOFILE={needed} in systemd, --ulimit nofile={needed} in \
             containers), or lower --max-connections"
        ))
    }
}

/// Whether ranks on several devices find the shared memory by which NCCL connects them.
pub fn shared_memory(shards: usize) -> Option<Finding> {
    if shards < 2 {
        return None;
    }
    let size = statvfs("/dev/shm").ok()?;
    Some(judge_shared_memory(
        size.blocks() as u64 * size.fragment_size() as u64,
    ))
}

fn judge_shared_memory(size: u64) -> Finding {
    let text = format!("/dev/shm has {} MiB", size >> 20);
    if size >= LEAST_SHARED_MEMORY {
        Finding::new("shared memory", Status::Ok, text)
    } else {
        Finding::new(
            "shared memory",
            Status::Warning,
            format!("{text}; several shards on GPUs need about 1 GiB"),
        )
        .remedied_by(
            "docker run --shm-size 1g, or an emptyDir of medium Memory at /dev/shm in Kubernetes",
        )
    }
}

/// Whether the router is there, in the launcher's version.
pub async fn router() -> Option<Finding> {
    let output = Command::new(command_path(ROUTER))
        .arg("--version")
        .output()
        .await;
    let said = match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => return Some(cannot_run(ROUTER, &error)),
    };
    let expected = env!("CARGO_PKG_VERSION");
    let fits = said.split_whitespace().next_back() == Some(expected);
    (!fits).then(|| {
        let text = format!("{ROUTER} says `{said}`, and the launcher is {expected}");
        Finding::new("software", Status::Error, text)
            .remedied_by("install all parts in one version")
    })
}

/// A program that cannot be started.
pub fn cannot_run(program: &'static str, error: &io::Error) -> Finding {
    let text = format!("cannot run `{program}`: {error}");
    Finding::new("software", Status::Error, text)
        .remedied_by("install it beside text-generation-launcher, or put its folder on PATH")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_port_that_is_taken_is_an_error_that_names_the_flag() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let finding = address(taken.local_addr().unwrap());
        assert_eq!(finding.status, Status::Error);
        assert!(finding.text.contains("--port"), "{}", finding.text);
        drop(taken);
        let elsewhere = address(SocketAddr::from(([198, 51, 100, 1], 3000)));
        assert_eq!(
            elsewhere.remedy.as_deref(),
            Some("`ip -brief address` shows the addresses of this host")
        );
    }

    #[test]
    fn too_few_open_files_and_too_little_shared_memory_are_warnings() {
        assert_eq!(judge_open_files(1024, 4096).status, Status::Warning);
        assert_eq!(judge_open_files(8192, 4096).status, Status::Ok);
        assert_eq!(judge_shared_memory(64 << 20).status, Status::Warning);
        assert_eq!(judge_shared_memory(2 << 30).status, Status::Ok);
    }
}
