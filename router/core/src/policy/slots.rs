//! Choice of the requests that decode, and of those that must pause because slots run short.

use super::{Plan, Situation};

/// Lets running requests decode as far as there are slots, first those that come first, and pauses others. Returns how
/// many slots are still free.
pub(super) fn decide_decodes(situation: &Situation<'_>, plan: &mut Plan) -> u32 {
    let running = situation.running;
    let decoding = || (0..running.len()).filter(|&index| running[index].decodes);
    let lacking = decoding()
        .filter(|&index| running[index].lacks_slot)
        .count();
    let lacking = u32::try_from(lacking).unwrap_or(u32::MAX);
    if lacking <= situation.free {
        plan.decode.extend(decoding());
        return situation.free - lacking;
    }
    plan.pause = pauses(situation, lacking - situation.free);
    let mut in_order: Vec<usize> = decoding()
        .filter(|index| !plan.pause.contains(index))
        .collect();
    in_order.sort_unstable_by_key(|&index| running[index].place());
    let mut free = situation.free;
    for index in in_order {
        if running[index].lacks_slot {
            // Without one it stands still until those that pause have left.
            if free == 0 {
                continue;
            }
            free -= 1;
        }
        plan.decode.push(index);
    }
    plan.decode.sort_unstable();
    free
}

/// Who pauses, until as many slots come free as are `missing`: of the tenant that was served most, the newest of the
/// lowest priority first. Of several, the request that comes first never does, and those that end anyway need not.
fn pauses(situation: &Situation<'_>, mut missing: u32) -> Vec<usize> {
    let running = situation.running;
    let (mut newest_first, ending): (Vec<usize>, Vec<usize>) =
        (0..running.len()).partition(|&index| !running[index].ends());
    let mut coming = situation.freeing;
    for index in ending {
        coming = coming.saturating_add(running[index].own_slots());
    }
    newest_first.sort_unstable_by_key(|&index| std::cmp::Reverse(running[index].place()));
    // One that is alone holds copies of what the tree has too; they are free once it has left, and when it starts again
    // it reads those of the tree.
    if running.len() > 1 {
        newest_first.pop();
    }
    let mut paused = Vec::new();
    for index in newest_first {
        if coming >= missing {
            break;
        }
        coming = coming.saturating_add(running[index].own_slots());
        missing -= u32::from(running[index].lacks_slot);
        paused.push(index);
    }
    paused
}
