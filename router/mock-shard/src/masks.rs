//! The mask slots of one mock rank, with the checks that a real shard relies on.

use std::collections::{BTreeMap, BTreeSet};

use text_generation_proto::v1;
use text_generation_proto::v1::mask_write::Mask;

/// What each slot holds, and the masks of steps that have not run.
#[derive(Debug, Default)]
pub(crate) struct Masks {
    /// By slot; slot 0 is never written.
    slots: BTreeMap<u32, Mask>,
    /// By the number of their plan.
    waiting: BTreeMap<u64, v1::StepMasks>,
    /// Why the masks of a step were refused, which ends it.
    refused: BTreeMap<u64, String>,
    /// The plan whose masks came last: each number comes once.
    last: Option<u64>,
}

impl Masks {
    /// Masks came. Returns what is wrong with them.
    pub(crate) fn receive(&mut self, masks: v1::StepMasks, max_masks: u32) -> Vec<String> {
        let number = masks.number;
        let mut wrong = Vec::new();
        if self.last.replace(number).is_some_and(|last| last >= number) {
            wrong.push(format!("the masks of step {number} come again, or late"));
        }
        let counted = match masks.counts.as_slice() {
            [] => masks.rows.len(),
            counts => counts.iter().map(|&count| count as usize).sum(),
        };
        let uncounted = !masks.counts.is_empty() && masks.counts.len() != masks.rows.len();
        if uncounted || counted != masks.slots.len() || masks.counts.contains(&0) {
            wrong.push(format!("step {number} has rows without a mask slot"));
        }
        let read: BTreeSet<u32> = self
            .waiting
            .values()
            .flat_map(|m| m.slots.iter().copied())
            .collect();
        for slot in masks.writes.iter().map(|write| write.slot) {
            if slot == 0 || slot >= max_masks {
                wrong.push(format!("mask slot {slot} of {max_masks} is written"));
            }
            if read.contains(&slot) {
                wrong.push(format!(
                    "mask slot {slot} is written while a step in flight reads it"
                ));
            }
        }
        self.waiting.insert(number, masks);
        wrong
    }

    /// The masks of a step are refused.
    pub(crate) fn refuse(&mut self, number: u64, message: String) {
        self.refused.insert(number, message);
    }

    /// Whether the masks of a step are there, or why they never will be.
    pub(crate) fn have(&mut self, number: u64) -> Result<bool, String> {
        match self.refused.remove(&number) {
            Some(message) => Err(message),
            None => Ok(self.waiting.contains_key(&number)),
        }
    }

    /// Writes the slots for a step. Returns those of each row, and what is wrong.
    pub(crate) fn apply(&mut self, plan: &v1::StepPlan) -> (BTreeMap<u32, Vec<u32>>, Vec<String>) {
        let number = plan.number;
        let masks = self.waiting.remove(&number).unwrap_or_default();
        let mut wrong = Vec::new();
        let sorted = |rows: &[u32]| {
            let mut rows = rows.to_vec();
            rows.sort_unstable();
            rows
        };
        if sorted(&masks.rows) != sorted(&plan.constrained) {
            wrong.push(format!(
                "step {number} constrains rows {:?}, and its masks are for {:?}",
                plan.constrained, masks.rows
            ));
        }
        for write in masks.writes {
            match write.mask {
                Some(mask) => drop(self.slots.insert(write.slot, mask)),
                None => wrong.push(format!("a mask without tokens in slot {}", write.slot)),
            }
        }
        for slot in masks.slots.iter().filter(|&&slot| slot != 0) {
            if !self.slots.contains_key(slot) {
                wrong.push(format!("mask slot {slot} is read and was never written"));
            }
        }
        let mut slots = masks.slots.into_iter();
        let counts = masks.counts.into_iter().chain(std::iter::repeat(1));
        let each = |(row, count): (u32, u32)| (row, slots.by_ref().take(count as usize).collect());
        (
            masks.rows.into_iter().zip(counts).map(each).collect(),
            wrong,
        )
    }

    /// Whether a slot allows a token.
    pub(crate) fn allow(&self, slot: u32, id: u32) -> bool {
        match self.slots.get(&slot).filter(|_| slot != 0) {
            None => true,
            Some(Mask::Only(tokens)) => tokens.ids.contains(&id),
            Some(Mask::Except(tokens)) => !tokens.ids.contains(&id),
            Some(Mask::Bits(bits)) => {
                let byte = bits.get(id as usize / 8);
                byte.is_some_and(|byte| byte >> (id % 8) & 1 == 1)
            }
        }
    }

    /// Everything was cleared: numbers begin again. The slots keep what they hold.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.refused.clear();
        self.last = None;
    }
}
