mod examples;
mod model;

use text_generation_client::types::SlotRange;

use super::{Holding, KvPool, RootKey};

fn expand(ranges: &[SlotRange]) -> Vec<u32> {
    let slots = |range: &SlotRange| range.start..range.start + range.length;
    ranges.iter().flat_map(slots).collect()
}

fn adapter(adapter: u64) -> RootKey {
    RootKey {
        adapter,
        salt: None,
    }
}

/// Every slot is free, in one node of the tree, or one holding's own.
fn audit<'a>(pool: &KvPool, live: impl Iterator<Item = &'a Holding>) {
    let live: Vec<&Holding> = live.collect();
    let ends: Vec<_> = live.iter().map(|holding| holding.end).collect();
    let mut slots = expand(&pool.tree.audit(&ends));
    for holding in live {
        let own = expand(&pool.own(holding));
        assert_eq!(own.len(), holding.own() as usize);
        slots.extend(own);
    }
    let mut unallocated = pool.allocator.clone();
    slots.extend(expand(
        &unallocated.allocate(unallocated.available()).unwrap(),
    ));
    slots.sort_unstable();
    assert_eq!(slots, (0..pool.capacity()).collect::<Vec<u32>>());
}
