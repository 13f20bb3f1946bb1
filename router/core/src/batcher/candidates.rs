//! The queue as the policy sees it: who may start, and who waits for somebody.

use super::adapters::AdapterStage;
use super::charge::prompt_cost;
use super::running::RunningEntry;
use crate::kv_pool::KvPool;
use crate::media::MediaStage;
use crate::policy::{Admission, Candidate, Order, Waiting};
use crate::queue::turns::InTurn;
use crate::queue::{Entry, Queue};

/// It is worth waiting for somebody who computes at least so many more tokens of what two prompts begin with.
const WORTH_WAITING: usize = 32;

/// Those that wait, in turn.
pub(super) struct Candidates<'a> {
    queue: &'a Queue,
    turns: InTurn<'a>,
    visited: Vec<&'a Entry>,
    pool: &'a KvPool,
    rows: &'a [Option<RunningEntry>],
    media: Option<&'a MediaStage>,
    adapters: &'a AdapterStage,
    /// Requests with grammars that may still start.
    constrained: usize,
    /// A plan that was not answered computes prompts.
    pub(super) prompts_run: bool,
}

impl<'a> Candidates<'a> {
    pub(super) fn of(
        queue: &'a Queue,
        pool: &'a KvPool,
        rows: &'a [Option<RunningEntry>],
        media: Option<&'a MediaStage>,
        adapters: &'a AdapterStage,
        most_constrained: usize,
    ) -> Self {
        let running = rows.iter().flatten();
        let constrained = running.filter(|running| running.entry.is_constrained());
        Self {
            constrained: most_constrained.saturating_sub(constrained.count()),
            turns: queue.in_turn(),
            visited: Vec::new(),
            queue,
            pool,
            rows,
            media,
            adapters,
            prompts_run: false,
        }
    }

    /// Where those that were looked at stand in the queue.
    pub(super) fn into_orders(self) -> Vec<Order> {
        self.visited.iter().map(|entry| entry.order).collect()
    }

    /// The next in turn, where those of `admitted` are charged.
    fn next(&mut self, admitted: &[Admission]) -> Option<&'a Entry> {
        let last = self.visited.len().wrapping_sub(1);
        let last = admitted.last().filter(|admission| admission.index == last);
        let cost = last.map_or(0, |last| prompt_cost(self.visited[last.index], last.count));
        let order = self.turns.next(cost)?;
        self.queue.get(order)
    }

    fn joining(&self, admitted: &[Admission]) -> impl Iterator<Item = &'a Entry> {
        admitted
            .iter()
            .map(|admission| self.visited[admission.index])
    }

    /// Whether its grammar needs a mask slot and all are taken.
    fn lacks_mask(&self, entry: &Entry, admitted: &[Admission]) -> bool {
        let joining = || {
            self.joining(admitted)
                .filter(|entry| entry.is_constrained())
        };
        entry.is_constrained() && joining().count() >= self.constrained
    }

    /// Whether rows that it reads are not encoded yet.
    fn lacks_images(&self, entry: &Entry, cached: u32) -> bool {
        let media = &entry.request.media;
        !media.is_empty()
            && !self
                .media
                .is_some_and(|stage| stage.is_ready(media, cached, &entry.media))
    }

    /// Whether nobody starts now, this one and those behind it: while a request is tried no other prompt is computed.
    fn is_held_up(&self, entry: &Entry, admitted: &[Admission]) -> bool {
        let running = || self.rows.iter().flatten().map(|running| &running.entry);
        let mut trials = running().chain(self.joining(admitted));
        if trials.any(|other| other.is_suspect()) {
            return true;
        }
        let prompts = self.rows.iter().flatten().any(|r| r.prompt_left() > 0);
        entry.is_suspect() && (prompts || self.prompts_run || !admitted.is_empty())
    }

    /// Whether somebody who is computing a prompt has, or will have, more of this one's than is cached.
    fn follows(&self, entry: &Entry, cached: u32, admitted: &[Admission]) -> bool {
        if !self.pool.is_caching() {
            return false;
        }
        // Who needs the log-probabilities of its prompt gets them from another sample, or computes them.
        let scores = entry.computes_logprobs();
        let wanted = match scores {
            true => entry.cacheable(),
            false => entry.keys(usize::MAX),
        };
        let computing = self.rows.iter().flatten();
        let computing = computing.filter(|running| !running.is_pausing());
        if scores {
            let mut scoring = computing
                .clone()
                .filter(|running| running.scores_prompt())
                .map(|running| &running.entry)
                .chain(self.joining(admitted));
            if scoring.any(|other| entry.shares_logprobs(other)) {
                return true;
            }
        }
        let computing = computing
            .filter(|running| running.prompt_left() > 0)
            .map(|running| &running.entry);
        computing.chain(self.joining(admitted)).any(|other| {
            other.root == entry.root
                && other
                    .keys(usize::MAX)
                    .share(&wanted, cached as usize + WORTH_WAITING)
        })
    }
}

impl Waiting for Candidates<'_> {
    fn len(&self) -> usize {
        self.queue.len()
    }

    fn candidate(&mut self, _: usize, admitted: &[Admission]) -> Option<Candidate> {
        let entry = self.next(admitted)?;
        if self.is_held_up(entry, admitted) {
            return None;
        }
        self.visited.push(entry);
        let found = self.pool.probe(&entry.root, entry.cacheable());
        let max_new_tokens = entry.request.stopping.max_new_tokens;
        Some(Candidate {
            length: u32::try_from(entry.ids.len()).unwrap_or(u32::MAX),
            cached: found.length,
            unlocked: found.unlocked,
            generated: entry.generated,
            left: max_new_tokens.saturating_sub(entry.generated),
            follows: self.lacks_mask(entry, admitted)
                || self.lacks_images(entry, found.length)
                || self.adapters.number(entry).is_none()
                || self.follows(entry, found.length, admitted),
        })
    }
}
