//! Asks a shard's health service, before it is ready and while it runs, and the router's `/health`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const PAUSE: Duration = Duration::from_millis(100);
/// A process that loads weights can be slow to answer; one that hangs must be asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Between an answer of a shard that runs and the next question.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(250);
/// For so long a shard that runs may be silent, or say that it does not serve, before it counts as lost. A shard that
/// warms up compiles in threads, which can keep the one that answers waiting.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(5);
const NO_ANSWER: &str = "did not answer its health service";
const NOT_SERVING: &str = "reported NOT_SERVING";

/// Header by which the router names the instance that its environment gave it.
const INSTANCE_HEADER: &str = "x-router-instance";
/// Bytes of an answer of `/health` that are read.
const LONGEST_ANSWER: u64 = 16 * 1024;

/// Resolves when the shard on this socket says that it serves.
pub async fn shard_ready(socket: String) {
    while !matches!(
        timeout(ANSWER_LIMIT, shard_serves(&socket)).await,
        Ok(Ok(true))
    ) {
        sleep(PAUSE).await;
    }
}

/// Resolves when the shard on this socket has not said for `SILENCE_LIMIT` that it serves, with what it did instead.
///
/// Time is counted in ticks, so that a pause of this process is not taken for one of the shard.
pub async fn shard_silent(socket: String) -> &'static str {
    let Ok(health) = health_client(&socket) else {
        return NO_ANSWER;
    };
    let ask = async || {
        sleep(WATCH_PAUSE).await;
        serves(health.clone()).await
    };
    let mut answer = pin!(ask());
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent, mut reason) = (Duration::ZERO, NO_ANSWER);
    loop {
        tokio::select! {
            biased;
            outcome = &mut answer => {
                (silent, reason) = match outcome {
                    Ok(true) => (Duration::ZERO, NO_ANSWER),
                    Ok(false) => (silent, NOT_SERVING),
                    Err(_) => (silent, NO_ANSWER),
                };
                answer.set(ask());
            }
            _ = ticks.tick() => {
                silent += TICK;
                if silent > SILENCE_LIMIT {
                    return reason;
                }
            }
        }
    }
}

/// Resolves when the router named `instance` answers `GET /health` with 200 on this address.
///
/// Another server may have taken the port since it was checked. Its answers are not those of ours, which then cannot
/// listen and ends.
pub async fn router_ready(listening: SocketAddr, instance: &str) {
    while !router_serves(listening, instance).await {
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
    Ok(serves(health_client(socket)?).await?)
}

/// A client of the health service on this socket. It connects when it is asked, and again where the connection ended.
fn health_client(socket: &str) -> Result<HealthClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::try_from(format!("unix:{socket}"))?;
    Ok(HealthClient::new(endpoint.connect_lazy()))
}

async fn serves(mut health: HealthClient<Channel>) -> Result<bool, tonic::Status> {
    let reply = health.check(HealthCheckRequest::default()).await?;
    Ok(reply.into_inner().status() == ServingStatus::Serving)
}

/// Whether the router named `instance` answers `GET /health` with 200 on this address, in time.
pub async fn router_serves(listening: SocketAddr, instance: &str) -> bool {
    let healthy = router_healthy(reachable(listening), instance);
    matches!(timeout(ANSWER_LIMIT, healthy).await, Ok(Ok(true)))
}

async fn router_healthy(address: SocketAddr, instance: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(is_healthy(&String::from_utf8_lossy(&answer), instance))
}

/// Whether an answer has status 200 and the header that names the instance.
fn is_healthy(answer: &str, instance: &str) -> bool {
    let mut lines = answer.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let mut headers = lines.take_while(|line| !line.is_empty());
    status == Some("200")
        && headers.any(|line| {
            line.split_once(':').is_some_and(|(name, value)| {
                name.eq_ignore_ascii_case(INSTANCE_HEADER) && value.trim() == instance
            })
        })
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

    #[test]
    fn only_the_router_that_was_started_counts() {
        let ours = "HTTP/1.1 200 OK\r\nX-Router-Instance: a1\r\n\r\n";
        assert!(is_healthy(ours, "a1"));
        for other in [
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx-router-instance: b2\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nx-router-instance: a1\r\n",
            "HTTP/1.1 503 Service Unavailable\r\nx-router-instance: a1\r\n\r\n",
        ] {
            assert!(!is_healthy(other, "a1"), "{other}");
        }
    }
}
