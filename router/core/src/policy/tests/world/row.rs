//! A request that owns a row.

use super::*;
use crate::kv_pool::Holding;

#[derive(Debug)]
pub(super) struct Row {
    pub(super) entry: Entry,
    pub(super) pausing: bool,
    /// The plan that gave it its row.
    pub(super) since: u64,
    pub(super) computed: u32,
    holding: Holding,
    prompt: u32,
    in_flight: u32,
    /// When its last token came.
    last_ms: f64,
}

/// Slots that may be given beyond need.
#[derive(Debug)]
pub(super) struct Ahead {
    /// What the whole step leaves.
    pub(super) spare: u32,
    /// At most so many at a time.
    pub(super) each: u32,
}

impl Ahead {
    /// At least what is `needed`, and at most what may be of use.
    fn give(&mut self, needed: u32, most: u32) -> u32 {
        let needed = needed.min(most);
        let more = self.each.min(most - needed).min(self.spare);
        self.spare -= more;
        needed + more
    }
}

impl Row {
    /// Takes slots for the prompt and the first token, and some of those `ahead`.
    pub(super) fn start(
        mut entry: Entry,
        pool: &mut KvPool,
        ahead: &mut Ahead,
        since: u64,
        now_ms: f64,
    ) -> Self {
        entry.started_ms.get_or_insert(now_ms);
        let prompt = entry.ids.len() as u32;
        let mut holding = pool.open(&root(), &entry.ids, prompt - 1);
        let missing = prompt - holding.len();
        let left = entry.left(Knowledge::Expectation, 1);
        let count = missing + ahead.give(1, left);
        pool.grow(&mut holding, count).expect("slots of a prompt");
        Self {
            entry,
            pausing: false,
            since,
            computed: holding.cached(),
            holding,
            prompt,
            in_flight: 0,
            last_ms: now_ms,
        }
    }

    pub(super) fn prompt_left(&self) -> u32 {
        self.prompt.saturating_sub(self.computed)
    }

    pub(super) fn has_paused(&self) -> bool {
        self.pausing && self.in_flight == 0
    }

    pub(super) fn own_slots(&self) -> u32 {
        self.holding.len() - self.holding.cached()
    }

    fn ahead(&self) -> u32 {
        self.holding.len().saturating_sub(self.length())
    }

    fn length(&self) -> u32 {
        self.entry.ids.len() as u32 + self.in_flight
    }

    fn may_generate(&self) -> u32 {
        self.entry.left(Knowledge::Expectation, self.in_flight)
    }

    pub(super) fn for_policy(&self, knowledge: Knowledge) -> Running {
        let decodes = self.prompt_left() == 0 && self.may_generate() > 0;
        Running {
            served: 0,
            order: self.entry.order,
            computed: self.computed,
            prompt_left: self.prompt_left(),
            decodes,
            lacks_slot: decodes && self.holding.len() < self.length(),
            ahead: self.ahead(),
            drafts: DraftShare::default(),
            demand: Demand {
                slots: self.own_slots() - self.ahead(),
                generated: self.entry.generated,
                left: self.entry.left(knowledge, self.in_flight),
            },
        }
    }

    pub(super) fn decode(&mut self, pool: &mut KvPool, ahead: &mut Ahead) {
        assert!(!self.pausing && self.may_generate() > 0 && self.prompt_left() == 0);
        if self.holding.len() < self.length() {
            let count = ahead.give(1, self.may_generate());
            pool.grow(&mut self.holding, count)
                .expect("a slot to decode");
        }
        self.computed += 1;
        self.in_flight += 1;
        assert!(
            self.computed <= self.holding.len(),
            "a position without a slot"
        );
    }

    /// Computes more of the prompt; returns where that begins, and how much it is.
    pub(super) fn chunk(&mut self, count: u32) -> (u32, u32) {
        assert!(!self.pausing && count > 0);
        let (first, count) = (self.computed, count.min(self.prompt_left()));
        self.computed += count;
        assert!(
            self.computed <= self.holding.len(),
            "a position without a slot"
        );
        self.in_flight += u32::from(self.prompt_left() == 0);
        (first, count)
    }

    pub(super) fn share(&mut self, pool: &mut KvPool) {
        let known = self.entry.ids.len().min(self.computed as usize);
        pool.commit(&mut self.holding, &self.entry.ids[..known]);
    }

    pub(super) fn leave(self, pool: &mut KvPool) -> Entry {
        let known = self.entry.ids.len().min(self.computed as usize);
        pool.close(self.holding, &self.entry.ids[..known]);
        self.entry
    }

    /// How long it waited for the token that comes now: since the last one, or since the request came.
    pub(super) fn waited_ms(&mut self, now_ms: f64) -> f64 {
        let since = match self.entry.generated {
            0 => self.entry.request.at_ms,
            _ => self.last_ms,
        };
        self.last_ms = now_ms;
        now_ms - since
    }

    /// A token came. Whether it was the last.
    pub(super) fn accept(&mut self) -> bool {
        self.in_flight -= 1;
        let entry = &mut self.entry;
        entry.generated += 1;
        // Nobody else generates the same.
        entry.ids.push(u32::MAX - entry.order.sequence as u32);
        entry.generated >= entry.request.length.min(entry.request.max_new_tokens)
    }
}
