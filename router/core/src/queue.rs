//! Requests that wait for a row and slots: those of one tenant in the order of their priority and of their arrival,
//! tenants in turn.

pub(crate) mod turns;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;
use text_generation_client::types::{RequestId, TokenId};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use self::turns::{InTurn, Turns};
use crate::error::InferError;
use crate::grammar::Constraint;
use crate::kv_pool::{Keys, RootKey};
use crate::media::MediaLock;
use crate::metrics::{AdapterLoad, AdapterMetrics};
use crate::permit::PermitHalf;
use crate::policy::Order;
use crate::standing::Standing;
use crate::tenant::Tenant;
use crate::types::{FinishReason, Speculated};
use crate::validation::ValidRequest;

/// One step of priority is worth as much as so many milliseconds of waiting, so nobody waits for ever.
const PRIORITY_STEP_MS: i64 = 10_000;

/// What the batcher tells the task of a request. A sender that is dropped without a finished generation or `Failed`
/// means that the batcher is gone.
#[derive(Debug)]
pub(crate) enum Event {
    /// The first step that computes the request was sent.
    Started(Started),
    /// Its tokens of one step.
    Step(Generation),
    /// Nothing follows.
    Failed(InferError),
}

/// How a request started; again where the shards were lost before its first token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started {
    pub(crate) at: Instant,
    /// Tokens of the prompt that were found in the prefix tree.
    pub(crate) cached_tokens: u32,
}

/// The tokens that one step brought for one request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Generation {
    /// The prompt with its log-probabilities, once, before the first token.
    pub(crate) prompt: Option<Arc<[PromptToken]>>,
    /// What a classifier made of the prompt; empty: the model generates.
    pub(crate) class_logits: Box<[f32]>,
    /// In place: nearly always one, which goes from one thread to another without an allocation.
    pub(crate) tokens: SmallVec<[TokenId; 1]>,
    /// One list for each token of `tokens`, or empty.
    pub(crate) top_tokens: Vec<Vec<TokenId>>,
    /// Set with the last token.
    pub(crate) finish: Option<FinishReason>,
    /// Of all its steps so far.
    pub(crate) speculated: Speculated,
    /// Set where it is the whole text of a beam.
    pub(crate) beam_score: Option<f32>,
}

/// A token of the prompt, with the most likely ones in its place where they were asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptToken {
    pub(crate) token: TokenId,
    pub(crate) top_tokens: Vec<TokenId>,
}

/// Log-probabilities of one prompt: one sample of a request computes them for all.
pub(crate) type PromptLogprobs = Arc<OnceLock<Arc<[PromptToken]>>>;

/// The client's side of one generation.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) events: UnboundedSender<Event>,
    /// Set before `events` is closed where a stop string ended the text, and not for another reason.
    pub(crate) stopped: Arc<AtomicBool>,
    pub(crate) permit: Option<PermitHalf>,
    /// Tokens that it has already: those of a beam.
    pub(crate) written: Vec<u32>,
    pub(crate) constraint: Option<Constraint>,
}

/// One generation that waits, fresh or paused. Its client has gone, or wants no more tokens, when the receiver of
/// `events` is closed.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) order: Order,
    pub(crate) request: Arc<ValidRequest>,
    pub(crate) root: RootKey,
    pub(crate) seed: u64,
    /// The prompt, then the tokens generated so far.
    pub(crate) ids: Vec<u32>,
    pub(crate) generated: u32,
    pub(crate) events: UnboundedSender<Event>,
    /// As in [`Sample`].
    pub(crate) stopped: Arc<AtomicBool>,
    pub(crate) queued: Instant,
    /// It ran before: [`Event::Started`] was sent.
    pub(crate) started: bool,
    /// What was found in the cache is lost, and nothing was made of it: what is found the next time counts instead.
    pub(crate) looks_again: bool,
    /// Given back when the generation ends, also where its client does not take the end. A probe has none.
    pub(crate) _permit: Option<PermitHalf>,
    /// Counts it among the requests of its adapter, if it has one.
    pub(crate) load: Option<AdapterLoad>,
    /// Set where they were asked for.
    pub(crate) logprobs: Option<PromptLogprobs>,
    /// Images that it still reads, on the shards or on their way.
    pub(crate) media: Vec<MediaLock>,
    /// Where it stands in its grammar, if it has one; not here while worker threads take a token to it.
    pub(crate) constraint: Option<Constraint>,
    /// It had something to write, which is written: any token may come.
    pub(crate) spent: bool,
    /// Since the shards were lost last.
    pub(crate) standing: Standing,
    /// Of all its steps so far.
    pub(crate) speculated: Speculated,
}

impl Entry {
    /// What is held against it now.
    pub(crate) fn standing(&self) -> Standing {
        self.standing.now(self.generated)
    }

    /// Nothing else may be the reason if the shards are lost while it is computed.
    pub(crate) fn is_suspect(&self) -> bool {
        matches!(self.standing(), Standing::Suspect { .. })
    }

    /// The tokens that must come next, as far as its grammar says it.
    pub(crate) fn forced(&self) -> &[u32] {
        self.constraint.as_ref().map_or(&[], Constraint::forced)
    }

    /// Whether its tokens are chosen by masks.
    pub(crate) fn is_constrained(&self) -> bool {
        self.request.is_constrained() && !self.spent
    }

    /// Where it stands in what it follows, after another token; nothing is kept where any token may come.
    pub(crate) fn follow(&mut self, constraint: Constraint) {
        self.spent = constraint.is_spent();
        self.constraint = Some(constraint).filter(|_| !self.spent);
    }

    /// It runs from now on, or waits, in the gauges of its adapter.
    pub(crate) fn count_running(&mut self, running: bool) {
        if let Some(load) = &mut self.load {
            load.set_running(running);
        }
    }

    /// Whose it is.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.request.tenant
    }

    /// Those of its ids that it need not compute where they are in the prefix tree: all but the last, because its
    /// successor is wanted, and none from the one on that predicts the first whose log-probability is.
    pub(crate) fn cacheable(&self) -> Keys<'_> {
        let before = self.ids.len().saturating_sub(1);
        self.keys(match self.computes_logprobs() {
            true => before.min(self.request.logprobs_from.saturating_sub(1)),
            false => before,
        })
    }

    /// Of its first `count` ids, as the prefix tree compares them.
    pub(crate) fn keys(&self, count: usize) -> Keys<'_> {
        Keys::new(&self.request.media.keys, &self.ids).until(count)
    }

    /// Whether it must compute its whole prompt, because nobody has its log-probabilities.
    pub(crate) fn computes_logprobs(&self) -> bool {
        self.logprobs
            .as_ref()
            .is_some_and(|logprobs| logprobs.get().is_none())
    }

    /// Whether both are samples of one request that want the log-probabilities of their prompt.
    pub(crate) fn shares_logprobs(&self, other: &Self) -> bool {
        match (&self.logprobs, &other.logprobs) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Queue {
    entries: BTreeMap<Order, Entry>,
    /// Whose turn it is among the tenants of the entries.
    pub(crate) turns: Turns,
    next_id: u64,
    adapters: AdapterMetrics,
    /// Where times in [`Order`] count from.
    epoch: Instant,
}

impl Queue {
    pub(crate) fn new(adapters: AdapterMetrics) -> Self {
        Self {
            entries: BTreeMap::new(),
            turns: Turns::default(),
            next_id: 0,
            adapters,
            epoch: Instant::now(),
        }
    }

    /// One generation for each of `samples`, with the seeds that [`ValidRequest::seed`] gives them. They have waited since
    /// `since`, or begin to.
    pub(crate) fn push(
        &mut self,
        request: ValidRequest,
        samples: Vec<Sample>,
        since: Option<Instant>,
    ) {
        let queued = since.unwrap_or_else(Instant::now);
        let arrival = i64::try_from((queued - self.epoch).as_millis()).unwrap_or(i64::MAX);
        let priority = i64::from(request.priority).saturating_mul(PRIORITY_STEP_MS);
        let root = RootKey {
            adapter: request.adapter_generation(),
            salt: request.cache_salt.clone(),
        };
        let logprobs = request.prefill_logprobs.then(PromptLogprobs::default);
        let request = Arc::new(request);
        for (index, sample) in (0..).zip(samples) {
            let order = Order {
                due: arrival.saturating_add(priority),
                sequence: self.next_id,
            };
            let mut ids = request.input_ids.to_vec();
            ids.extend(&sample.written);
            let generated = u32::try_from(sample.written.len()).unwrap_or(u32::MAX);
            let entry = Entry {
                id: RequestId(self.next_id),
                order,
                root: root.clone(),
                seed: request.seed(index),
                ids,
                generated,
                events: sample.events,
                stopped: sample.stopped,
                _permit: sample.permit,
                queued,
                started: generated > 0,
                looks_again: false,
                load: request
                    .adapter
                    .as_deref()
                    .map(|adapter| self.adapters.count(&adapter.name)),
                logprobs: logprobs.clone(),
                media: Vec::new(),
                constraint: sample.constraint,
                spent: false,
                standing: Standing::default(),
                speculated: Speculated::default(),
                request: request.clone(),
            };
            self.next_id += 1;
            self.insert(entry);
        }
    }

    /// A request that ran waits again, where it stood.
    pub(crate) fn put_back(&mut self, mut entry: Entry) {
        entry.count_running(false);
        self.insert(entry);
    }

    fn insert(&mut self, entry: Entry) {
        self.turns.join(entry.tenant(), entry.order);
        self.entries.insert(entry.order, entry);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops the samples whose client has gone. They are counted where the client's end is dropped.
    pub(crate) fn drop_gone(&mut self) {
        self.retain(|entry| !entry.events.is_closed());
    }

    /// Ends the requests that have waited longer than `limit` and never ran.
    pub(crate) fn fail_late(&mut self, limit: Duration) {
        self.retain(|entry| {
            let late = !entry.started && entry.queued.elapsed() > limit;
            if late {
                // The client may have gone.
                let _ = entry
                    .events
                    .send(Event::Failed(InferError::QueueTime(limit)));
            }
            !late
        });
    }

    /// Ends those that `fails` names.
    pub(crate) fn fail_where(&mut self, fails: impl Fn(&Entry) -> bool, error: &InferError) {
        self.retain(|entry| {
            let fails = fails(entry);
            if fails {
                // The client may have gone.
                let _ = entry.events.send(Event::Failed(error.clone()));
            }
            !fails
        });
    }

    fn retain(&mut self, mut stays: impl FnMut(&Entry) -> bool) {
        let turns = &mut self.turns;
        self.entries.retain(|_, entry| {
            let stays = stays(entry);
            if !stays {
                turns.leave(entry.tenant(), entry.order);
            }
            stays
        });
    }

    /// All that wait, in turn.
    pub(crate) fn in_turn(&self) -> InTurn<'_> {
        self.turns.in_turn()
    }

    pub(crate) fn get(&self, order: Order) -> Option<&Entry> {
        self.entries.get(&order)
    }

    pub(crate) fn get_mut(&mut self, order: Order) -> Option<&mut Entry> {
        self.entries.get_mut(&order)
    }

    pub(crate) fn take(&mut self, order: Order) -> Option<Entry> {
        let entry = self.entries.remove(&order)?;
        self.turns.leave(entry.tenant(), order);
        Some(entry)
    }
}
