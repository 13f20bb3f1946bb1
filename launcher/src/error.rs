//! Errors that end the launcher with exit code 1.

use std::io;

use crate::readiness::SILENCE_LIMIT;

#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    #[error("{0}")]
    Argument(String),
    #[error(
        "--sharded true needs at least two visible GPUs, but {found}; \
         set CUDA_VISIBLE_DEVICES, or give the number of shards with --num-shard"
    )]
    NotEnoughDevices { found: String },
    #[error("cannot use {path} for the shards' sockets: {reason}")]
    Sockets { path: String, reason: String },
    #[error("cannot listen on {address}: {source}; choose another with --port or --hostname")]
    Address {
        address: std::net::SocketAddr,
        source: io::Error,
    },
    #[error(
        "cannot listen on {address}: {source}; choose another with --prometheus-port or --prometheus-hostname"
    )]
    ManagementAddress {
        address: std::net::SocketAddr,
        source: io::Error,
    },
    #[error(
        "cannot run `{program}`: {source}; install it beside text-generation-launcher, or put its folder on PATH"
    )]
    CannotRun {
        program: &'static str,
        source: io::Error,
    },
    #[error(
        "cannot listen on {address} for the other nodes: {source}; set --master-addr or --local-addr to an IP address \
         of node 0, and --master-port to a free port"
    )]
    NodeAddress {
        address: std::net::SocketAddr,
        source: io::Error,
    },
    #[error("cannot resolve --master-addr {address}: {reason}")]
    MasterAddress { address: String, reason: String },
    #[error("{flag} {path} cannot be used: {reason}")]
    Certificate {
        flag: &'static str,
        path: String,
        reason: String,
    },
    #[error(
        "{missing} did not connect within {seconds} s; the log shows which nodes were refused. If they only need more \
         time, raise --shard-startup-timeout"
    )]
    NodesMissing { missing: String, seconds: u64 },
    #[error(
        "cannot connect to node 0 at {master} within {seconds} s: {reason}; if it only needs more time, raise \
         --shard-startup-timeout"
    )]
    MasterMissing {
        master: String,
        seconds: u64,
        reason: String,
    },
    #[error("cannot join node 0 at {master}: {reason}")]
    NodeRefused { master: String, reason: String },
    #[error(
        "node {node} has a different model under this name; give all nodes the same --revision, or the same folder"
    )]
    OtherModel { node: usize },
    #[error(
        "cannot read {path} of the model, to compare it with the other nodes: {source}; repair the folder, or give another \
         --model-id"
    )]
    ModelFile { path: String, source: io::Error },
    #[error("{0}")]
    Node(String),
    #[error("cannot prepare model `{model_id}`: {reason}")]
    Download { model_id: String, reason: String },
    /// As the router says before it is started.
    #[error("{0}")]
    Refused(String),
    #[error("{process} could not start: {exit}")]
    CannotStart { process: String, exit: String },
    #[error(
        "{process} was not ready within {seconds} s; if it only needs more time, raise --shard-startup-timeout"
    )]
    StartupTimeout { process: String, seconds: u64 },
    #[error("{process} stopped: {exit}")]
    Died { process: String, exit: String },
    #[error("{process} {reason} for {} s", SILENCE_LIMIT.as_secs())]
    Silent {
        process: String,
        reason: &'static str,
    },
    #[error("{loss}; that was loss {losses} within {seconds} s, see --max-shard-losses")]
    LostTooOften {
        loss: Box<LauncherError>,
        losses: usize,
        seconds: u64,
    },
    #[error("stopped at once by a second signal; running requests were cut off")]
    Hurried,
    #[error("cannot start the launcher: {0}")]
    System(#[from] io::Error),
}
