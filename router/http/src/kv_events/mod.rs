//! What is cached, told to routers over ZeroMQ as vLLM tells it, so that they send requests to where their prefix is.
//!
//! The messages hold the token ids of prompts and the salts of requests: their port is for the inside of a cluster.

mod encode;
mod publisher;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

use anyhow::Context;
use serde::Deserialize;
use text_generation_core::infer::KvEventFeed;

use self::publisher::{Publisher, Sockets};

/// `--kv-events-config`, with the fields and defaults of vLLM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvEventsConfig {
    pub enable_kv_cache_events: bool,
    pub publisher: PublisherKind,
    /// Where subscribers connect to, such as `tcp://*:5557`.
    pub endpoint: String,
    /// Where they ask for what they have missed; nowhere when unset.
    pub replay_endpoint: Option<String>,
    /// Batches that can be asked for again.
    pub buffer_steps: usize,
    /// Without effect: a subscriber who does not keep up may be 100,000 batches behind.
    pub hwm: usize,
    /// Batches that wait for the publisher.
    pub max_queue_size: usize,
    pub topic: String,
}

/// How events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublisherKind {
    Zmq,
    /// Not at all.
    Null,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: PublisherKind::Zmq,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

impl FromStr for KvEventsConfig {
    type Err = String;

    /// Nothing at all, as an empty variable says, is the default: off.
    ///
    /// # Errors
    /// When it is not JSON, names an unknown field, or holds a value that cannot work.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let config: Self = serde_json::from_str(text).map_err(|error| {
            format!(
                "must be a JSON object such as {{\"enable_kv_cache_events\": true}}, with the fields of vLLM: {error}"
            )
        })?;
        if config.buffer_steps == 0 || config.max_queue_size == 0 {
            return Err("`buffer_steps` and `max_queue_size` must be above 0".to_owned());
        }
        Ok(config)
    }
}

impl KvEventsConfig {
    /// Says whether the endpoints can be addresses of this machine. Opens none.
    ///
    /// # Errors
    /// An endpoint that is none, or whose host has no address.
    pub fn check(&self) -> anyhow::Result<()> {
        self.endpoints().map(drop)
    }

    /// Opens the ports and starts to publish; `None` where that is switched off. `model` is the name that the model is
    /// served under: replicas with the same one name their blocks alike.
    ///
    /// # Errors
    /// As [`check`](Self::check), or when a port cannot be opened.
    pub fn start(&self, model: &str) -> anyhow::Result<Option<KvEventFeed>> {
        let Some((events, replay)) = self.endpoints()? else {
            return Ok(None);
        };
        let sockets = Sockets {
            events: events.listen()?,
            replay: replay.map(|endpoint| endpoint.listen()).transpose()?,
        };
        let publisher = Publisher::new(self.topic.clone(), self.buffer_steps);
        Ok(Some(KvEventFeed {
            changes: publisher.start(sockets, self.max_queue_size)?,
            model: model.to_owned(),
        }))
    }

    /// That of events and that of replays; `None` where nothing is published.
    fn endpoints(&self) -> anyhow::Result<Option<(Endpoint<'_>, Option<Endpoint<'_>>)>> {
        if !self.enable_kv_cache_events || self.publisher == PublisherKind::Null {
            return Ok(None);
        }
        let events = Endpoint::read("endpoint", &self.endpoint)?;
        let replay = self.replay_endpoint.as_deref();
        let replay = replay.map(|endpoint| Endpoint::read("replay_endpoint", endpoint));
        Ok(Some((events, replay.transpose()?)))
    }
}

/// A port of this machine.
struct Endpoint<'a> {
    /// Of the configuration.
    field: &'static str,
    text: &'a str,
    addresses: Vec<SocketAddr>,
}

impl<'a> Endpoint<'a> {
    /// Reads an endpoint that is written as ZeroMQ writes it.
    fn read(field: &'static str, text: &'a str) -> anyhow::Result<Self> {
        let cannot = || cannot_listen(field, text);
        let address = text.strip_prefix("tcp://").with_context(cannot)?;
        let (host, port) = address.rsplit_once(':').with_context(cannot)?;
        let port: u16 = port.parse().ok().with_context(cannot)?;
        let addresses = match host {
            "*" => vec![(Ipv4Addr::UNSPECIFIED, port).into()],
            _ => address.to_socket_addrs().with_context(cannot)?.collect(),
        };
        Ok(Self {
            field,
            text,
            addresses,
        })
    }

    fn listen(&self) -> anyhow::Result<TcpListener> {
        let cannot = || cannot_listen(self.field, self.text);
        let listener = TcpListener::bind(self.addresses.as_slice()).with_context(cannot)?;
        listener.set_nonblocking(true).with_context(cannot)?;
        Ok(listener)
    }
}

fn cannot_listen(field: &str, endpoint: &str) -> String {
    format!(
        "`--kv-events-config`: cannot listen on `{field}` {endpoint}; give an address of this machine, such as tcp://*:5557"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_that_of_vllm() {
        let config: KvEventsConfig =
            r#"{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@1.2.3.4:80@m"}"#
                .parse()
                .expect("a good one");
        assert!(config.enable_kv_cache_events);
        assert_eq!(
            (config.endpoint.as_str(), config.buffer_steps),
            ("tcp://*:5557", 10_000)
        );
        for (wrong, named) in [
            ("true", "must be a JSON object"),
            (r#"{"publishers": "zmq"}"#, "`publishers`"),
            (r#"{"publisher": "kafka"}"#, "`kafka`"),
            (r#"{"buffer_steps": 0}"#, "`buffer_steps`"),
        ] {
            let error = wrong.parse::<KvEventsConfig>().expect_err(wrong);
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn ports_that_cannot_be_opened_are_named() {
        for endpoint in ["5557", "tcp://*", "ipc:///tmp/x", "tcp://192.0.2.1:5557"] {
            let read = Endpoint::read("replay_endpoint", endpoint);
            let opened = read.and_then(|endpoint| endpoint.listen());
            let error = opened.expect_err(endpoint);
            assert!(
                error
                    .to_string()
                    .contains(&format!("`replay_endpoint` {endpoint}"))
            );
        }
    }

    #[test]
    fn nothing_is_published_unless_it_is_switched_on() {
        for off in [
            "{}",
            r#"{"enable_kv_cache_events": true, "publisher": "null"}"#,
        ] {
            let config: KvEventsConfig = off.parse().expect("a good one");
            assert!(config.start("m").expect("no port").is_none());
        }
    }
}
