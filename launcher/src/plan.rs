//! Pure functions from arguments and devices to the processes to start.

mod flags;
mod router;
mod server;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use self::flags::Flags;
pub use self::router::{router, router_check, router_grace};
pub use self::server::{doctor, download, model_settings, shard};
use crate::args::NodeArgs;
use crate::error::LauncherError;

/// One process: what to run, and how its environment differs from the launcher's.
///
/// Not `Debug`, because the environment of the router holds the API key.
#[derive(Clone)]
pub struct ProcessSpec {
    pub name: String,
    /// Set for shards.
    pub rank: Option<usize>,
    pub program: &'static str,
    pub args: Vec<String>,
    pub env: Vec<(&'static str, String)>,
    pub env_remove: Vec<&'static str>,
    /// Stays open in the process, under the number that it has here.
    pub inherited: Option<Arc<OwnedFd>>,
}

/// What the plan takes from the launcher's surroundings.
#[derive(Debug)]
pub struct Surroundings {
    /// Level for `--logger-level` of the Python processes.
    pub log_level: String,
    /// Hub token, under whichever of its names it was set.
    pub hf_token: Option<String>,
}

/// The shards as a group.
#[derive(Debug)]
pub struct ShardGroup {
    /// Shards of this node.
    pub size: usize,
    /// Shard r of this node listens on `<uds_prefix>-<r>`.
    pub uds_prefix: String,
    /// True where the launcher made the sockets' directory, so that the last shard may remove it.
    pub directory_owned: bool,
    /// Where the group has several nodes.
    pub node: Option<NodeGroup>,
}

/// What the shards of one node have to know of the others.
#[derive(Debug)]
pub struct NodeGroup {
    pub rank: usize,
    pub count: usize,
    /// Where the ranks of all nodes meet.
    pub meeting: SocketAddr,
    /// The network interface on which they talk, where it has a name.
    pub interface: Option<String>,
    /// Where each shard of this node listens for the router; empty on node 0, which has it.
    pub listen: Vec<SocketAddr>,
    /// The shards of other nodes in rank order; only node 0 has to know.
    pub remote_urls: Vec<String>,
}

impl ShardGroup {
    /// The rank of the first shard of this node.
    fn first_rank(&self) -> usize {
        self.node.as_ref().map_or(0, |node| node.rank * self.size)
    }

    /// Shards of all nodes.
    pub fn world_size(&self) -> usize {
        self.node.as_ref().map_or(1, |node| node.count) * self.size
    }
}

/// Socket of shard `rank` under a common prefix.
pub fn socket_path(uds_prefix: &str, rank: usize) -> String {
    format!("{uds_prefix}-{rank}")
}

/// File by which the shards of a group find each other. They derive it from the prefix themselves.
pub fn rendezvous_path(uds_prefix: &str) -> String {
    format!("{uds_prefix}-rendezvous")
}

/// Decides the number of shards; `devices` is the number of visible devices, if it can be known.
pub fn shard_count(
    sharded: Option<bool>,
    num_shard: Option<usize>,
    devices: Option<usize>,
) -> Result<usize, LauncherError> {
    match (sharded, num_shard) {
        (Some(true), None) => {
            devices
                .filter(|count| *count > 1)
                .ok_or_else(|| LauncherError::NotEnoughDevices {
                    found: devices.map_or("their number is unknown".to_owned(), |count| {
                        format!("the launcher sees {count}")
                    }),
                })
        }
        (Some(true), Some(count)) if count <= 1 => Err(LauncherError::Argument(format!(
            "--sharded true needs --num-shard above 1, not {count}; use --sharded false for one shard"
        ))),
        (_, Some(count)) => Ok(count),
        (Some(false), None) => Ok(1),
        (None, None) => Ok(devices.unwrap_or(1).max(1)),
    }
}

/// The certificates between nodes.
fn cluster_flags(args: &NodeArgs, flags: &mut Flags) {
    for (flag, path) in [
        ("--cluster-cert", &args.cluster_cert),
        ("--cluster-key", &args.cluster_key),
        ("--cluster-ca", &args.cluster_ca),
    ] {
        flags.optional(flag, path.as_ref().map(|path| path.display()));
    }
}

#[cfg(test)]
mod tests;
