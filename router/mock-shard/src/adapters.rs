//! Adapters of one mock rank: host memory, pages and numbers, with the checks that a real shard makes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use text_generation_proto::v1;

/// What a number stands for.
#[derive(Debug)]
struct Copied {
    generation: u64,
    pages: Range<u32>,
    /// The plan that brought it.
    plan: u64,
    /// A reply has said so.
    ready: bool,
}

/// What one rank knows of adapters.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    /// Pages by generation.
    host: BTreeMap<u64, u32>,
    numbers: BTreeMap<u32, Copied>,
    pub(crate) loads: Vec<v1::LoadAdapterRequest>,
    pub(crate) copies: Vec<v1::AdapterCopy>,
}

impl Adapters {
    pub(crate) fn load(&mut self, read: &v1::LoadAdapterResponse) {
        self.host.insert(read.generation, read.pages);
    }

    pub(crate) fn unload(&mut self, generation: u64) {
        self.host.remove(&generation);
    }

    pub(crate) fn in_host_memory(&self) -> Vec<u64> {
        self.host.keys().copied().collect()
    }

    /// Copies what a plan says to the pages of this pool, while rows use these numbers; returns what is wrong with it.
    pub(crate) fn copy(
        &mut self,
        plan: &v1::StepPlan,
        pool: Option<u32>,
        used: &BTreeSet<u32>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for copy in &plan.adapter_copies {
            self.copies.push(*copy);
            let (number, generation) = (copy.number, copy.generation);
            let Some(&pages) = self.host.get(&generation) else {
                wrong.push(format!("adapter {generation} is copied and was not loaded"));
                continue;
            };
            let pages = copy.first_page..copy.first_page + pages;
            let most = pool.unwrap_or(u32::MAX);
            if number == 0 || number > most || pages.end > most {
                wrong.push(format!(
                    "number {number} has pages {pages:?} of a pool of {most}"
                ));
            }
            let overlaps =
                |other: &Copied| other.pages.start < pages.end && pages.start < other.pages.end;
            for (other, _) in self
                .numbers
                .iter()
                .filter(|(other, copied)| **other == number || overlaps(copied))
                .filter(|(other, copied)| used.contains(other) || !copied.ready)
            {
                wrong.push(format!(
                    "number {other} is overwritten and used or not yet ready"
                ));
            }
            self.numbers
                .retain(|other, copied| *other != number && !overlaps(copied));
            let copied = Copied {
                generation,
                pages,
                plan: plan.number,
                ready: false,
            };
            self.numbers.insert(number, copied);
        }
        wrong
    }

    /// Numbers that the reply to this plan says to be ready: those of plans that came `plans` earlier, or all where it
    /// computes nothing.
    pub(crate) fn ready(&mut self, plan: u64, plans: u64, is_idle: bool) -> Vec<u32> {
        let numbers = self.numbers.iter_mut();
        let done =
            numbers.filter(|(_, copied)| !copied.ready && (is_idle || copied.plan + plans <= plan));
        done.map(|(&number, copied)| {
            copied.ready = true;
            number
        })
        .collect()
    }

    pub(crate) fn is_ready(&self, number: u32) -> bool {
        self.numbers.get(&number).is_some_and(|copied| copied.ready)
    }

    /// What a number stands for; 0 for the base.
    pub(crate) fn generation(&self, number: u32) -> u64 {
        self.numbers
            .get(&number)
            .map_or(0, |copied| copied.generation)
    }

    /// Everything was cleared: host memory stays.
    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
    }
}
