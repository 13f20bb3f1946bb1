//! Typed client of the shards: deadlines, error mapping, join of all ranks. Generated types stay inside.

mod adapters;
mod cluster;
mod convert;
mod encoded;
mod error;
mod group;
mod media;
mod shard;
mod sharded;
pub mod types;

pub use adapters::UnreadAdapter;
pub use cluster::ClusterTls;
pub use error::ClientError;
pub use group::Regained;
pub use shard::Deadlines;
pub use sharded::ShardedClient;
