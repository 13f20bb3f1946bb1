//! The pool against a naive model that knows each prefix by itself.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::adapters::Adapters;
use crate::kv_pool::Match;
use crate::kv_pool::events::{BLOCK_TOKENS, KvEvent};

/// A root and some ids, by number: K and V of a position depend on nothing else.
type Prefix = u32;

#[derive(Debug, Clone)]
enum Op {
    /// Runs of one id each; a limit for what is locked, in positions from the end.
    Open(u64, Vec<(u32, u32)>, u32),
    Grow(Index, u32),
    Compute(Index, u32),
    Close(Index, Index),
    Discard(Index),
    Distrust,
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let runs = prop::collection::vec((0u32..2, prop::sample::select(&[1, 3, 30, 70][..])), 1..5);
    prop_oneof![
        30 => (0u64..5, runs, 0u32..4).prop_map(|(root, runs, cut)| Op::Open(root / 4, runs, cut)),
        50 => (any::<Index>(), 0u32..120).prop_map(|(who, count)| Op::Grow(who, count)),
        70 => (any::<Index>(), 0u32..100).prop_map(|(who, count)| Op::Compute(who, count)),
        25 => (any::<Index>(), any::<Index>()).prop_map(|(who, kept)| Op::Close(who, kept)),
        8 => any::<Index>().prop_map(Op::Discard),
        2 => Just(Op::Distrust),
        1 => Just(Op::Reset),
    ]
}

struct Live {
    number: usize,
    holding: Holding,
    root: RootKey,
    ids: Vec<u32>,
    /// `prefixes[i]` ends with `ids[i]`.
    prefixes: Vec<Prefix>,
    computed: usize,
    /// The path leaves the tree here: somebody whose slots it has locked failed.
    attached: usize,
}

impl Live {
    /// What of its prefixes is locked in the tree.
    fn locked(&self) -> &[Prefix] {
        &self.prefixes[..(self.holding.locked as usize).min(self.attached)]
    }
}

struct Cached {
    by: usize,
    length: usize,
    used_at: u64,
}

struct World {
    pool: KvPool,
    live: Vec<Live>,
    stale: Vec<Holding>,
    numbers: HashMap<(Prefix, u32), Prefix>,
    cached: HashMap<Prefix, Cached>,
    /// What the device has in each slot.
    content: HashMap<u32, Prefix>,
    clock: u64,
    opened: usize,
    index: Listener,
}

/// What somebody knows who hears of all changes: the block before each, and its ids.
#[derive(Default, Debug, PartialEq)]
struct Listener(HashMap<u64, (Option<u64>, Vec<u32>)>);

impl Listener {
    fn hear(&mut self, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    let blocks = stored.ids.chunks_exact(BLOCK_TOKENS as usize);
                    assert_eq!(
                        stored.ids.len(),
                        stored.hashes.len() * BLOCK_TOKENS as usize
                    );
                    let mut parent = stored.parent;
                    for (hash, ids) in stored.hashes.into_iter().zip(blocks) {
                        assert!(parent.is_none_or(|parent| self.0.contains_key(&parent)));
                        let known = self.0.insert(hash, (parent, ids.to_vec()));
                        assert_eq!(known, None, "stored twice");
                        parent = Some(hash);
                    }
                }
                KvEvent::Removed(hashes) => {
                    for hash in hashes {
                        assert!(self.0.remove(&hash).is_some(), "it was not there");
                    }
                }
                KvEvent::Cleared => self.0.clear(),
            }
        }
    }

    /// The prompts that end with each block.
    fn prompts(&self) -> Vec<Vec<u32>> {
        let whole = |hash: &u64| {
            let blocks =
                std::iter::successors(self.0.get(hash), |(parent, _)| self.0.get(parent.as_ref()?));
            let mut parts: Vec<&[u32]> = blocks.map(|(_, ids)| ids.as_slice()).collect();
            parts.reverse();
            parts.concat()
        };
        let mut prompts: Vec<_> = self.0.keys().map(whole).collect();
        prompts.sort();
        prompts
    }
}

impl World {
    fn new(capacity: u32) -> Self {
        Self {
            pool: KvPool::new(capacity, true).noting_events("model", Adapters::default()),
            live: Vec::new(),
            stale: Vec::new(),
            numbers: HashMap::new(),
            cached: HashMap::new(),
            content: HashMap::new(),
            clock: 0,
            opened: 0,
            index: Listener::default(),
        }
    }

    /// Whole blocks that are cached, as the prompts that end with them.
    fn cached_blocks(&self) -> Vec<Vec<u32>> {
        let before: HashMap<Prefix, (Prefix, u32)> = self
            .numbers
            .iter()
            .map(|(&before, &number)| (number, before))
            .collect();
        let whole = |prefix: &Prefix| {
            let chain = std::iter::successors(before.get(prefix), |(prefix, _)| before.get(prefix));
            let mut ids: Vec<u32> = chain.map(|&(_, id)| id).collect();
            ids.reverse();
            ids
        };
        let prompts = self.cached.keys().map(whole);
        let mut blocks: Vec<_> = prompts
            .filter(|ids| ids.len().is_multiple_of(BLOCK_TOKENS as usize))
            .collect();
        blocks.sort();
        blocks
    }

    /// Whoever hears of all changes knows what is cached, and whoever begins to listen is told the same.
    fn check_events(&mut self) {
        self.index.hear(self.pool.take_events());
        assert_eq!(self.index.prompts(), self.cached_blocks());
        let mut late = Listener::default();
        late.hear(self.pool.announce());
        assert_eq!(late, self.index);
    }

    fn prefixes(&mut self, root: u64, ids: &[u32]) -> Vec<Prefix> {
        let mut last = u32::MAX - root as u32;
        let mut number = |&id: &u32| {
            let next = self.numbers.len() as Prefix;
            last = *self.numbers.entry((last, id)).or_insert(next);
            last
        };
        ids.iter().map(&mut number).collect()
    }

    fn locked(&self) -> HashSet<Prefix> {
        let locked = self.live.iter().flat_map(Live::locked);
        locked.copied().collect()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Open(root, runs, cut) => self.open(root, &runs, cut),
            Op::Distrust => self.distrust(),
            Op::Reset => self.reset(),
            _ if self.live.is_empty() => {}
            Op::Grow(who, count) => self.grow(who.index(self.live.len()), count),
            Op::Compute(who, count) => {
                let who = who.index(self.live.len());
                let live = &mut self.live[who];
                let end = live.ids.len().min(live.holding.len() as usize);
                let end = end.min(live.computed + count as usize);
                let slots = expand(live.holding.slots());
                let computed = live.computed..end;
                let slots = slots[computed.clone()].iter().copied();
                self.content
                    .extend(slots.zip(live.prefixes[computed].iter().copied()));
                live.computed = end;
                self.pool.commit(&mut live.holding, &live.ids[..end]);
                enter(&mut self.cached, live, end);
            }
            Op::Close(who, kept) => {
                let who = who.index(self.live.len());
                let live = self.live.swap_remove(who);
                let kept = kept.index(live.computed + 1);
                enter(&mut self.cached, &live, kept);
                self.touch(&live, kept.max(live.holding.locked as usize));
                self.pool.close(live.holding, &live.ids[..kept]);
            }
            Op::Discard(who) => self.discard(who.index(self.live.len())),
        }
    }

    fn open(&mut self, root: u64, runs: &[(u32, u32)], cut: u32) {
        let run = |&(id, length): &(u32, u32)| std::iter::repeat_n(id, length as usize);
        let ids: Vec<u32> = runs.iter().flat_map(run).collect();
        let prefixes = self.prefixes(root, &ids);
        let root = adapter(root);
        let most = (ids.len() as u32).saturating_sub(cut);
        let expected = self.pool.probe(&root, &ids).length.min(most);
        let holding = self.pool.open(&root, &ids, most);
        assert_eq!((holding.cached(), holding.len()), (expected, expected));
        self.live.push(Live {
            number: self.opened,
            computed: holding.cached() as usize,
            holding,
            root,
            ids,
            prefixes,
            attached: usize::MAX,
        });
        self.opened += 1;
        for holding in self.stale.drain(..) {
            self.pool.close(holding, &[]);
        }
    }

    fn grow(&mut self, who: usize, count: u32) {
        let (free, unallocated) = (self.pool.free(), self.pool.allocator.available());
        let live = &mut self.live[who];
        let before = expand(live.holding.slots());
        let granted = self.pool.grow(&mut live.holding, count);
        assert_eq!(granted.is_some(), count <= free);
        let granted = granted.map(|ranges| expand(&ranges)).unwrap_or_default();
        let after = expand(live.holding.slots());
        assert_eq!(after, [before, granted.clone()].concat());
        if granted.is_empty() {
            return;
        }
        assert_eq!(granted.len(), count as usize);
        let locked = self.locked();
        for _ in unallocated..count {
            let unlocked = self
                .cached
                .iter()
                .filter(|(prefix, _)| !locked.contains(prefix));
            let oldest =
                unlocked.min_by_key(|(_, cached)| (cached.used_at, Reverse(cached.length)));
            let oldest = *oldest.unwrap().0;
            self.cached.remove(&oldest);
        }
    }

    /// What the request used is the last that was used.
    fn touch(&mut self, live: &Live, length: usize) {
        self.clock += 1;
        for prefix in &live.prefixes[..length.min(live.attached)] {
            self.cached.get_mut(prefix).unwrap().used_at = self.clock;
        }
    }

    fn discard(&mut self, who: usize) {
        let live = self.live.swap_remove(who);
        let brought = |prefix| {
            self.cached
                .get(prefix)
                .is_some_and(|cached| cached.by == live.number)
        };
        let brought = live.locked().iter().position(brought);
        self.touch(&live, live.holding.locked as usize);
        self.pool.discard(live.holding);
        let Some(first) = brought else {
            return;
        };
        let prefix = live.prefixes[first];
        for other in &mut self.live {
            if other.locked().contains(&prefix) {
                other.attached = first;
            }
        }
        // All that continues it.
        let mut gone = HashSet::from([prefix]);
        let mut known: Vec<_> = self
            .numbers
            .iter()
            .map(|(&(before, _), &number)| (number, before))
            .collect();
        known.sort_unstable();
        for (number, before) in known {
            if gone.contains(&before) {
                gone.insert(number);
            }
        }
        self.cached.retain(|prefix, _| !gone.contains(prefix));
    }

    fn distrust(&mut self) {
        self.pool.distrust();
        self.cached.clear();
        for live in self.live.iter_mut().filter(|live| live.holding.locked > 0) {
            live.attached = 0;
        }
    }

    fn reset(&mut self) {
        self.pool.reset();
        assert_eq!(self.pool.used(), 0);
        self.cached.clear();
        self.stale
            .extend(self.live.drain(..).map(|live| live.holding));
    }

    fn check(&self) {
        audit(&self.pool, self.live.iter().map(|live| &live.holding));
        let locked = self.locked();
        for live in &self.live {
            let content = expand(live.holding.slots())
                .into_iter()
                .map(|slot| self.content.get(&slot));
            let expected = live.prefixes[..live.computed].iter().map(Some);
            assert!(
                content.take(live.computed).eq(expected),
                "its slots hold something else"
            );
            let cached = |prefix: &&Prefix| self.cached.contains_key(prefix);
            let found: Vec<_> = live.prefixes.iter().take_while(cached).collect();
            let unlocked = found.iter().filter(|prefix| !locked.contains(prefix));
            let expected = Match {
                length: found.len() as u32,
                unlocked: unlocked.count() as u32,
            };
            assert_eq!(self.pool.probe(&live.root, &live.ids), expected);
        }
        let unlocked = self.cached.keys().filter(|prefix| !locked.contains(prefix));
        let free = self.pool.allocator.available() + unlocked.count() as u32;
        assert_eq!(self.pool.free(), free);
        assert_eq!(self.pool.used(), self.pool.capacity() - free);
    }

    fn close_all(&mut self) {
        for live in self.live.drain(..) {
            self.pool.close(live.holding, &live.ids[..live.computed]);
        }
        assert_eq!(self.pool.used(), 0);
        audit(&self.pool, std::iter::empty());
    }
}

/// What is computed is cached, where the path is still in the tree.
fn enter(cached: &mut HashMap<Prefix, Cached>, live: &Live, end: usize) {
    if live.attached < usize::MAX {
        return;
    }
    for (index, &prefix) in live.prefixes[..end].iter().enumerate() {
        cached.entry(prefix).or_insert(Cached {
            by: live.number,
            length: index + 1,
            used_at: 0,
        });
    }
}

proptest! {
    #[test]
    fn behaves_as_a_set_of_prefixes(capacity in prop::sample::select(&[60, 150, 300, 1200][..]), ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new(capacity);
        for op in ops {
            world.apply(op);
            world.check();
            world.check_events();
        }
        world.close_all();
    }
}
