//! What waits, as the policy sees it.

use super::*;
use crate::queue::turns::{InTurn, PROMPT_TOKEN};
use crate::tenant::Tenant;

/// It is worth waiting for somebody who computes at least so many more tokens of what two prompts begin with.
const WORTH_WAITING: usize = 32;

/// One that comes.
#[derive(Debug, Clone)]
pub(in crate::policy::tests) struct Request {
    pub(in crate::policy::tests) tenant: Tenant,
    pub(in crate::policy::tests) at_ms: f64,
    pub(in crate::policy::tests) priority: i64,
    pub(in crate::policy::tests) ids: Vec<u32>,
    pub(in crate::policy::tests) max_new_tokens: u32,
    /// Tokens that it generates, unless it may not.
    pub(in crate::policy::tests) length: u32,
    /// When its client goes.
    pub(in crate::policy::tests) gone_ms: f64,
}

/// One that has come.
#[derive(Debug)]
pub(in crate::policy::tests) struct Entry {
    pub(super) request: Request,
    pub(super) order: Order,
    pub(super) ids: Vec<u32>,
    pub(super) generated: u32,
    pub(super) started_ms: Option<f64>,
    pub(super) followed: u32,
}

impl Entry {
    pub(super) fn new(order: Order, request: Request) -> Self {
        Self {
            order,
            ids: request.ids.clone(),
            request,
            generated: 0,
            started_ms: None,
            followed: 0,
        }
    }

    pub(super) fn is_unwanted(&self, now_ms: f64) -> bool {
        self.request.gone_ms <= now_ms
    }

    /// What a chunk of so many tokens costs its tenant.
    pub(super) fn prompt_cost(&self, count: u32) -> u64 {
        u64::from(self.generated == 0) * u64::from(count) * PROMPT_TOKEN
    }

    /// The most that it may yet generate beside the tokens in flight, as far as is known.
    pub(super) fn left(&self, knowledge: Knowledge, in_flight: u32) -> u32 {
        let most = match knowledge {
            Knowledge::Oracle => self.request.length.min(self.request.max_new_tokens),
            Knowledge::Careless => 0,
            _ => self.request.max_new_tokens,
        };
        most.saturating_sub(self.generated + in_flight)
    }
}

pub(super) struct Candidates<'a> {
    world: &'a World,
    turns: InTurn<'a>,
    visited: Vec<(&'a Entry, Candidate)>,
}

impl<'a> Candidates<'a> {
    pub(super) fn of(world: &'a World) -> Self {
        Self {
            world,
            turns: world.turns.in_turn(),
            visited: Vec::new(),
        }
    }

    pub(super) fn visited(self) -> Vec<(Order, Candidate)> {
        let visited = self.visited.into_iter();
        visited
            .map(|(entry, candidate)| (entry.order, candidate))
            .collect()
    }

    /// Whether somebody computes more of what both begin with than is cached.
    fn follows(&self, entry: &Entry, cached: u32, admitted: &[Admission]) -> bool {
        let rows = self.world.rows.iter().flatten();
        let computing = rows
            .filter(|row| row.prompt_left() > 0 && !row.pausing)
            .map(|row| &row.entry);
        let joining = admitted
            .iter()
            .map(|admission| self.visited[admission.index].0);
        let wanted = cached as usize + WORTH_WAITING;
        self.world.pool.is_caching()
            && computing.chain(joining).any(|other| {
                let own = entry.ids.get(..wanted);
                own.is_some() && own == other.ids.get(..wanted)
            })
    }
}

impl Waiting for Candidates<'_> {
    fn len(&self) -> usize {
        self.world.queue.len()
    }

    fn candidate(&mut self, index: usize, admitted: &[Admission]) -> Option<Candidate> {
        assert_eq!(index, self.visited.len(), "asked for in order, each once");
        let last = self.visited.len().wrapping_sub(1);
        let last = admitted.last().filter(|admission| admission.index == last);
        let cost = last.map_or(0, |last| self.visited[last.index].0.prompt_cost(last.count));
        let entry = &self.world.queue[&self.turns.next(cost)?];
        let found = self
            .world
            .pool
            .probe(&root(), &entry.ids[..entry.ids.len() - 1]);
        let candidate = Candidate {
            length: entry.ids.len() as u32,
            cached: found.length,
            unlocked: found.unlocked,
            generated: entry.generated,
            left: entry.left(self.world.knowledge, 0),
            follows: self.follows(entry, found.length, admitted),
        };
        self.visited.push((entry, candidate));
        Some(candidate)
    }
}
