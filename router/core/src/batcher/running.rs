//! The requests that own a row, and the slots they hold. Samples of one prompt share its slots.

use std::collections::HashMap;
use std::time::Instant;

use text_generation_client::types::{Copy, Generation, Grant, Request, SlotRange};
use tokio::sync::mpsc::UnboundedSender;

use crate::alloc::SlotAllocator;
use crate::budget::{self, Demand};
use crate::queue::{Entry, Event, Sample};

/// The pool cannot give what the admission estimate promised.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfSlots;

/// A request that owns a row.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) demand: Demand,
    pub(super) events: UnboundedSender<Event>,
    /// What no other request reads.
    slots: Vec<SlotRange>,
    /// Key of the prompt that it shares.
    prompt: Option<u64>,
}

/// A prompt that several requests read. Its slots are in use until the last of them has ended.
#[derive(Debug)]
struct Prompt {
    slots: Vec<SlotRange>,
    length: u32,
    /// Those still running; the demand of the first carries the prompt.
    samples: Vec<u64>,
}

/// All running requests, by id, and the pool they draw from.
#[derive(Debug)]
pub(super) struct Running {
    pool: SlotAllocator,
    members: HashMap<u64, Member>,
    /// By the id of the request that brought it.
    prompts: HashMap<u64, Prompt>,
}

impl Running {
    /// `capacity`: slots of the pool.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            pool: SlotAllocator::new(capacity),
            members: HashMap::new(),
            prompts: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.members.keys().copied()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.members.contains_key(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Member> {
        self.members.get_mut(&id)
    }

    pub(super) fn demands(&self) -> impl Iterator<Item = Demand> + Clone + '_ {
        self.members.values().map(|member| member.demand)
    }

    pub(super) fn slots_used(&self) -> u32 {
        self.pool.capacity() - self.pool.available()
    }

    /// Slots that may be granted early beside those that `joining` will need. `left` slots are still to be freed.
    pub(super) fn surplus(
        &self,
        joining: impl Iterator<Item = Demand> + Clone,
        left: &[SlotRange],
    ) -> u32 {
        let left: u32 = left.iter().map(|range| range.length).sum();
        budget::surplus(self.demands().chain(joining), self.pool.capacity() - left)
    }

    /// Gives the samples of an entry slots for prompt and first steps, with runs out of `surplus`, and makes them
    /// running. Its events start with `started`. When the pool has too few, the samples come back.
    pub(super) fn admit(
        &mut self,
        entry: Entry,
        surplus: &mut u32,
        started: Instant,
    ) -> Result<Request, Vec<Sample>> {
        let candidate = entry.candidate();
        let mut demands: Vec<Demand> = candidate.demands().collect();
        for demand in &mut demands {
            demand.held += demand.run(surplus);
        }
        let total: u64 = demands.iter().map(|demand| u64::from(demand.held)).sum();
        if total > u64::from(self.pool.available()) {
            return Err(entry.samples);
        }
        let Entry {
            request, samples, ..
        } = entry;
        let shared = (samples.len() > 1).then(|| samples.first().map_or(0, |first| first.id));
        let mut prompt = Prompt {
            slots: Vec::new(),
            length: candidate.input_length,
            samples: samples.iter().map(|sample| sample.id).collect(),
        };
        let mut request = shard_request(request);
        for (index, (sample, demand)) in samples.into_iter().zip(demands).enumerate() {
            let Sample { id, seed, events } = sample;
            // There are enough of them.
            let slots = self.pool.allocate(demand.held).unwrap_or_default();
            let mut own = slots.clone();
            if index > 0 {
                request.copies.push(Copy { id, seed, slots });
            } else {
                if shared.is_some() {
                    (prompt.slots, own) = split(&slots, candidate.input_length);
                }
                (request.id, request.chooser.seed, request.slots) = (id, seed, slots);
            }
            // The client may have gone, here as everywhere.
            let _ = events.send(Event::Started(started));
            let member = Member {
                demand,
                events,
                slots: own,
                prompt: shared,
            };
            self.members.insert(id, member);
        }
        if let Some(key) = shared {
            self.prompts.insert(key, prompt);
        }
        Ok(request)
    }

    /// More slots for a request that would run short within the next steps.
    pub(super) fn grant(
        &mut self,
        id: u64,
        surplus: &mut u32,
    ) -> Result<Option<Grant>, OutOfSlots> {
        let Some(member) = self.members.get_mut(&id) else {
            return Ok(None);
        };
        let count = member.demand.grant(surplus);
        if count == 0 {
            return Ok(None);
        }
        let slots = self.pool.allocate(count).ok_or(OutOfSlots)?;
        member.demand.held += count;
        member.slots.extend(&slots);
        Ok(Some(Grant {
            request_id: id,
            slots,
        }))
    }

    /// Takes a request out. Its slots are returned, with those of its prompt when nobody else reads it; they are not
    /// free before [`Running::free`].
    pub(super) fn remove(&mut self, id: u64) -> Vec<SlotRange> {
        let Some(member) = self.members.remove(&id) else {
            return Vec::new();
        };
        let mut slots = member.slots;
        let Some((key, prompt)) = member
            .prompt
            .and_then(|key| Some((key, self.prompts.get_mut(&key)?)))
        else {
            return slots;
        };
        let carried = prompt.samples.first() == Some(&id);
        prompt.samples.retain(|&sample| sample != id);
        match prompt.samples.first() {
            None => {
                slots.extend(&prompt.slots);
                self.prompts.remove(&key);
            }
            Some(heir) if carried => {
                if let Some(heir) = self.members.get_mut(heir) {
                    heir.demand.carry(prompt.length);
                }
            }
            Some(_) => {}
        }
        slots
    }

    pub(super) fn free(&mut self, slots: &[SlotRange]) {
        if let Err(error) = self.pool.free(slots) {
            tracing::error!(%error, "a request gave back slots that it did not hold");
        }
    }

    /// A decode brought its tokens: from now on each brings one for every request.
    pub(super) fn caught_up(&mut self) {
        for member in self.members.values_mut() {
            member.demand.lag = 0;
        }
    }

    /// Gives the log-probabilities of a shared prompt, which come with one of its samples, to the others.
    pub(super) fn share_prompts(&self, generations: &mut [Generation]) {
        let key = |generation: &Generation| self.members.get(&generation.request_id)?.prompt;
        let computed: HashMap<u64, _> = generations
            .iter()
            .filter_map(|generation| Some((key(generation)?, generation.prefill_tokens.clone()?)))
            .collect();
        for generation in generations {
            if generation.prefill_tokens.is_none()
                && let Some(key) = key(generation)
            {
                generation.prefill_tokens = computed.get(&key).cloned();
            }
        }
    }
}

/// The request without what belongs to its first sample.
fn shard_request(request: crate::validation::ValidRequest) -> Request {
    Request {
        id: 0,
        input_ids: request.input_ids.to_vec(),
        chooser: request.chooser,
        stopping: request.stopping,
        prefill_logprobs: request.prefill_logprobs,
        top_n_tokens: request.top_n_tokens,
        slots: Vec::new(),
        copies: Vec::new(),
    }
}

/// The first `count` slots of `ranges`, and the others.
fn split(ranges: &[SlotRange], count: u32) -> (Vec<SlotRange>, Vec<SlotRange>) {
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    let mut missing = count;
    for range in ranges {
        let taken = range.length.min(missing);
        missing -= taken;
        let parts = [
            (range.start, taken),
            (range.start + taken, range.length - taken),
        ];
        for ((start, length), list) in parts.into_iter().zip([&mut first, &mut rest]) {
            if length > 0 {
                list.push(SlotRange { start, length });
            }
        }
    }
    (first, rest)
}
