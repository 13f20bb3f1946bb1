//! Slots of running requests, whatever joins, leaves and fails.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use text_generation_client::types::{NextTokenChooser, Request, SlotRange, StoppingCriteria};

use super::*;
use crate::budget;
use crate::queue::Entry;
use crate::types::Dialect;

/// Tokens of the prompt, tokens to generate, samples.
type Shape = (u32, u32, u32);

fn valid((inputs, new, _): Shape) -> ValidRequest {
    ValidRequest {
        input_ids: Arc::from(vec![7; inputs as usize]),
        chooser: NextTokenChooser::GREEDY,
        stopping: StoppingCriteria {
            max_new_tokens: new,
            ignore_eos_token: false,
            min_new_tokens: 0,
        },
        stop_sequences: Vec::new(),
        dialect: Dialect::Tgi,
        top_n_tokens: 0,
        prefill_logprobs: false,
    }
}

/// Queued entries, whose receivers stay open while the returned ones live.
fn entries(shapes: &[Shape]) -> (Vec<Entry>, Vec<UnboundedReceiver<Event>>) {
    let (mut queue, mut receivers) = (Queue::default(), Vec::new());
    for &shape in shapes {
        let (events, opened): (Vec<_>, Vec<_>) =
            (0..shape.2).map(|_| mpsc::unbounded_channel()).unzip();
        queue.push(valid(shape), events);
        receivers.extend(opened);
    }
    (queue.take(shapes.len()), receivers)
}

fn count(slots: &[SlotRange]) -> u32 {
    slots.iter().map(|range| range.length).sum()
}

/// Rows as the shards see them: which slots each reads and writes, in order of position.
#[derive(Default)]
struct Shards {
    rows: HashMap<u64, Vec<u32>>,
    /// Rows by the prompt they read, with the slots of the prompt.
    prompts: Vec<(HashSet<u64>, Vec<u32>)>,
}

fn expand(slots: &[SlotRange]) -> Vec<u32> {
    let range = |range: &SlotRange| range.start..range.start + range.length;
    slots.iter().flat_map(range).collect()
}

impl Shards {
    fn prefill(&mut self, request: &Request) {
        let slots = expand(&request.slots);
        let (prompt, own) = slots.split_at(request.input_ids.len());
        let mut readers = HashSet::from([request.id]);
        self.rows.insert(request.id, own.to_vec());
        for copy in &request.copies {
            self.rows.insert(copy.id, expand(&copy.slots));
            readers.insert(copy.id);
        }
        self.prompts.push((readers, prompt.to_vec()));
    }

    fn remove(&mut self, id: u64) {
        self.rows.remove(&id);
        for (readers, _) in &mut self.prompts {
            readers.remove(&id);
        }
        self.prompts.retain(|(readers, _)| !readers.is_empty());
    }

    /// Slots in use; an error when two rows or prompts hold the same one.
    fn used(&self) -> Result<u32, TestCaseError> {
        let own = self.rows.values().flatten();
        let prompts = self.prompts.iter().flat_map(|(_, slots)| slots);
        let (mut seen, mut used) = (HashSet::new(), 0);
        for slot in own.chain(prompts) {
            prop_assert!(seen.insert(slot), "slot {slot} has two holders");
            used += 1;
        }
        Ok(used)
    }
}

#[derive(Debug, Clone)]
enum Op {
    /// A step: every request gets what it needs; which of the new groups get no token, by bit.
    Decode(u64),
    /// Requests end by themselves, fail, or are left out.
    Remove(Vec<prop::sample::Index>),
    Admit(Vec<Shape>),
}

fn op() -> impl Strategy<Value = Op> {
    let shape = (1u32..40, 1u32..30, 1u32..5);
    let leaving = any::<prop::sample::Index>();
    prop_oneof![
        6 => any::<u64>().prop_map(Op::Decode),
        2 => prop::collection::vec(leaving, 1..4).prop_map(Op::Remove),
        3 => prop::collection::vec(shape, 1..4).prop_map(Op::Admit),
    ]
}

fn run(ops: Vec<Op>, capacity: u32) -> TestCaseResult {
    let mut running = Running::new(capacity);
    let mut shards = Shards::default();
    let mut receivers = Vec::new();
    let mut next_id = 0;
    // All samples of a prompt are computed in the same steps.
    let mut groups: HashMap<u64, u64> = HashMap::new();
    for op in ops {
        match op {
            Op::Admit(shapes) => {
                let (mut entries, opened) = entries(&shapes);
                receivers.extend(opened);
                // Ids go on across the calls of one server.
                for sample in entries.iter_mut().flat_map(|entry| &mut entry.samples) {
                    sample.id = next_id;
                    next_id += 1;
                }
                for entry in entries {
                    let joining: Vec<Demand> = entry.candidate().demands().collect();
                    let all = running.demands().chain(joining.iter().copied());
                    if !budget::fits(all, capacity) {
                        continue;
                    }
                    let mut surplus = running.surplus(joining.iter().copied(), &[]);
                    let request = running.admit(entry, &mut surplus, Instant::now());
                    let request =
                        request.map_err(|_| TestCaseError::fail("the estimate was wrong"))?;
                    let copies = request.copies.iter().map(|copy| copy.id);
                    groups.extend(copies.chain([request.id]).map(|id| (id, request.id)));
                    shards.prefill(&request);
                    let ended: Vec<u64> = running.ids().filter(|&id| id >= request.id).collect();
                    for id in ended {
                        if running.get_mut(id).is_some_and(|m| m.demand.remaining == 0) {
                            let slots = running.remove(id);
                            running.free(&slots);
                            shards.remove(id);
                        }
                    }
                }
            }
            Op::Remove(indices) => {
                // Slots of requests that are left out are free only after the next call.
                let mut leaving = Vec::new();
                for index in indices {
                    let mut ids: Vec<u64> = running.ids().collect();
                    ids.sort_unstable();
                    if ids.is_empty() {
                        break;
                    }
                    let id = ids[index.index(ids.len())];
                    leaving.extend(running.remove(id));
                    shards.remove(id);
                    prop_assert_eq!(running.slots_used() - count(&leaving), shards.used()?);
                }
                running.free(&leaving);
            }
            Op::Decode(late) => {
                let mut ids: Vec<u64> = running.ids().collect();
                ids.sort_unstable();
                let mut surplus = running.surplus(std::iter::empty(), &[]);
                for &id in &ids {
                    let grant = running.grant(id, &mut surplus);
                    let grant = grant.map_err(|_| TestCaseError::fail("the pool ran short"))?;
                    let more = grant.map_or(Vec::new(), |grant| expand(&grant.slots));
                    shards.rows.entry(id).or_default().extend(more);
                }
                for &id in &ids {
                    let Some(member) = running.get_mut(id) else {
                        continue;
                    };
                    prop_assert!(member.demand.held >= member.demand.needed());
                    let late = member.demand.lag > 0 && late >> (groups[&id] % 64) & 1 == 1;
                    member.demand.advance(u32::from(!late));
                    if member.demand.remaining == 0 {
                        let slots = running.remove(id);
                        running.free(&slots);
                        shards.remove(id);
                    }
                }
                running.caught_up();
            }
        }
        prop_assert_eq!(running.slots_used(), shards.used()?);
        let held: u32 = running.demands().map(|demand| demand.held).sum();
        prop_assert_eq!(running.slots_used(), held, "demands say what is held");
    }
    let ids: Vec<u64> = running.ids().collect();
    for id in ids {
        let slots = running.remove(id);
        running.free(&slots);
    }
    prop_assert_eq!(running.slots_used(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// No slot is lost, freed twice or held by two; a prompt stays until its last reader has ended; what was admitted
    /// never runs short.
    #[test]
    fn slots_of_groups_are_kept_in_order(ops in prop::collection::vec(op(), 1..80), capacity in 60u32..400) {
        run(ops, capacity)?;
    }
}

#[test]
fn copies_get_slots_for_the_positions_after_the_prompt() {
    let (entries, _receivers) = entries(&[(10, 200, 3)]);
    let mut running = Running::new(1000);
    let entry = entries.into_iter().next().unwrap();
    let request = running.admit(entry, &mut 0, Instant::now()).unwrap();
    assert_eq!(count(&request.slots), 10 + 3);
    let copies: Vec<_> = request
        .copies
        .iter()
        .map(|c| (c.id, c.seed, count(&c.slots)))
        .collect();
    assert_eq!(copies, [(1, 1, 3), (2, 2, 3)]);
    assert_eq!(running.slots_used(), 10 + 3 * 3);
    // The prompt outlives the request that brought it.
    assert_eq!(count(&running.remove(0)), 3);
    assert_eq!(count(&running.remove(2)), 3);
    assert_eq!(count(&running.remove(1)), 3 + 10);
}
