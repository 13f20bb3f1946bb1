//! The handle that front ends use: permits, submission, streams, health, shutdown.

mod health;
mod start;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures::future::try_join_all;
use text_generation_client::ShardedClient;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::health::HealthCheck;
use crate::batcher::BatcherHandle;
use crate::error::{InferError, ValidationError};
use crate::metrics::{Meter, RequestMetrics};
pub use crate::stream::GenerateStream;
use crate::types::{BatchLimits, GenerateAnswer, GenerateRequest, TokenizedText, ValidationLimits};
use crate::validation::Validator;

/// What is going on, for tests and status pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gauges {
    pub queued: usize,
    /// Requests that own a row.
    pub running: usize,
    pub slots_used: u32,
    pub slots_total: u32,
    pub permits_available: usize,
}

/// Everything a front end asks of the model. Clones share it; the batching task ends when the last one is dropped.
#[derive(Clone)]
pub struct Infer(Arc<Inner>);

struct Inner {
    validator: Validator,
    client: ShardedClient,
    limits: BatchLimits,
    batcher: BatcherHandle,
    permits: Arc<Semaphore>,
    max_concurrent_requests: usize,
    /// Closed when no new request is taken; empty when all streams are gone.
    drain: TaskTracker,
    /// Cancelled when running requests have to end.
    cut: CancellationToken,
    health: HealthCheck,
    metrics: Arc<RequestMetrics>,
}

impl Infer {
    /// Starts the batching task on the current tokio runtime. The metrics recorder, if any, must be installed before.
    pub fn new(
        validator: Validator,
        client: ShardedClient,
        limits: BatchLimits,
        max_concurrent_requests: usize,
    ) -> Self {
        let permits = max_concurrent_requests.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            batcher: BatcherHandle::spawn(client.clone(), limits),
            validator,
            client,
            limits,
            permits: Arc::new(Semaphore::new(permits)),
            max_concurrent_requests: permits,
            drain: TaskTracker::new(),
            cut: CancellationToken::new(),
            health: HealthCheck::default(),
            metrics: Arc::new(RequestMetrics::new()),
        }))
    }

    /// Queues a request and returns its events as they come.
    ///
    /// # Errors
    /// `Overloaded` without waiting when no permit is free, `Validation`, `ShuttingDown`, or `Generation` when the
    /// batching task has died.
    pub async fn generate_stream(
        &self,
        request: GenerateRequest,
    ) -> Result<GenerateStream, InferError> {
        let meter = self.meter(1);
        let start = async {
            let held = self.enter()?;
            self.0.validator.stream(&request.parameters)?;
            self.start(request, vec![held], &meter).await
        };
        one(meter.on_failure(start.await)?)
    }

    /// Runs a request to its end.
    ///
    /// # Errors
    /// As [`Infer::generate_stream`], and what may end a stream.
    pub async fn generate(&self, request: GenerateRequest) -> Result<GenerateAnswer, InferError> {
        let meter = self.meter(1);
        let start = async {
            let held = self.enter()?;
            self.start(request, vec![held], &meter).await
        };
        one(meter.on_failure(start.await)?)?.gather().await
    }

    /// Queues `n` generations of one prompt, which is computed once, and returns their streams in the order of their
    /// [`index`](GenerateStream::index). Their seeds count up from that of the request, or from a random one. They
    /// start together; each takes its own permit and row, ends on its own, and may be dropped on its own.
    ///
    /// # Errors
    /// As [`Infer::generate_stream`]. `Validation` also when the server could never run so many together. The
    /// parameters' `best_of` is not looked at, and `decoder_input_details` is allowed: each stream then starts with
    /// the prompt.
    pub async fn generate_group(
        &self,
        request: GenerateRequest,
        n: u32,
    ) -> Result<Vec<GenerateStream>, InferError> {
        let meter = self.meter(n);
        let start = async {
            self.check_samples("n", n)?;
            self.start(request, self.enter_all(n)?, &meter).await
        };
        meter.on_failure(start.await)
    }

    /// Runs `best_of` generations of a request, whose prompt is computed once; returns the one with the highest mean
    /// log-probability, and the others. Each takes its own permit; when one fails, all end.
    ///
    /// # Errors
    /// As [`Infer::generate`].
    pub async fn generate_best_of(
        &self,
        request: GenerateRequest,
        best_of: u32,
    ) -> Result<(GenerateAnswer, Vec<GenerateAnswer>), InferError> {
        let meter = self.meter(best_of);
        let start = async {
            let best_of = self.0.validator.best_of(Some(best_of))?;
            self.check_samples("best_of", best_of)?;
            self.start(request, self.enter_all(best_of)?, &meter).await
        };
        let streams = meter.on_failure(start.await)?;
        let mut answers = try_join_all(streams.into_iter().map(GenerateStream::gather)).await?;
        let best = (0..answers.len())
            .max_by(|&a, &b| {
                let (a, b) = (answers[a].mean_logprob(), answers[b].mean_logprob());
                a.total_cmp(&b)
            })
            .ok_or(InferError::IncompleteGeneration)?;
        Ok((answers.swap_remove(best), answers))
    }

    /// The tokens of `text` with their places in it.
    pub async fn tokenize(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<TokenizedText, InferError> {
        let pool = self.0.validator.pool();
        let tokens = pool.encode_with_offsets(text, add_special_tokens).await;
        tokens.map_err(|error| ValidationError::Tokenizer(error.to_string()).into())
    }

    /// The text of `ids`, taken as a whole text.
    ///
    /// # Errors
    /// `Validation` when the model does not know an id.
    pub async fn detokenize(
        &self,
        ids: Vec<u32>,
        skip_special_tokens: bool,
    ) -> Result<String, InferError> {
        self.0.validator.check_ids("ids", &ids)?;
        let pool = self.0.validator.pool();
        let text = pool.decode(ids, skip_special_tokens).await;
        text.map_err(|error| ValidationError::Tokenizer(error.to_string()).into())
    }

    /// The bytes that a token adds to a text, also where they are no whole character. An unknown id has none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.validator.tokenizer().bytes(id)
    }

    /// Whether a token is special, such as BOS or EOS: it is in no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.validator.tokenizer().is_special(id)
    }

    pub fn limits(&self) -> &ValidationLimits {
        self.0.validator.limits()
    }

    /// From now on no request is taken; those that run or wait go on.
    pub fn shutdown(&self) {
        self.0.drain.close();
    }

    /// Resolves after [`Infer::shutdown`], when the stream of every request is gone.
    pub async fn drained(&self) {
        self.0.drain.wait().await;
    }

    /// Ends every running request with `ShuttingDown`, also those that are still let in.
    pub fn cut(&self) {
        self.0.cut.cancel();
    }

    pub fn snapshot(&self) -> Gauges {
        let status = self.0.batcher.status();
        Gauges {
            queued: status.queued,
            running: status.running,
            slots_used: status.slots_used,
            slots_total: self.0.limits.max_batch_total_tokens,
            permits_available: self.0.permits.available_permits(),
        }
    }

    /// Counts one request of a client.
    fn meter(&self, samples: u32) -> Arc<Meter> {
        Arc::new(Meter::start(self.0.metrics.clone(), samples))
    }
}

/// The stream of a request with one sample.
fn one(mut streams: Vec<GenerateStream>) -> Result<GenerateStream, InferError> {
    streams.pop().ok_or(InferError::IncompleteGeneration)
}

impl fmt::Debug for Infer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Infer")
            .field("gauges", &self.snapshot())
            .finish_non_exhaustive()
    }
}
