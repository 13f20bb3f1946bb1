//! One streaming request: send it, read the clock at every event, say how it ended.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures::StreamExt;

use super::api::{Api, Exchange, Prompt, Sampling};
use super::event::Event;
use super::failure::Failure;
use super::sse::SseParser;
use crate::error::{BenchmarkError, Result};
use crate::live::Live;

/// Bytes of an error body that are shown.
const SHOWN_BYTES: usize = 300;

/// A request with the instant at which it was due.
#[derive(Debug)]
pub struct Job {
    /// Latencies count from here, also when the request went out later (coordinated omission: Tene, 2013).
    pub scheduled: Instant,
    pub body: Vec<u8>,
    pub requested_tokens: u32,
    /// Images in the body.
    pub images: usize,
    /// Keep the text of the answer, for the next turn of a chat.
    pub keep_text: bool,
}

/// What happened to one request.
#[derive(Debug)]
pub struct Outcome {
    pub scheduled: Instant,
    pub sent: Instant,
    /// Arrivals of the events that brought tokens.
    pub arrivals: Vec<Instant>,
    /// The last of them, or the event that ended the answer.
    pub last: Option<Instant>,
    pub finished: Instant,
    pub requested_tokens: u32,
    pub images: usize,
    pub prompt_tokens: Option<u32>,
    /// As the server counts them; `None` when it does not say.
    pub output_tokens: Option<u32>,
    pub text: String,
    pub failure: Option<Failure>,
}

impl Outcome {
    /// Tokens of the answer: the server's count, or else the number of events.
    pub fn tokens(&self) -> u32 {
        self.output_tokens.unwrap_or(self.arrivals.len() as u32)
    }

    pub fn time_to_first_token(&self) -> Option<Duration> {
        let first = self.arrivals.first()?;
        Some(first.saturating_duration_since(self.scheduled))
    }

    pub fn end_to_end(&self) -> Duration {
        self.finished.saturating_duration_since(self.scheduled)
    }

    /// Mean time of the tokens after the first; `None` for a single token.
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let (first, last) = (self.arrivals.first()?, self.last?);
        let gaps = self.tokens().checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(last.saturating_duration_since(*first) / gaps)
    }
}

/// A server with everything that its requests share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Target {
    http: reqwest::Client,
    url: String,
    api: Api,
    sampling: Sampling,
    token: Option<String>,
}

impl Target {
    /// `url` is the address without a path, for example `http://127.0.0.1:8080`. `timeout` bounds one request.
    pub fn new(
        url: &str,
        api: Api,
        sampling: Sampling,
        token: Option<String>,
        timeout: Duration,
    ) -> Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(timeout)
            .connect_timeout(Duration::from_secs(10))
            .pool_max_idle_per_host(usize::MAX)
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(|error| BenchmarkError::argument("--timeout", error.to_string()))?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            api,
            sampling,
            token,
        })
    }

    pub fn api(&self) -> Api {
        self.api
    }

    pub fn model(&self) -> &str {
        &self.sampling.model
    }

    pub fn with_model(self, model: String) -> Self {
        let sampling = Sampling {
            model,
            ..self.sampling
        };
        Self { sampling, ..self }
    }

    /// A JSON document of the server; `None` where it has no such page.
    pub async fn get(&self, path: &str) -> Result<Option<serde_json::Value>> {
        let request = self.http.get(format!("{}{path}", self.url));
        let reply =
            self.authorized(request)
                .send()
                .await
                .map_err(|error| BenchmarkError::Unreachable {
                    url: self.url.clone(),
                    message: causes(&error),
                })?;
        if !reply.status().is_success() {
            return Ok(None);
        }
        Ok(reply.json().await.ok())
    }

    /// The bytes of a request.
    pub fn body(&self, history: &[Exchange], prompt: &Prompt, output_tokens: u32) -> Vec<u8> {
        let body = self
            .api
            .body(&self.sampling, history, prompt, output_tokens);
        body.to_string().into_bytes()
    }

    /// Sends one request and reads its stream to the end. Never fails itself: the outcome says what happened.
    pub async fn run(&self, job: Job, live: &Live) -> Outcome {
        let sent = Instant::now();
        let mut outcome = Outcome {
            scheduled: job.scheduled,
            sent,
            arrivals: Vec::with_capacity(job.requested_tokens as usize),
            last: None,
            finished: sent,
            requested_tokens: job.requested_tokens,
            images: job.images,
            prompt_tokens: None,
            output_tokens: None,
            text: String::new(),
            failure: None,
        };
        live.running.fetch_add(1, Relaxed);
        let result = self
            .stream(job.body, job.keep_text, &mut outcome, live)
            .await;
        outcome.failure = result.err();
        outcome.finished = match (&outcome.failure, outcome.last) {
            (None, Some(last)) => last,
            _ => Instant::now(),
        };
        live.running.fetch_sub(1, Relaxed);
        outcome
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn stream(
        &self,
        body: Vec<u8>,
        keep_text: bool,
        outcome: &mut Outcome,
        live: &Live,
    ) -> std::result::Result<(), Failure> {
        let request = self
            .http
            .post(format!("{}{}", self.url, self.api.path()))
            .header("content-type", "application/json")
            .body(body);
        let reply = self
            .authorized(request)
            .send()
            .await
            .map_err(|error| transport(&error))?;
        let status = reply.status();
        if !status.is_success() {
            let text = reply.text().await.unwrap_or_default();
            let shown = text.chars().take(SHOWN_BYTES).collect::<String>();
            return Err(Failure::new(format!("http_{}", status.as_u16()), shown));
        }
        let mut bytes = reply.bytes_stream();
        let mut parser = SseParser::default();
        let mut complete = false;
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk.map_err(|error| transport(&error))?;
            let now = Instant::now();
            parser.push(&chunk, |data| {
                let event = self.api.event(data)?;
                complete |= event.finished;
                if event.token || event.last {
                    outcome.last = Some(now);
                }
                if event.token {
                    outcome.arrivals.push(now);
                    live.tokens.fetch_add(1, Relaxed);
                }
                take(event, keep_text, outcome);
                Ok(())
            })?;
        }
        if !complete {
            let events = outcome.arrivals.len();
            return Err(Failure::new(
                "stream_cut",
                format!(
                    "the stream ended after {events} events with tokens, before its last event"
                ),
            ));
        }
        if outcome.arrivals.is_empty() {
            return Err(Failure::new("empty", "the answer has no token"));
        }
        Ok(())
    }
}

fn take(event: Event<'_>, keep_text: bool, outcome: &mut Outcome) {
    outcome.prompt_tokens = event.prompt_tokens.or(outcome.prompt_tokens);
    outcome.output_tokens = event.output_tokens.or(outcome.output_tokens);
    if keep_text {
        outcome.text.push_str(&event.text);
    }
}

fn transport(error: &reqwest::Error) -> Failure {
    let kind = if error.is_timeout() {
        "timeout"
    } else if error.is_connect() {
        "connect"
    } else {
        "connection_lost"
    };
    Failure::new(kind, causes(error))
}

/// The error with all its causes, outermost first, without repetition.
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}
