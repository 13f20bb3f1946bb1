//! The client's end of one generation: ids become text here, in the task that asked, not in the batcher.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures::{Stream, StreamExt};
use text_generation_client::types::TokenId;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::adapters::Adapter;
use crate::assemble::TextAssembler;
use crate::error::InferError;
use crate::hints::Follower;
use crate::metrics::{Meter, RequestMetrics};
use crate::permit::PermitHalf;
use crate::queue::{Event, Generation};
use crate::tenant::Tenant;
use crate::types::observer::{GenerationRecord, Observed, Outcome};
use crate::types::{
    FinishReason, GenerateAnswer, GeneratedText, RequestInstants, Speculated, StreamEvent,
};

/// Events of one generation, ended by [`StreamEvent::End`] or an error. Dropping it cancels the request.
///
/// It holds the permit of the request until the generation has ended.
pub struct GenerateStream {
    /// Place among the samples of its request, from 0.
    pub index: u32,
    /// Tokens of the prompt, as truncated.
    pub input_length: u32,
    /// The same tokens.
    pub prompt_ids: Arc<[u32]>,
    /// The end of the prompt's text that no token of the prompt has: the generated ones begin with it. Empty without
    /// `token_healing`.
    pub healed: Arc<str>,
    /// Parts of its grammar that its text need not follow.
    pub not_enforced: Arc<[String]>,
    pub(crate) events: UnboundedReceiver<Event>,
    /// Tells the batcher, before `events` is closed, that a stop string ended the text.
    pub(crate) stopped: Arc<AtomicBool>,
    pub(crate) assembler: TextAssembler,
    /// Set when the request samples.
    pub(crate) seed: Option<u64>,
    /// Set where it is the text of a beam, which comes as a whole.
    pub(crate) beam_score: Option<f32>,
    pub(crate) instants: RequestInstants,
    /// Tokens of the prompt that were found in the prefix tree.
    pub(crate) cached_tokens: u32,
    pub(crate) metrics: Arc<RequestMetrics>,
    /// Counts the request; its samples share it.
    pub(crate) meter: Arc<Meter>,
    pub(crate) guard: StreamGuard,
    /// Assembled and not yet taken.
    pub(crate) pending: VecDeque<StreamEvent>,
    pub(crate) generated_tokens: u32,
    /// What a classifier made of the prompt.
    pub(crate) class_logits: Box<[f32]>,
    /// The longest that it may get.
    pub(crate) max_new_tokens: u32,
    /// When the first tokens arrived.
    pub(crate) first_step: Option<Instant>,
    /// When the last tokens arrived.
    pub(crate) last_step: Option<Instant>,
    /// Nothing follows what is pending.
    pub(crate) ended: bool,
    /// As far as is known.
    pub(crate) outcome: Outcome,
    pub(crate) tenant: Tenant,
    pub(crate) adapter: Option<Arc<Adapter>>,
    pub(crate) observed: Observed,
    /// Where its text stands in a prediction.
    pub(crate) follower: Option<Follower>,
}

/// What a request holds as long as its stream exists.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    /// Given back with the stream, or by the batcher when the generation ends, which may be long before a slow client
    /// has taken its text.
    pub(crate) _permit: PermitHalf,
    /// Resolves when running requests have to end.
    pub(crate) cut: Pin<Box<WaitForCancellationFutureOwned>>,
    pub(crate) _drain: TaskTrackerToken,
    pub(crate) received: Instant,
}

impl GenerateStream {
    /// Turns the tokens of one step into pending events.
    fn assemble(&mut self, generation: Generation) {
        let Generation {
            prompt,
            class_logits,
            tokens,
            top_tokens,
            finish,
            speculated,
            beam_score,
        } = generation;
        let now = Instant::now();
        self.beam_score = beam_score;
        match self.last_step.replace(now) {
            Some(last) => self.metrics.step(tokens.len(), now - last),
            None => {
                self.first_step = Some(now);
                let since_received = now - self.instants.received;
                self.metrics.first_step(tokens.len(), since_received);
            }
        }
        self.class_logits = class_logits;
        if let Some(prompt) = prompt {
            let prompt = self.assembler.prefill(&prompt);
            self.pending.push_back(StreamEvent::Prefill(prompt));
        }
        let last = tokens.len().saturating_sub(1);
        let mut top_tokens = top_tokens.into_iter();
        for (index, token) in tokens.into_iter().enumerate() {
            let finish = finish.filter(|_| index == last);
            if let Some(follower) = &mut self.follower {
                follower.push(token.id);
            }
            self.assemble_token(token, top_tokens.next(), finish, speculated, now);
            if self.ended {
                return;
            }
        }
    }

    fn assemble_token(
        &mut self,
        token: TokenId,
        top_tokens: Option<Vec<TokenId>>,
        finish: Option<FinishReason>,
        speculated: Speculated,
        now: Instant,
    ) {
        self.generated_tokens += 1;
        // What a prompt's end has of them is known before the token itself has written it.
        let top_tokens = top_tokens.map_or(Vec::new(), |top| self.assembler.top(&top));
        let assembled = match finish {
            Some(FinishReason::EosToken) => self.assembler.push_end(token),
            _ => self.assembler.push(token),
        };
        let mut token = assembled.token;
        let reason = finish_reason(finish, assembled.stopped);
        let Some(finish_reason) = reason else {
            self.pending
                .push_back(StreamEvent::Token { token, top_tokens });
            return;
        };
        token.text.push_str(&self.assembler.flush());
        let generated = GeneratedText {
            text: self.assembler.finish(),
            generated_tokens: self.generated_tokens,
            finish_reason,
            stop_sequence: self
                .assembler
                .stop_sequence()
                .filter(|_| finish_reason == FinishReason::StopSequence)
                .map(str::to_owned),
            seed: self.seed,
            tenant: self.tenant.name().cloned(),
            adapter: self.adapter.as_deref().map(|one| one.name.as_str().into()),
            speculated,
            beam_score: self.beam_score,
            predicted: self.follower.as_ref().map(Follower::counts),
        };
        self.pending.push_back(StreamEvent::End {
            token,
            top_tokens,
            generated,
            instants: self.instants,
            cached_tokens: self.cached_tokens,
        });
        self.outcome = Outcome::Finished(finish_reason);
        if finish_reason == FinishReason::StopSequence {
            self.stopped.store(true, Ordering::Release);
            self.metrics.stopped();
        }
        self.end();
        self.meter
            .success(self.generated_tokens, &self.instants, now);
    }

    /// Runs to the end and gathers the events into one answer.
    ///
    /// # Errors
    /// What ends the stream; `IncompleteGeneration` when it ends without its last token.
    pub async fn gather(mut self) -> Result<GenerateAnswer, InferError> {
        let mut prefill = Vec::new();
        let mut tokens = Vec::new();
        let mut tops = Vec::new();
        while let Some(event) = self.next().await {
            let (token, top_tokens, end) = match event {
                Ok(StreamEvent::Prefill(prompt)) => {
                    prefill = prompt;
                    continue;
                }
                Ok(StreamEvent::Token { token, top_tokens }) => (token, top_tokens, None),
                Ok(StreamEvent::End {
                    token,
                    top_tokens,
                    generated,
                    instants,
                    cached_tokens,
                }) => (
                    token,
                    top_tokens,
                    Some((generated, instants, cached_tokens)),
                ),
                Err(InferError::IncompleteGenerationStream) => break,
                Err(error) => return Err(error),
            };
            tokens.push(token);
            if !top_tokens.is_empty() {
                tops.push(top_tokens);
            }
            if let Some((generated, instants, cached_tokens)) = end {
                return Ok(GenerateAnswer {
                    prefill,
                    tokens,
                    top_tokens: tops,
                    generated,
                    input_length: self.input_length,
                    prompt_ids: self.prompt_ids.clone(),
                    healed: self.healed.clone(),
                    instants,
                    finished: Instant::now(),
                    cached_tokens,
                    class_logits: std::mem::take(&mut self.class_logits),
                });
            }
        }
        Err(InferError::IncompleteGeneration)
    }

    /// Nothing more is wanted of the batcher: where the request still runs, it is left out of the next step.
    fn end(&mut self) {
        self.ended = true;
        self.events.close();
    }

    fn fail(&mut self, error: InferError) -> InferError {
        self.outcome = Outcome::from(&error);
        self.end();
        self.meter.failure(&error);
        error
    }
}

/// A stop string tells more than the length limit that the same token reached; an end-of-sequence token more than both.
fn finish_reason(batcher: Option<FinishReason>, stopped: bool) -> Option<FinishReason> {
    match batcher {
        Some(FinishReason::EosToken) => Some(FinishReason::EosToken),
        _ if stopped => Some(FinishReason::StopSequence),
        other => other,
    }
}

impl Stream for GenerateStream {
    type Item = Result<StreamEvent, InferError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        loop {
            if let Some(event) = stream.pending.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if stream.ended {
                return Poll::Ready(None);
            }
            let Poll::Ready(event) = stream.events.poll_recv(context) else {
                ready!(stream.guard.cut.as_mut().poll(context));
                return Poll::Ready(Some(Err(stream.fail(InferError::ShuttingDown))));
            };
            let error = match event {
                Some(Event::Started(started)) => {
                    stream.instants.started = started.at;
                    stream.cached_tokens = started.cached_tokens;
                    continue;
                }
                Some(Event::Step(generation)) => {
                    stream.assemble(generation);
                    continue;
                }
                Some(Event::Failed(error)) => error,
                None => InferError::IncompleteGenerationStream,
            };
            return Poll::Ready(Some(Err(stream.fail(error))));
        }
    }
}

/// Whoever follows the request is told here, for a client may go at any time.
impl Drop for GenerateStream {
    fn drop(&mut self) {
        let finished = matches!(self.outcome, Outcome::Finished(_));
        let last = self.last_step.filter(|_| finished);
        self.observed.ended(|| GenerationRecord {
            index: self.index,
            input_length: self.input_length,
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated_tokens,
            max_new_tokens: self.max_new_tokens,
            instants: self.instants,
            first_token: self.first_step,
            ended: last.unwrap_or_else(Instant::now),
            outcome: self.outcome,
        });
    }
}

impl fmt::Debug for GenerateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateStream")
            .field("index", &self.index)
            .field("input_length", &self.input_length)
            .field("generated_tokens", &self.generated_tokens)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
