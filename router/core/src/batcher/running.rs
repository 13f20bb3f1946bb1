//! A request that owns a row: what the shards were asked to compute of it, and what came back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use text_generation_client::types::{Chunk, Drafted, Hint, PromptScores, Request, Row, TokenId};

use super::drafting::Drafting;
use crate::grammar::Constraint;
use crate::hints::Answers;
use crate::kv_pool::{Holding, KvPool};
use crate::media::MediaStage;
use crate::policy;
use crate::policy::peak::Demand;
use crate::queue::{Entry, Event, Generation, PromptToken};
use crate::types::FinishReason;

/// A request that owns a row.
#[derive(Debug)]
pub(super) struct RunningEntry {
    pub(super) entry: Entry,
    pub(super) holding: Holding,
    /// The plan that gave it its row: replies to earlier ones are those of the row's last owner.
    pub(super) since: u64,
    /// Its ids when it started: they are computed as a prompt.
    prompt: u32,
    /// Positions whose K and V are computed by the plans that were sent.
    computed: u32,
    /// Tokens that plans were sent for and that have not come back: one for each plan.
    in_flight: u32,
    /// What these plans may bring beyond that, where their windows are wider.
    in_windows: u32,
    drafting: Drafting,
    /// It leaves as soon as nothing of it is in flight.
    pausing: bool,
    /// What has come of the prompt's log-probabilities, where this request computes them.
    scored: Option<Vec<PromptToken>>,
    /// What a classifier made of it; empty: nothing.
    class_logits: Box<[f32]>,
}

impl RunningEntry {
    /// `since`: the number of the plan that brings it.
    pub(super) fn new(mut entry: Entry, holding: Holding, since: u64, answers: &Answers) -> Self {
        entry.count_running(true);
        let first = |&id: &u32| PromptToken {
            token: TokenId {
                id,
                logprob: f32::NAN,
            },
            top_tokens: Vec::new(),
        };
        let request = entry.request.clone();
        Self {
            prompt: length(&entry),
            computed: holding.cached(),
            in_flight: 0,
            in_windows: 0,
            drafting: Drafting::new(&entry, answers.are_kept()),
            pausing: false,
            // Nothing predicts the first token.
            scored: entry.computes_logprobs().then(|| {
                let wanted = entry.ids.first().filter(|_| request.logprobs_from == 0);
                wanted.map(first).into_iter().collect()
            }),
            class_logits: Box::default(),
            entry,
            holding,
            since,
        }
    }

    /// As the shards get to know it, in the row that it owns, with the number of its adapter.
    pub(super) fn as_request(&self, row: Row, adapter: u32) -> Request {
        let request = &self.entry.request;
        let mut chooser = request.chooser.clone();
        chooser.seed = self.entry.seed;
        Request {
            id: self.entry.id,
            row,
            input_ids: self.entry.ids.clone(),
            num_generated: self.entry.generated,
            cached_length: self.computed,
            slots: self.holding.slots().to_vec(),
            chooser,
            top_n_tokens: request.top_n_tokens,
            prefill_logprobs: self.scored.is_some(),
            media: MediaStage::spans(&request.media, &self.entry.media),
            adapter,
            max_new_tokens: request.stopping.max_new_tokens,
        }
    }

    /// Its client wants no more tokens.
    pub(super) fn is_unwanted(&self) -> bool {
        self.entry.events.is_closed()
    }

    /// It waits for its last tokens to come back, and leaves.
    pub(super) fn is_pausing(&self) -> bool {
        self.pausing
    }

    pub(super) fn pause(&mut self) {
        self.pausing = true;
    }

    /// Nothing of it is in flight: it can leave its row and wait again.
    pub(super) fn has_paused(&self) -> bool {
        self.pausing && self.in_flight == 0
    }

    /// The next of its tokens is the only one in flight, so what its grammar allows there is known.
    pub(super) fn awaits_one_token(&self) -> bool {
        self.in_flight == 1
    }

    /// No token may follow the next `count`.
    pub(super) fn are_last(&self, count: u32) -> bool {
        self.entry.generated.saturating_add(count) >= self.entry.request.stopping.max_new_tokens
    }

    /// What the shards draft behind these tokens, which have come and are not accepted yet.
    pub(super) fn drafts_behind(&self, tokens: &[TokenId]) -> &[u32] {
        self.drafting
            .drafts_behind(tokens.iter().map(|token| token.id))
    }

    /// Its tokens have come to what chooses them, which may be nothing from now on.
    pub(super) fn follow(&mut self, constraint: Constraint) {
        self.entry.follow(constraint);
        if !self.entry.is_constrained() {
            self.drafting.set_free();
        }
    }

    /// Its ids and the tokens in flight.
    fn length(&self) -> u32 {
        length(&self.entry).saturating_add(self.in_flight)
    }

    fn tokens_left(&self) -> u32 {
        let max = self.entry.request.stopping.max_new_tokens;
        max.saturating_sub(self.entry.generated.saturating_add(self.in_flight))
    }

    /// Positions whose K and V are computed by the plans that were sent.
    pub(super) fn computed(&self) -> u32 {
        self.computed
    }

    /// Slots that it would need if it ran to `max_new_tokens`.
    pub(super) fn longest(&self) -> u64 {
        let longest = self.length().saturating_add(self.tokens_left());
        u64::from(longest.saturating_sub(1))
    }

    /// A stop string ended its text.
    pub(super) fn was_stopped(&self) -> bool {
        self.entry.stopped.load(Ordering::Acquire)
    }

    pub(super) fn prompt_left(&self) -> u32 {
        self.prompt.saturating_sub(self.computed)
    }

    /// The most slots that it can still use beyond those it holds. The last token needs none.
    pub(super) fn slots_left(&self) -> u32 {
        let most = self.length().saturating_add(self.tokens_left());
        most.saturating_sub(1).saturating_sub(self.holding.len())
    }

    /// Slots that it needs beyond those it holds for a window of `width` tokens, however many of those in flight count.
    pub(super) fn lacking_slots(&self, width: u32) -> u32 {
        let reached = self
            .length()
            .saturating_add(self.in_windows)
            .saturating_add(width - 1);
        let most = self.holding.len().saturating_add(self.slots_left());
        reached
            .min(most.max(self.length()))
            .saturating_sub(self.holding.len())
    }

    pub(super) fn for_policy(&self) -> policy::Running {
        let decodes = self.prompt_left() == 0 && self.tokens_left() > 0;
        policy::Running {
            served: 0,
            order: self.entry.order,
            computed: self.computed,
            prompt_left: self.prompt_left(),
            decodes,
            lacks_slot: decodes && self.lacking_slots(1) > 0,
            ahead: self.ahead(),
            drafts: self.drafting.share(self.in_flight, self.entry.forced()),
            demand: Demand {
                slots: self.own_slots().saturating_sub(self.ahead()),
                generated: self.entry.generated,
                left: self.tokens_left(),
            },
        }
    }

    /// What the shards must be told, with a plan that brings it a token, of where its text may go on, where windows have at
    /// most `widest` tokens.
    pub(super) fn hint(&mut self, row: Row, widest: u32, answers: &Answers) -> Option<Hint> {
        if widest == 1 {
            return None;
        }
        let coming = self.in_flight.saturating_sub(1);
        let ids = self.drafting.hint(widest, coming, &self.entry, answers)?;
        let at = length(&self.entry);
        Some(Hint { row, at, ids })
    }

    /// Its text is whole: it may tell how later ones go on.
    pub(super) fn keep_answer(&self, answers: &mut Answers) {
        let prompt = self
            .entry
            .ids
            .len()
            .saturating_sub(self.entry.generated as usize);
        self.drafting
            .keep(self.entry.ids.get(prompt..).unwrap_or_default(), answers);
    }

    /// Slots that it holds for tokens that no plan computes yet.
    fn ahead(&self) -> u32 {
        let reached = self.length().saturating_add(self.in_windows);
        self.holding.len().saturating_sub(reached)
    }

    /// It is asked for the log-probabilities of its prompt, and has not handed them out yet.
    pub(super) fn scores_prompt(&self) -> bool {
        self.scored.is_some()
    }

    /// Slots that it did not find in the cache: free when it leaves, where nobody else reads them by then.
    pub(super) fn own_slots(&self) -> u32 {
        self.holding.len().saturating_sub(self.holding.cached())
    }

    /// As many of its next `count` positions as do not end within the span of an image. Where all of them do, to the end
    /// of the span if `may_extend`, else none.
    pub(super) fn whole_spans(&self, count: u32, may_extend: bool) -> u32 {
        let (first, end) = (self.computed, self.computed + count);
        let mut spans = self.entry.request.media.spans.iter();
        let cut = spans.find(|span| (span.first + 1..span.first + span.length).contains(&end));
        match cut {
            None => count,
            Some(span) if span.first > first => span.first - first,
            Some(span) if may_extend => span.first + span.length - first,
            Some(_) => 0,
        }
    }

    /// Its next `count` positions are computed, and with the last of the prompt a token.
    pub(super) fn chunk(&mut self, row: Row, count: u32) -> Chunk {
        let first = self.computed;
        self.computed += count;
        if self.prompt_left() == 0 {
            self.in_flight += 1;
            // Whatever writes these rows again is computed after this.
            self.entry.media.clear();
        }
        Chunk { row, first, count }
    }

    /// One more token is computed, or a window of `width`.
    pub(super) fn decode(&mut self, width: u32) {
        self.computed += 1;
        self.in_flight += 1;
        self.in_windows += width - 1;
    }

    /// A window of `width` tokens came back, and `count` of them are the row's; 0 only where it had ended before. The
    /// tokens follow by [`RunningEntry::accept`].
    pub(super) fn landed(&mut self, width: u32, count: u32, drafts: Option<Drafted>) {
        self.in_windows = self.in_windows.saturating_sub(width - 1);
        let more = count.saturating_sub(1);
        self.computed += more;
        self.in_flight += more;
        if let Some(drafts) = drafts {
            self.drafting.observe(width, drafts);
            self.entry.speculated.add(count, drafts);
        }
    }

    /// What the plans so far compute may be read by others from the next plan on, which runs after them.
    pub(super) fn share(&mut self, pool: &mut KvPool) {
        let known = self.known();
        pool.commit(&mut self.holding, self.entry.keys(known));
    }

    /// It leaves its row; what was computed of it stays in the prefix tree.
    pub(super) fn leave(mut self, pool: &mut KvPool) -> Entry {
        let known = self.known();
        pool.close(self.holding, self.entry.keys(known));
        self.entry.media.clear();
        self.entry
    }

    /// How many of its ids have K and V.
    fn known(&self) -> usize {
        self.entry.ids.len().min(self.computed as usize)
    }

    /// Log-probabilities of a part of its prompt came.
    pub(super) fn score(&mut self, scores: PromptScores) {
        let Some(scored) = &mut self.scored else {
            return;
        };
        let mut tops = scores.top_tokens.into_iter().peekable();
        for (index, logprob) in scores.logprobs.into_iter().enumerate() {
            let place = scores.first as usize + 1 + index;
            let Some(&id) = self.entry.ids.get(place) else {
                return;
            };
            let top = tops.next_if(|top| top.index == index);
            if place < self.entry.request.logprobs_from {
                continue;
            }
            scored.push(PromptToken {
                token: TokenId { id, logprob },
                top_tokens: top.map_or(Vec::new(), |top| top.tokens),
            });
        }
    }

    /// Logits of classes came, or none.
    pub(super) fn classify(&mut self, logits: &[f32]) {
        self.class_logits = logits.into();
    }

    /// The tokens of a step came: they go to the client. Returns whether the last of them was the last of all, because it
    /// `ends` the text or no more are permitted. `top_tokens` has a list for each token, or none.
    pub(super) fn accept(
        &mut self,
        tokens: SmallVec<[TokenId; 1]>,
        top_tokens: Vec<Vec<TokenId>>,
        ends: bool,
    ) -> bool {
        let entry = &mut self.entry;
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let is_first = entry.generated == 0;
        self.in_flight = self.in_flight.saturating_sub(count);
        let ids = tokens.iter().map(|token| token.id);
        self.drafting.push(ids.clone());
        entry.ids.extend(ids);
        entry.generated += count;
        entry.tenant().count_generated(count);
        let max_new_tokens = entry.request.stopping.max_new_tokens;
        let finish = if ends {
            Some(FinishReason::EosToken)
        } else {
            (entry.generated >= max_new_tokens).then_some(FinishReason::Length)
        };
        let prompt = if is_first {
            prompt_logprobs(entry, self.scored.take())
        } else {
            None
        };
        let generation = Generation {
            prompt,
            class_logits: std::mem::take(&mut self.class_logits),
            tokens,
            top_tokens,
            finish,
            speculated: entry.speculated,
            beam_score: None,
        };
        // A closed channel is noticed when the next step is planned.
        let _ = entry.events.send(Event::Step(generation));
        finish.is_some()
    }
}

/// What goes to the client before its first token. All samples of a request get what the first of them computed.
fn prompt_logprobs(entry: &Entry, scored: Option<Vec<PromptToken>>) -> Option<Arc<[PromptToken]>> {
    let logprobs = entry.logprobs.as_ref()?;
    Some(match scored {
        Some(scored) => logprobs.get_or_init(|| scored.into()).clone(),
        None => logprobs.get()?.clone(),
    })
}

fn length(entry: &Entry) -> u32 {
    // The input was validated against a limit of 32 bits.
    u32::try_from(entry.ids.len()).unwrap_or(u32::MAX)
}
