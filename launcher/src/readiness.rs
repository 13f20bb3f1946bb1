//! Asks a shard's health service and the router's `/health`. Ready means answered.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const PAUSE: Duration = Duration::from_millis(100);
/// A process that loads weights can be slow to answer; one that hangs must be asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Resolves when the shard on this socket says that it serves.
pub async fn shard_ready(socket: String) {
    while !matches!(
        timeout(ANSWER_LIMIT, shard_serves(&socket)).await,
        Ok(Ok(true))
    ) {
        sleep(PAUSE).await;
    }
}

/// Resolves when the router that listens on this address answers `GET /health` with 200.
pub async fn router_ready(listening: SocketAddr) {
    let address = reachable(listening);
    while !matches!(
        timeout(ANSWER_LIMIT, router_healthy(address)).await,
        Ok(Ok(true))
    ) {
        sleep(PAUSE).await;
    }
}

/// The address by which this machine reaches a server that listens on `address`.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn shard_serves(socket: &str) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let channel = Endpoint::try_from(format!("unix:{socket}"))?
        .connect()
        .await?;
    let reply = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await?;
    Ok(reply.into_inner().status() == ServingStatus::Serving)
}

async fn router_healthy(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut status).await?;
    Ok(status.starts_with(b"HTTP/1.") && status.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_addresses_are_asked_on_loopback() {
        let cases = [
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ];
        for (listening, expected) in cases {
            assert_eq!(reachable(listening.parse().unwrap()).to_string(), expected);
        }
    }
}
