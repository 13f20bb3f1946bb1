//! Turns among tenants: the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI
//! 2024.
//!
//! Each tenant has a counter of the tokens that were computed for it, divided by its weight. While several wait, the one
//! with the lowest counter is next. Who begins to wait is lifted to the lowest counter of those that do, so time in which
//! it asked for nothing is no credit. Where nobody waits, nobody is kept from anything: counting begins anew.

use std::cmp::Reverse;
use std::collections::btree_set;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use crate::policy::Order;
use crate::tenant::Tenant;

/// What a token of a prompt costs that is computed. Those that are found in the prefix tree cost nothing.
pub(crate) const PROMPT_TOKEN: u64 = 1;

/// What a generated token costs: as in the paper twice as much.
pub(crate) const OUTPUT_TOKEN: u64 = 2;

/// What one of these counts for a tenant of weight 1, so that shares of heavier ones are whole numbers too.
const UNIT: u64 = 1_000_000;

/// Tenants that are remembered at least before those are looked for that need not be.
const FEW: usize = 64;

/// The requests of one tenant that wait, and its counter.
#[derive(Debug)]
struct Line {
    weight: u64,
    served: u64,
    waiting: BTreeSet<Order>,
}

/// The lines of all tenants, in which requests are known by their order.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// By the name of the tenant.
    lines: HashMap<Option<Arc<str>>, Line>,
    /// Requests that wait, of all tenants.
    waiting: usize,
    /// The lowest counter of those that waited when it was last looked for. No counter that matters is lower.
    floor: u64,
    highest: u64,
    /// So many lines are let grow before old ones are dropped.
    grown: usize,
}

impl Turns {
    /// A request waits, for the first time or again.
    pub(crate) fn join(&mut self, tenant: &Tenant, order: Order) {
        if self.waiting == 0 {
            self.floor = self.highest;
            self.lines.clear();
        }
        let floor = self.floor;
        let line = self.line(tenant);
        if line.waiting.is_empty() {
            line.served = line.served.max(floor);
        }
        let new = line.waiting.insert(order);
        self.waiting += usize::from(new);
    }

    /// It waits no longer.
    pub(crate) fn leave(&mut self, tenant: &Tenant, order: Order) {
        let line = self.lines.get_mut(&tenant.name().cloned());
        let waited = line.is_some_and(|line| line.waiting.remove(&order));
        self.waiting -= usize::from(waited);
    }

    /// Whether somebody waits while another tenant may have had more.
    pub(crate) fn is_contended(&self) -> bool {
        self.waiting > 0 && self.lines.len() > 1
    }

    /// How many tenants wait.
    #[cfg(test)]
    pub(crate) fn tenants(&self) -> usize {
        let lines = self.lines.values();
        lines.filter(|line| !line.waiting.is_empty()).count()
    }

    /// Counts what was computed for a tenant, in units of [`PROMPT_TOKEN`] and [`OUTPUT_TOKEN`].
    pub(crate) fn charge(&mut self, tenant: &Tenant, cost: u64) {
        if cost == 0 || !self.is_contended() {
            return;
        }
        let floor = self.floor;
        let line = self.line(tenant);
        let served = line.served.max(floor).saturating_add(line.share(cost));
        line.served = served;
        self.highest = self.highest.max(served);
    }

    /// After a step's tokens were counted: who comes from now on is lifted to the lowest counter of those that wait.
    pub(crate) fn lift(&mut self) {
        let waiting = self.lines.values().filter(|line| !line.waiting.is_empty());
        if let Some(lowest) = waiting.map(|line| line.served).min() {
            self.floor = self.floor.max(lowest);
        }
    }

    /// The counter of a tenant; 0 for all where nobody waits for another.
    pub(crate) fn served(&self, tenant: &Tenant) -> u64 {
        if !self.is_contended() {
            return 0;
        }
        let line = self.lines.get(&tenant.name().cloned());
        line.map_or(self.floor, |line| line.served.max(self.floor))
    }

    /// All that wait, in turn, as it would be if those that are passed on were charged.
    pub(crate) fn in_turn(&self) -> InTurn<'_> {
        let lines = self.lines.values();
        let heads = lines.filter_map(|line| Head::first(line.served, line));
        InTurn {
            heads: heads.map(Reverse).collect(),
            last: None,
        }
    }

    /// The line of a tenant, which begins at the floor.
    fn line(&mut self, tenant: &Tenant) -> &mut Line {
        let name = tenant.name().cloned();
        if !self.lines.contains_key(&name) {
            self.forget();
        }
        self.lines.entry(name).or_insert_with(|| Line {
            weight: tenant.weight().into(),
            served: self.floor,
            waiting: BTreeSet::new(),
        })
    }

    /// Drops the lines of those that would begin where they are, once there are many.
    fn forget(&mut self) {
        if self.lines.len() < self.grown.max(FEW) {
            return;
        }
        let floor = self.floor;
        self.lines
            .retain(|_, line| !line.waiting.is_empty() || line.served > floor);
        self.grown = self.lines.len().saturating_mul(2);
    }
}

impl Line {
    fn share(&self, cost: u64) -> u64 {
        cost.saturating_mul(UNIT) / self.weight
    }
}

/// One line as it shortens, which borrows the order of those behind the first.
#[derive(Debug)]
struct Head<'a> {
    served: u64,
    order: Order,
    line: &'a Line,
    behind: btree_set::Iter<'a, Order>,
}

impl<'a> Head<'a> {
    fn first(served: u64, line: &'a Line) -> Option<Self> {
        let mut behind = line.waiting.iter();
        let order = *behind.next()?;
        Some(Self {
            served,
            order,
            line,
            behind,
        })
    }

    /// The line without its first.
    fn next(mut self) -> Option<Self> {
        self.order = *self.behind.next()?;
        Some(self)
    }

    /// Lower is next; whoever came first where counters are equal.
    fn key(&self) -> (u64, u64) {
        (self.served, self.order.sequence)
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Head<'_> {}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Walks through all that wait, each once. It is made of the first of each line, so a step costs as much as tenants wait,
/// and the logarithm of that for each request that is looked at.
#[derive(Debug)]
pub(crate) struct InTurn<'a> {
    heads: BinaryHeap<Reverse<Head<'a>>>,
    /// Whose first was given last.
    last: Option<Head<'a>>,
}

impl InTurn<'_> {
    /// The next, where the one before it was charged `cost`.
    pub(crate) fn next(&mut self, cost: u64) -> Option<Order> {
        if let Some(mut last) = self.last.take() {
            last.served = last.served.saturating_add(last.line.share(cost));
            self.heads.extend(last.next().map(Reverse));
        }
        let Reverse(head) = self.heads.pop()?;
        let order = head.order;
        self.last = Some(head);
        Some(order)
    }
}

#[cfg(test)]
mod tests;
