//! Who decodes, and who pauses.

use super::*;

/// Three requests, of which none has a slot for its next token, and `free` slots.
fn three_short(free: u32) -> Case {
    Case {
        free,
        ..Case::with((0..3).map(short).collect(), prompts(&[5]))
    }
}

#[test]
fn nothing_to_do_is_an_idle_step() {
    let plan = Case::idle(Vec::new()).plan();
    assert!(plan.is_idle());
    assert_eq!(plan, Plan::default());
}

#[test]
fn all_that_can_decode_do_in_every_step() {
    let mut running = many(3);
    running.push(begun(3, 10));
    running[1].decodes = false;
    let plan = Case::with(running, prompts(&[5])).plan();
    assert_eq!(plan.decode, [0, 2]);
    assert!(plan.pause.is_empty());
}

#[test]
fn exactly_enough_slots_pause_nobody() {
    let plan = three_short(3).plan();
    assert_eq!(plan.decode, [0, 1, 2]);
    assert!(plan.pause.is_empty() && plan.admit.is_empty());
}

#[test]
fn slots_that_decodes_take_are_not_given_to_a_prompt() {
    // The prompt and its first token need 6.
    assert!(three_short(8).plan().admit.is_empty());
    assert_eq!(three_short(9).plan().admit.len(), 1);
}

#[test]
fn the_newest_pauses_and_those_before_it_get_the_slots_that_are_left() {
    let plan = three_short(1).plan();
    assert_eq!((plan.pause, plan.decode), (vec![2], vec![0]));
    // Its place among the rows does not matter.
    let mut case = three_short(1);
    case.running.reverse();
    let plan = case.plan();
    assert_eq!((plan.pause, plan.decode), (vec![0], vec![2]));
}

#[test]
fn a_newer_request_of_higher_priority_pauses_later() {
    let mut case = three_short(2);
    case.running[2].order.due = -10_000;
    let plan = case.plan();
    assert_eq!((plan.pause, plan.decode), (vec![1], vec![0, 2]));
}

#[test]
fn who_has_a_slot_decodes_while_those_without_stand_still() {
    let mut case = three_short(0);
    case.running.insert(1, decoding(9));
    case.running.push(decoding(8));
    let plan = case.plan();
    assert_eq!((plan.pause, plan.decode), (vec![1], vec![4]));
}

#[test]
fn the_first_of_several_never_pauses() {
    let mut case = three_short(0);
    for request in &mut case.running {
        request.demand.slots = 0;
    }
    assert_eq!(case.plan().pause, [2, 1]);
}

#[test]
fn who_is_alone_and_finds_no_slot_pauses_once_nobody_leaves() {
    let mut case = three_short(0);
    case.running.truncate(1);
    case.freeing = 1;
    assert_eq!(case.plan(), Plan::default());
    case.freeing = 0;
    let plan = case.plan();
    assert!(plan.is_idle());
    assert_eq!(plan.pause, [0]);
}

#[test]
fn as_many_pause_as_make_room_for_those_that_stay() {
    let mut case = Case::with((0..40).map(short).collect(), Vec::new());
    case.free = 0;
    for request in &mut case.running {
        request.demand.slots = 15;
    }
    // 37 stay, and 45 slots come.
    assert_eq!(case.plan().pause, [39, 38, 37]);
}

#[test]
fn a_prompt_that_was_begun_pauses_too_and_gets_no_chunk() {
    for chunking in [true, false] {
        let mut case = three_short(1);
        case.limits.prefill_chunking = chunking;
        case.running.push(begun(9, 30));
        let plan = case.plan();
        assert_eq!((plan.pause, plan.decode), (vec![3], vec![0]));
        assert!(plan.chunks.is_empty());
    }
}

#[test]
fn what_pauses_already_is_waited_for() {
    let mut case = three_short(1);
    case.freeing = 100;
    let plan = case.plan();
    assert_eq!((plan.pause, plan.decode), (vec![], vec![0]));
    case.freeing = 1;
    assert_eq!(case.plan().pause, [2]);
}

#[test]
fn who_ends_anyway_is_waited_for_and_does_not_pause() {
    let mut case = three_short(1);
    case.running.push(Running {
        decodes: false,
        ..decoding(9)
    });
    let plan = case.plan();
    assert_eq!((plan.pause, plan.decode), (vec![], vec![0]));
    assert!(plan.admit.is_empty());
}

#[test]
fn nobody_starts_while_somebody_pauses() {
    for chunking in [true, false] {
        let mut case = three_short(1);
        case.limits.prefill_chunking = chunking;
        case.decodes_since_joining = 30;
        assert!(case.plan().admit.is_empty());
        // Enough slots, but they were just taken from somebody.
        case.free = 500;
        assert_eq!(case.plan().admit.len(), 1);
        case.freeing = 1;
        assert!(case.plan().admit.is_empty());
    }
}
