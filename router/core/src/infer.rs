//! The handle that front ends use: permits, submission, streams, health, shutdown.

mod beams;
mod continued;
mod health;
mod start;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures::future::try_join_all;
use text_generation_client::ShardedClient;
use text_generation_client::types::WarmupLimits;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::continued::Continued;
pub use self::health::Health;
use self::health::HealthCheck;
use crate::adapters::Adapters;
use crate::batcher::BatcherHandle;
pub use crate::batcher::{KvEventFeed, MediaShards, Shards};
use crate::error::{InferError, ValidationError};
use crate::grammar::mask_pool;
use crate::media::Vision;
use crate::metrics::{Meter, RequestMetrics};
use crate::policy::BatchLimits;
pub use crate::stream::GenerateStream;
use crate::types::{
    GenerateAnswer, GenerateParameters, GenerateRequest, GivenImage, TokenizedText,
    ValidationLimits,
};
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

/// A prompt and how many samples of it are wanted. The prompt is computed once; the seeds of the samples count up from
/// that of the request, or from a random one. Of a beam search these are the best of its texts.
#[derive(Debug, Clone)]
pub struct Group {
    pub request: GenerateRequest,
    pub samples: u32,
}

impl Group {
    /// As many samples as the request's `best_of` says, or as it has beams, else one.
    pub fn one_or_best_of(request: GenerateRequest) -> Self {
        let parameters = &request.parameters;
        let samples = parameters.beam_width.or(parameters.best_of).unwrap_or(1);
        Self { request, samples }
    }

    /// Generations that run for it at once.
    fn generations(&self) -> u32 {
        self.request.parameters.beam_width.unwrap_or(self.samples)
    }

    /// One sample, whatever `best_of` says.
    fn one(request: GenerateRequest) -> Self {
        Self {
            request,
            samples: 1,
        }
    }
}

/// Everything a front end asks of the model. Clones share it; the batching task ends when the last one is dropped.
#[derive(Clone)]
pub struct Infer(Arc<Inner>);

struct Inner {
    validator: Validator,
    client: ShardedClient,
    eos_token_ids: Arc<[u32]>,
    limits: BatchLimits,
    batcher: BatcherHandle,
    permits: Arc<Semaphore>,
    max_concurrent_requests: u32,
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
        shards: Shards,
        limits: BatchLimits,
        max_concurrent_requests: usize,
    ) -> Self {
        let permits = max_concurrent_requests.min(Semaphore::MAX_PERMITS);
        let warmup = advertised(validator.limits(), &limits, &shards);
        let validator = match mask_pool::most_rows(shards.max_masks) {
            0 => validator,
            _ => validator.with_grammars(&shards.eos_token_ids),
        };
        let validator = validator.with_drafts(shards.windows.widest() > 1);
        Self(Arc::new(Inner {
            client: shards.client.clone(),
            eos_token_ids: shards.eos_token_ids.as_slice().into(),
            batcher: BatcherHandle::spawn(shards, limits, warmup, validator.mask_workers()),
            validator,
            limits,
            permits: Arc::new(Semaphore::new(permits)),
            max_concurrent_requests: u32::try_from(permits).unwrap_or(u32::MAX),
            drain: TaskTracker::new(),
            cut: CancellationToken::new(),
            health: HealthCheck::default(),
            metrics: Arc::new(RequestMetrics::new()),
        }))
    }

    /// Set where requests may have images.
    pub fn vision(&self) -> Option<&Vision> {
        self.0.validator.vision()
    }

    /// Queues a request and returns its events as they come.
    ///
    /// # Errors
    /// `Overloaded` without waiting when no permit is free or the tenant has had its tokens, `Validation`,
    /// `ShuttingDown`, or `Generation` when the batching task has died.
    pub async fn generate_stream(
        &self,
        request: GenerateRequest,
    ) -> Result<GenerateStream, InferError> {
        let meter = self.meter(1);
        let start = async {
            let group = Group::one(request);
            if group.request.parameters.beam_width.is_some() {
                self.check_samples(&group)?;
            }
            let held = self.enter(&group.request.parameters.tenant, group.generations())?;
            self.0.validator.stream(&group.request.parameters)?;
            self.start(vec![group], held, &meter).await
        };
        only(only(meter.on_failure(start.await)?)?)
    }

    /// Queues several groups as one request of a client: all of them, or none when one is refused. Returns their
    /// streams in the order of the groups, and of their [`index`](GenerateStream::index). The samples of a group
    /// share their prompt where prefixes are cached; each has its own permit and row, ends on its own, and may be
    /// dropped on its own.
    ///
    /// # Errors
    /// As [`Infer::generate_stream`]. `Validation` also when the server could never run so many together.
    /// `decoder_input_details` is allowed: each stream then starts with the prompt.
    pub async fn generate_groups(
        &self,
        groups: Vec<Group>,
    ) -> Result<Vec<Vec<GenerateStream>>, InferError> {
        let all = |count: fn(&Group) -> u32| groups.iter().map(count).fold(0, u32::saturating_add);
        let samples = all(|group| group.samples);
        let generations = all(Group::generations);
        let meter = self.meter(samples);
        let start = async {
            groups
                .iter()
                .try_for_each(|group| self.check_samples(group))?;
            let tenant = start::tenant(&groups);
            self.check_generations(&tenant, generations)?;
            let held = self.enter(&tenant, generations)?;
            self.start(groups, held, &meter).await
        };
        meter.on_failure(start.await)
    }

    /// Whether a request may ask for the best of so many samples.
    ///
    /// # Errors
    /// `Validation`.
    pub fn check_best_of(&self, best_of: u32) -> Result<(), InferError> {
        Ok(self.0.validator.best_of(best_of)?)
    }

    /// [`Infer::generate_groups`] of one group.
    ///
    /// # Errors
    /// The same.
    pub async fn generate_group(&self, group: Group) -> Result<Vec<GenerateStream>, InferError> {
        only(self.generate_groups(vec![group]).await?)
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

    /// The tokens of `text`, which has one token for each of `images`, with all tokens that stand for these. None of them
    /// is decoded.
    ///
    /// # Errors
    /// `Validation` when the text cannot be encoded, an image is none, or all are more than a prompt may have.
    pub async fn tokenize_with(
        &self,
        text: String,
        add_special_tokens: bool,
        images: Vec<GivenImage>,
    ) -> Result<TokenizedText, InferError> {
        let tokens = self.tokenize(text, add_special_tokens).await?;
        let Some(vision) = self.vision().filter(|_| !images.is_empty()) else {
            return Ok(tokens);
        };
        let looked = vision.look(tokens.ids().to_vec(), images).await?;
        self.0.validator.check_length(looked.tokens())?;
        let lengths: Vec<usize> = looked.lengths().collect();
        let ids = vision.expand(looked, None).await?.ids;
        Ok(tokens.expanded(ids, vision.placeholder(), &lengths))
    }

    /// How many tokens `text` has, as a prompt that has its special tokens.
    ///
    /// # Errors
    /// `Validation` when the text cannot be encoded.
    pub async fn count_tokens(&self, text: String) -> Result<usize, InferError> {
        let ids = self.0.validator.pool().encode(text, false).await;
        let ids = ids.map_err(|error| ValidationError::Tokenizer(error.to_string()))?;
        Ok(ids.len())
    }

    /// The same of a prompt that names `images`; none of them is decoded.
    ///
    /// # Errors
    /// `Validation` when the text cannot be encoded, or an image is none.
    pub async fn count_tokens_with(
        &self,
        text: String,
        images: Vec<GivenImage>,
    ) -> Result<usize, InferError> {
        let ids = self.0.validator.pool().encode(text, false).await;
        let ids = ids.map_err(|error| ValidationError::Tokenizer(error.to_string()))?;
        match self.vision() {
            Some(vision) => Ok(vision.look(ids, images).await?.tokens()),
            None => Ok(ids.len()),
        }
    }

    /// How many tokens a prompt of `tokens` has when it is cut as `parameters` say; those at its end are kept.
    pub fn kept(&self, tokens: usize, parameters: &GenerateParameters) -> usize {
        self.0.validator.kept(tokens, parameters)
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

    /// How the vocabulary writes a token, such as `Ġworld`; an unknown id has no text.
    pub fn token(&self, id: u32) -> String {
        let tokenizer = self.0.validator.tokenizer();
        tokenizer.token(id).unwrap_or_default()
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

    /// Resolves with the reason when the batching task has panicked, and never otherwise. Nothing is served then.
    pub async fn panicked(&self) -> String {
        self.0.batcher.panicked().await
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

    /// The adapters that requests may name.
    pub fn adapters(&self) -> &Adapters {
        self.0.validator.adapters()
    }

    /// How many requests must wait for each one that decodes before they join, when this last mattered.
    pub fn waiting_served_ratio(&self) -> f32 {
        self.0.batcher.status().waiting_served_ratio
    }

    /// Counts one request of a client.
    fn meter(&self, samples: u32) -> Arc<Meter> {
        Arc::new(Meter::start(self.0.metrics.clone(), samples))
    }
}

/// What shards that start again must serve: requests were let in by these limits.
fn advertised(requests: &ValidationLimits, batch: &BatchLimits, shards: &Shards) -> WarmupLimits {
    let media = shards.media.as_ref();
    WarmupLimits {
        max_input_tokens: Some(requests.max_input_tokens),
        max_total_tokens: Some(requests.max_total_tokens),
        max_batch_prefill_tokens: batch.max_batch_prefill_tokens,
        max_batch_total_tokens: Some(batch.max_batch_total_tokens),
        max_batch_size: batch.max_batch_size,
        prefill_chunking: batch.prefill_chunking,
        regained: true,
        overlapped_halves: shards.overlapped_halves,
        media_rows: media.map_or(0, |media| media.rows),
        max_media_pixels: media.map_or(0, |media| media.max_pixels),
        adapter_pages: shards.adapters.pages(),
        adapters_later: shards.adapters.later(),
    }
}

/// What a list of one holds.
fn only<T>(mut list: Vec<T>) -> Result<T, InferError> {
    list.pop().ok_or(InferError::IncompleteGeneration)
}

/// Runs the samples of a request to their end; returns the one with the highest mean log-probability, or of beams the one
/// with the highest score, and the others. When one fails, all end.
///
/// # Errors
/// What may end a stream.
pub async fn gather_best(
    streams: Vec<GenerateStream>,
) -> Result<(GenerateAnswer, Vec<GenerateAnswer>), InferError> {
    let mut answers = try_join_all(streams.into_iter().map(GenerateStream::gather)).await?;
    let merit = |answer: &GenerateAnswer| {
        let score = answer.generated.beam_score;
        score.unwrap_or_else(|| answer.mean_logprob())
    };
    // Of equals the first, as beams are in the order of their scores.
    let best = (0..answers.len())
        .rev()
        .max_by(|&a, &b| merit(&answers[a]).total_cmp(&merit(&answers[b])))
        .ok_or(InferError::IncompleteGeneration)?;
    Ok((answers.remove(best), answers))
}

impl fmt::Debug for Infer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Infer")
            .field("gauges", &self.snapshot())
            .finish_non_exhaustive()
    }
}
