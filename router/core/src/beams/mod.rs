//! Beam search, above the batcher: the search of a request asks it for one more token of each of its texts, step by step.
//!
//! A beam is no row that goes on. Each step queues every beam as a request that has paused: its ids are the prompt and what
//! the beam has, the prefix tree has K and V of all but the last, and one token is the most that it may get. So beams share
//! what they begin with without copies, one that is given up costs nothing more, and the shards know nothing of beams. It
//! costs a place in the queue, an admission and a chunk of one token for each beam in each step, where a request that
//! decodes costs a row of a decode; and the search waits for each step where decodes have the next one on its way.

mod search;

use std::sync::Arc;

use futures::future::join_all;
use text_generation_client::types::TokenId;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

pub(crate) use self::search::wanted;
use self::search::{Found, Search, Terms};
use crate::assemble::TextAssembler;
use crate::batcher::{BatcherHandle, Submitted};
use crate::error::InferError;
use crate::permit::PermitHalf;
use crate::queue::{Event, Generation, PromptToken, Started};
use crate::stream::StreamGuard;
use crate::types::{Beams, Speculated};
use crate::validation::ValidRequest;

/// What a search holds as long as it runs: a permit for each beam, of which its streams have the other halves.
pub(crate) type Held = (Vec<StreamGuard>, Vec<PermitHalf>);

/// The search of one request.
pub(crate) struct BeamSearch {
    batcher: BatcherHandle,
    request: ValidRequest,
    search: Search,
    /// When its client's request came: so old are all that it queues.
    since: Instant,
    /// Of the prompt, where its log-probabilities were asked for.
    prompt: Option<Arc<[PromptToken]>>,
    /// One for each text that is wanted.
    listeners: Vec<UnboundedSender<Event>>,
    _held: Held,
}

impl BeamSearch {
    /// `eos` end a text; `assembler` finds the stop strings, where there are any.
    pub(crate) fn new(
        batcher: BatcherHandle,
        request: ValidRequest,
        beams: Beams,
        eos: Arc<[u32]>,
        assembler: Option<TextAssembler>,
        held: Held,
    ) -> Self {
        let stopping = &request.stopping;
        let search = Search::new(Terms {
            beams,
            eos,
            stops: stopping.stop_token_ids.clone(),
            min_tokens: request.chooser.min_new_tokens,
            max_tokens: stopping.max_new_tokens,
            top_n_tokens: request.top_n_tokens,
            assembler,
        });
        Self {
            batcher,
            request,
            search,
            since: Instant::now(),
            prompt: None,
            listeners: Vec::new(),
            _held: held,
        }
    }

    /// Searches in a task of its own. Returns the ends where the best `count` texts come out, each at once; the task ends
    /// when nobody wants any of them any more.
    pub(crate) fn start(mut self, count: usize) -> Vec<Submitted> {
        let submitted = (0..count).map(|_| {
            let (sender, submitted) = Submitted::channel();
            self.listeners.push(sender);
            submitted
        });
        let submitted = submitted.collect();
        tokio::spawn(self.run());
        submitted
    }

    async fn run(mut self) {
        let listeners = self.listeners.clone();
        let gone = join_all(listeners.iter().map(UnboundedSender::closed));
        tokio::select! {
            biased;
            _ = gone => {}
            found = self.find() => self.tell(found),
        }
    }

    async fn find(&mut self) -> Result<(), InferError> {
        loop {
            let steps = self.batcher.submit_steps(
                self.step_of_request(),
                self.search.texts(),
                self.since,
            )?;
            let mut next = Vec::with_capacity(steps.len());
            for step in steps {
                next.push(self.alternatives(step).await?);
            }
            if !self.search.step(&next) {
                return Ok(());
            }
        }
    }

    /// The request as it is queued for its next step.
    fn step_of_request(&self) -> ValidRequest {
        let mut request = self.request.clone();
        let length = self.search.length();
        request.stopping.max_new_tokens = length.saturating_add(1);
        request.top_n_tokens = self.search.wanted();
        // The search itself sees to it; the scores of the tokens that may come stay what they are.
        request.chooser.min_new_tokens = 0;
        if length > 0 {
            request.prefill_logprobs = false;
            // Each step is a chunk of a prompt to the shards: a trace would have nothing else.
            request.trace_link = None;
        }
        request
    }

    /// The most likely next tokens of one beam.
    async fn alternatives(&mut self, mut step: Submitted) -> Result<Vec<TokenId>, InferError> {
        loop {
            match step.events.recv().await {
                Some(Event::Started(started)) => self.started(started),
                Some(Event::Step(mut generation)) => {
                    self.prompt = self.prompt.take().or(generation.prompt);
                    let last = generation.top_tokens.pop();
                    return last.ok_or_else(|| {
                        let message = "the shards gave no alternatives to a token";
                        InferError::Generation(message.to_owned())
                    });
                }
                Some(Event::Failed(error)) => return Err(error),
                None => return Err(InferError::IncompleteGeneration),
            }
        }
    }

    /// A step has started: the first one, for all others are queued as if they had before.
    fn started(&self, started: Started) {
        for listener in &self.listeners {
            // Its client may have gone, here as below.
            let _ = listener.send(Event::Started(started));
        }
    }

    /// Hands out the texts, or why there are none.
    fn tell(&self, searched: Result<(), InferError>) {
        let (texts, error) = match searched {
            Ok(()) => {
                let texts = self.search.found(self.listeners.len());
                (texts, InferError::IncompleteGeneration)
            }
            Err(error) => (Vec::new(), error),
        };
        let mut texts = texts.into_iter();
        for listener in &self.listeners {
            let _ = match texts.next() {
                Some(found) => listener.send(Event::Step(self.whole(found))),
                None => listener.send(Event::Failed(error.clone())),
            };
        }
    }

    /// A text as one step that brings all of it.
    fn whole(&self, found: Found) -> Generation {
        Generation {
            prompt: self.prompt.clone(),
            tokens: found.tokens.into(),
            top_tokens: found.top_tokens,
            finish: found.finish,
            speculated: Speculated::default(),
            beam_score: Some(found.score),
            class_logits: Box::default(),
        }
    }
}
