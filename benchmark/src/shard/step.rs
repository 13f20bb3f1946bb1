//! One run: a prefill and the decodes that follow it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rand::Rng;
use text_generation_client::types::{
    Batch, CachedBatch, Request, SlotRange, StepReply, StoppingCriteria,
};
use text_generation_client::{ClientError, ShardedClient};

use super::args::{ChoiceArgs, Place};
use crate::live::Live;
use crate::prompts::PromptMaker;

/// What one run took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    pub prefill: Duration,
    /// All decodes together.
    pub decode: Duration,
    /// Decode calls.
    pub steps: u32,
    /// Tokens that came with decodes, of all requests.
    pub tokens: u64,
    /// Time in which the device had nothing to do, over all decodes, as the shards say.
    pub idle: Duration,
    /// Kernels compiled since Warmup, as the last reply says.
    pub kernel_compilations: u64,
}

impl Run {
    /// Mean time between two tokens of one request; `None` when the prompt's token was the last.
    pub fn decode_token(&self, batch_size: u32) -> Option<Duration> {
        let tokens = u32::try_from(self.tokens / u64::from(batch_size)).ok()?;
        (tokens > 0).then(|| self.decode / tokens)
    }
}

/// A batch of requests with different random prompts. All slots are given at once.
pub fn batch(place: Place, choice: &ChoiceArgs, maker: &PromptMaker, rng: &mut impl Rng) -> Batch {
    let chooser = choice.chooser();
    let length = place.slots_of_one();
    let requests = (0..place.batch_size)
        .map(|index| Request {
            id: u64::from(index),
            input_ids: maker.ids(rng, place.sequence_length),
            chooser: chooser.clone(),
            stopping: StoppingCriteria {
                max_new_tokens: place.decode_length,
                ignore_eos_token: true,
                min_new_tokens: 0,
            },
            prefill_logprobs: false,
            top_n_tokens: choice.top_n_tokens.unwrap_or(0),
            slots: vec![SlotRange {
                start: index * length,
                length,
            }],
            copies: Vec::new(),
        })
        .collect();
    Batch { id: 0, requests }
}

/// Runs `batch` to its end. Shards run a step ahead, so tokens are counted from the replies, not from the calls.
///
/// # Errors
/// When a call fails, or a request of the batch.
pub async fn run_once(
    client: &ShardedClient,
    batch: Batch,
    live: &Live,
) -> Result<Run, ClientError> {
    let mut run = Run::default();
    let started = Instant::now();
    let reply = client.prefill(batch).await?;
    run.prefill = started.elapsed();
    live.tokens.fetch_add(tokens(&reply), Relaxed);
    let mut cached = left(reply)?;
    let started = Instant::now();
    while let Some(batch) = cached {
        let reply = client.decode(vec![batch], Vec::new()).await?;
        let tokens = tokens(&reply);
        live.tokens.fetch_add(tokens, Relaxed);
        run.steps += 1;
        run.tokens += tokens;
        run.idle += reply.timings.idle;
        run.kernel_compilations = reply.timings.kernel_compilations;
        cached = left(reply)?;
    }
    run.decode = started.elapsed();
    Ok(run)
}

fn tokens(reply: &StepReply) -> u64 {
    let generations = reply.generations.iter();
    generations
        .map(|generation| generation.tokens.len() as u64)
        .sum()
}

/// The batch that goes on, or the failure of one of its requests.
fn left(reply: StepReply) -> Result<Option<CachedBatch>, ClientError> {
    match reply.failures.into_iter().next() {
        None => Ok(reply.batch),
        Some(failure) => Err(ClientError::Shard {
            shard: 0,
            reason: failure.reason,
            message: format!("request {}: {}", failure.request_id, failure.message),
        }),
    }
}
