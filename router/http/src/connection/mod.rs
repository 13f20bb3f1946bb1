//! Connections: who is let in, what each is doing, how its answers go out, and the loop around them with its orderly end.

mod acceptor;
mod answer;
mod limits;
mod peer_io;
mod peers;
mod server;

pub(crate) use self::acceptor::Acceptor;
pub use self::limits::ServerLimits;
pub use self::server::{StopOrders, serve};
