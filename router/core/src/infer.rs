//! The handle that front ends use: permits, submission, streams, health, shutdown.

mod health;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures::future::try_join_all;
use text_generation_client::ShardedClient;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::assemble::TextAssembler;
use crate::batcher::BatcherHandle;
use crate::error::{InferError, ValidationError};
use crate::metrics::{Meter, RequestMetrics};
use crate::queue::candidate;
pub use crate::stream::GenerateStream;
use crate::stream::Held;
use crate::types::{
    BatchLimits, GenerateAnswer, GenerateRequest, RequestInstants, SimpleToken, ValidationLimits,
};
use crate::validation::{ValidRequest, Validator};

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
    /// Closed when no new request is taken; empty when all streams are gone.
    drain: TaskTracker,
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
            drain: TaskTracker::new(),
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
        let start = async {
            let held = self.enter()?;
            self.0.validator.stream(&request.parameters)?;
            self.start(request, held).await
        };
        let (mut stream, meter) = self.metered(start).await?;
        meter.accepted(stream.input_length, stream.max_new_tokens);
        stream.meter = Some(meter);
        Ok(stream)
    }

    /// Runs a request to its end.
    ///
    /// # Errors
    /// As [`Infer::generate_stream`], and what may end a stream.
    pub async fn generate(&self, request: GenerateRequest) -> Result<GenerateAnswer, InferError> {
        let start = async {
            let held = self.enter()?;
            self.start(request, held).await
        };
        let (mut stream, meter) = self.metered(start).await?;
        meter.accepted(stream.input_length, stream.max_new_tokens);
        stream.meter = Some(meter);
        stream.gather().await
    }

    /// Runs `best_of` generations of a request; returns the one with the highest mean log-probability, and the others.
    /// Each takes its own permit; when one fails, all end.
    ///
    /// # Errors
    /// As [`Infer::generate`].
    pub async fn generate_best_of(
        &self,
        request: GenerateRequest,
        best_of: u32,
    ) -> Result<(GenerateAnswer, Vec<GenerateAnswer>), InferError> {
        let run = async {
            let best_of = self.0.validator.best_of(Some(best_of))?;
            let permits = (0..best_of).map(|_| self.enter());
            let permits = permits.collect::<Result<Vec<_>, _>>()?;
            let starts = permits
                .into_iter()
                .map(|held| self.start(request.clone(), held));
            let streams = try_join_all(starts).await?;
            let max_new_tokens = streams.first().map_or(0, |stream| stream.max_new_tokens);
            let mut answers = try_join_all(streams.into_iter().map(GenerateStream::gather)).await?;
            let best = (0..answers.len())
                .max_by(|&a, &b| {
                    let (a, b) = (answers[a].mean_logprob(), answers[b].mean_logprob());
                    a.total_cmp(&b)
                })
                .ok_or(InferError::IncompleteGeneration)?;
            Ok((answers.swap_remove(best), answers, max_new_tokens))
        };
        let ((best, others, max_new_tokens), mut meter) = self.metered(run).await?;
        meter.accepted(best.input_length, max_new_tokens);
        let generated = best.generated.generated_tokens;
        meter.success(generated, &best.instants, best.finished);
        Ok((best, others))
    }

    /// The tokens of `text` with their places in it.
    pub async fn tokenize(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<SimpleToken>, InferError> {
        let pool = self.0.validator.pool();
        let tokens = pool.encode_with_offsets(text, add_special_tokens).await;
        tokens.map_err(|error| ValidationError::Tokenizer(error.to_string()).into())
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

    /// Counts a request, and its failure when `work` fails. On success the caller settles the meter.
    async fn metered<T>(
        &self,
        work: impl Future<Output = Result<T, InferError>>,
    ) -> Result<(T, Meter), InferError> {
        let mut meter = Meter::start(self.0.metrics.clone());
        match work.await {
            Ok(value) => Ok((value, meter)),
            Err(error) => {
                meter.failure(&error);
                Err(error)
            }
        }
    }

    /// A permit and a place among those that shutdown waits for.
    fn enter(&self) -> Result<Held, InferError> {
        // The token comes first: a drain that has not seen it lets nobody in any more.
        let drain = self.0.drain.token();
        if self.0.drain.is_closed() {
            return Err(InferError::ShuttingDown);
        }
        let permit = self.0.permits.clone().try_acquire_owned();
        Ok(Held {
            _permit: permit.map_err(|_| InferError::Overloaded)?,
            _drain: drain,
            received: Instant::now(),
        })
    }

    /// Validates and queues one generation.
    async fn start(
        &self,
        request: GenerateRequest,
        held: Held,
    ) -> Result<GenerateStream, InferError> {
        let valid = self.0.validator.validate(request).await?;
        self.check_fits(&valid)?;
        let queued = Instant::now();
        let tokenizer = self.0.validator.tokenizer().clone();
        let stream = GenerateStream {
            input_length: candidate(&valid).input_length,
            max_new_tokens: valid.stopping.max_new_tokens,
            assembler: TextAssembler::new(tokenizer, &valid.stop_sequences),
            seed: valid.chooser.do_sample.then_some(valid.chooser.seed),
            instants: RequestInstants {
                received: held.received,
                queued,
                started: queued,
            },
            events: self.0.batcher.submit(valid)?,
            metrics: self.0.metrics.clone(),
            meter: None,
            _held: held,
            pending: VecDeque::new(),
            generated_tokens: 0,
            last_step: None,
            ended: false,
        };
        Ok(stream)
    }

    /// A request that could never run would hold up the queue for ever.
    fn check_fits(&self, request: &ValidRequest) -> Result<(), ValidationError> {
        let (candidate, limits) = (candidate(request), &self.0.limits);
        let (inputs, new) = (candidate.input_length, candidate.max_new_tokens);
        if candidate.fits_alone(limits) {
            return Ok(());
        }
        let max = limits.max_batch_prefill_tokens;
        if inputs > max {
            return Err(ValidationError::InputLength { max, given: inputs });
        }
        let max = limits.max_batch_total_tokens;
        Err(ValidationError::MaxTotalTokens { max, inputs, new })
    }
}

impl fmt::Debug for Infer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Infer")
            .field("gauges", &self.snapshot())
            .finish_non_exhaustive()
    }
}
