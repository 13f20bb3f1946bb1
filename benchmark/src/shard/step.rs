//! One run: a prefill and the decodes that follow it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use rand::RngExt;
use text_generation_client::types::{
    Chunk, Request, RequestId, Row, SlotRange, StepPlan, StepReply,
};
use text_generation_client::{ClientError, ShardedClient};

use super::args::{ChoiceArgs, Place};
use crate::live::Live;
use crate::prompts::PromptMaker;

/// Plans that are sent before the reply to the first of them has come, as the router does.
const DEPTH: usize = 2;

/// What one run took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// Until the last prompt was computed.
    pub prefill: Duration,
    /// All decodes together.
    pub decode: Duration,
    /// Steps of decodes.
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

/// A batch of requests with different random prompts. Row and slots are given at once.
pub fn batch(
    place: Place,
    choice: &ChoiceArgs,
    maker: &PromptMaker,
    rng: &mut impl RngExt,
) -> Vec<Request> {
    let chooser = choice.chooser();
    let length = place.slots_of_one();
    (0..place.batch_size)
        .map(|row| Request {
            id: RequestId(u64::from(row)),
            row: Row(row),
            input_ids: maker.ids(rng, place.sequence_length),
            num_generated: 0,
            cached_length: 0,
            slots: vec![SlotRange {
                start: row * length,
                length,
            }],
            chooser: chooser.clone(),
            top_n_tokens: choice.top_n_tokens.unwrap_or(0),
            prefill_logprobs: false,
            media: Vec::new(),
            adapter: 0,
            max_new_tokens: 0,
        })
        .collect()
}

/// Runs the requests of a [`batch`] to their end. What the shards held before is dropped first, outside of all times.
///
/// # Errors
/// When a call fails, or a request of the batch.
pub async fn run_once(
    client: &ShardedClient,
    place: Place,
    batch: Vec<Request>,
    max_batch_prefill_tokens: u32,
    live: &Live,
) -> Result<Run, ClientError> {
    client.clear_cache(None).await?;
    let plans = plans(place, batch, max_batch_prefill_tokens);
    let mut replies = stream::iter(plans)
        .map(|plan| {
            let is_prefill = !plan.chunks.is_empty();
            let reply = client.step(plan);
            async move { Ok::<_, ClientError>((is_prefill, reply.await?)) }
        })
        .buffered(DEPTH);
    let mut run = Run::default();
    let started = Instant::now();
    while let Some(answer) = replies.next().await {
        let (is_prefill, reply) = answer?;
        check(&reply)?;
        let tokens = reply.tokens.len() as u64;
        live.tokens.fetch_add(tokens, Relaxed);
        run.kernel_compilations = reply.timings.kernel_compilations;
        if is_prefill {
            run.prefill = started.elapsed();
        } else {
            run.steps += 1;
            run.tokens += tokens;
            run.idle += reply.timings.idle;
        }
    }
    run.decode = started.elapsed() - run.prefill;
    Ok(run)
}

/// All prompts, then decodes of all requests, until each has its tokens: the first comes with its prompt.
fn plans(place: Place, batch: Vec<Request>, most: u32) -> impl Iterator<Item = StepPlan> {
    let mut admit = Some(batch);
    let prefills = chunks(place, most).into_iter().map(move |chunks| StepPlan {
        admit: admit.take().unwrap_or_default(),
        chunks,
        ..StepPlan::default()
    });
    let decodes = (1..place.decode_length).map(move |_| StepPlan {
        decode: (0..place.batch_size).map(Row).collect(),
        ..StepPlan::default()
    });
    (0..)
        .zip(prefills.chain(decodes))
        .map(|(number, plan)| StepPlan { number, ..plan })
}

/// All prompts, in steps of at most `most` tokens.
fn chunks(place: Place, most: u32) -> Vec<Vec<Chunk>> {
    let mut steps = vec![Vec::new()];
    let mut room = most;
    for row in 0..place.batch_size {
        let mut first = 0;
        while first < place.sequence_length {
            if room == 0 {
                steps.push(Vec::new());
                room = most;
            }
            let count = room.min(place.sequence_length - first);
            if let Some(step) = steps.last_mut() {
                step.push(Chunk {
                    row: Row(row),
                    first,
                    count,
                });
            }
            first += count;
            room -= count;
        }
    }
    steps
}

/// Whether all requests got on.
fn check(reply: &StepReply) -> Result<(), ClientError> {
    match reply.failures.first() {
        None => Ok(()),
        Some(failure) => Err(ClientError::Shard {
            shard: 0,
            reason: failure.reason.clone(),
            message: format!("request {}: {}", failure.request_id, failure.message),
        }),
    }
}
