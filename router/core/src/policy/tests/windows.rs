//! How wide the windows of a step are.

use super::*;
use crate::policy::windows::{DraftShare, Windows};

/// Decodes with drafts of which, after many steps, all or none are right.
fn drafting(number: u64, right: bool) -> Running {
    let mut share = DraftShare::default();
    (0..100).for_each(|_| share.observe(4, if right { 4 } else { 0 }));
    Running {
        drafts: share,
        ahead: 64,
        ..decoding(number)
    }
}

/// Steps of few tokens take as long as one token, and steps of many in proportion.
fn case(running: Vec<Running>) -> Case {
    Case {
        cost: StepCost::new(&[1, 64, 1024], &[4.0, 4.0, 64.0], 0.0, 0.0, &[]),
        windows: Windows::new(&[2, 4, 8], 512),
        ..Case::with(running, Vec::new())
    }
}

fn drafting_many(count: u64, right: bool) -> Vec<Running> {
    (0..count).map(|number| drafting(number, right)).collect()
}

#[test]
fn right_drafts_make_wide_windows_and_wrong_ones_none() {
    assert_eq!(case(drafting_many(1, true)).plan().width, 8);
    assert_eq!(case(drafting_many(1, false)).plan().width, 1);
}

#[test]
fn hints_make_wide_windows_before_anything_is_known_of_them() {
    let with = |share| {
        let running = vec![Running {
            drafts: share,
            ahead: 64,
            ..decoding(0)
        }];
        let slower = StepCost::new(&[1, 8], &[4.0, 7.0], 0.0, 0.0, &[]);
        Case {
            cost: slower,
            ..case(running)
        }
        .plan()
        .width
    };
    assert!(with(DraftShare::of_hints()) > with(DraftShare::default()));
}

#[test]
fn without_speculation_every_step_computes_one_token() {
    let case = Case {
        windows: Windows::default(),
        ..case(drafting_many(4, true))
    };
    assert_eq!(case.plan().width, 1);
}

#[test]
fn windows_get_narrower_where_their_tokens_cost_more() {
    let widths: Vec<u32> = [8, 64, 256]
        .map(|streams| case(drafting_many(streams, true)).plan().width)
        .to_vec();
    assert_eq!(widths[0], 8);
    assert!(widths.is_sorted_by(|a, b| a >= b), "{widths:?}");
    assert!(256 * widths[2] <= 512);
}

#[test]
fn windows_end_where_slots_do() {
    let mut running = drafting_many(4, true);
    running.iter_mut().for_each(|each| each.ahead = 1);
    let with = |free| Case {
        free,
        ..case(running.clone())
    };
    assert_eq!(
        [0, 7, 8, 23, 24].map(|free| with(free).plan().width),
        [2, 2, 4, 4, 8]
    );
}

/// With a prompt that joins those that decode.
fn joined(mut case: Case, length: u32) -> Plan {
    case.queue = vec![prompt(length)];
    let plan = case.plan();
    assert_eq!(plan.admit.len(), 1);
    plan
}

#[test]
fn windows_beside_prompts_are_as_wide_as_their_tokens_are_worth() {
    // Of a few tokens, any step takes as long.
    assert_eq!(joined(case(drafting_many(2, true)), 20).width, 8);
    assert_eq!(joined(case(drafting_many(2, false)), 20).width, 1);
    // Each token takes a sixteenth of a millisecond beside a long prompt, and alone eight take as long as one.
    let wide = joined(case(drafting_many(2, true)), 90).width;
    assert_eq!(wide, 8);
    // Where decodes alone would get as many tokens of that time, nothing is won.
    let slow = Case {
        cost: StepCost::new(&[1, 1000], &[1.0, 1000.0], 0.0, 0.0, &[]),
        ..case(drafting_many(2, true))
    };
    assert_eq!(joined(slow, 90).width, 1);
}

#[test]
fn windows_beside_prompts_keep_the_gap_and_leave_slots_to_those_that_join() {
    let mut kept = case(drafting_many(2, true));
    kept.limits.max_token_gap = Some(ms(8.0));
    let plan = joined(kept.clone(), 90);
    let takes = |width| 4.0 + 60.0 * f64::from(2 * width + plan.admit[0].count - 64) / 960.0;
    assert!(
        plan.admit[0].count > 64 && takes(plan.width) <= 8.0,
        "{plan:?}"
    );
    let mut short = case(drafting_many(2, true));
    short.running.iter_mut().for_each(|each| each.ahead = 0);
    short.free = 21 + 2 * 3;
    assert_eq!(joined(short.clone(), 20).width, 4);
    short.free = 21 + 1;
    assert_eq!(joined(short, 20).width, 1);
}

#[test]
fn steps_with_prompts_teach_their_own_factor() {
    let mut case = case(drafting_many(2, true));
    (0..100).for_each(|_| case.windows.observe(8, true, ms(4.0), ms(40.0)));
    assert_eq!(case.plan().width, 8);
    assert_eq!(joined(case, 20).width, 4);
}

#[test]
fn steps_that_take_longer_than_expected_make_windows_narrower_and_time_forgets() {
    let mut case = case(drafting_many(2, true));
    assert_eq!(case.plan().width, 8);
    for width in [2, 4, 8] {
        (0..100).for_each(|_| case.windows.observe(width, false, ms(4.0), ms(40.0)));
    }
    // Eight tokens take four times as long as expected at most.
    assert_eq!(case.plan().width, 8);
    let mut half = Windows::new(&[2], 512);
    (0..100).for_each(|_| half.observe(2, false, ms(4.0), ms(40.0)));
    case.windows = half;
    assert_eq!(case.plan().width, 1);
    (0..2000).for_each(|_| case.windows.observe(1, false, ms(4.0), ms(4.0)));
    assert_eq!(case.plan().width, 2);
}

#[test]
fn a_share_follows_what_was_right() {
    let mut share = DraftShare::default();
    let wide = |share: DraftShare| {
        let running = vec![Running {
            drafts: share,
            ahead: 64,
            ..decoding(0)
        }];
        case(running).plan().width
    };
    (0..50).for_each(|_| share.observe(1, 0));
    assert_eq!(wide(share), 1);
    (0..4).for_each(|_| share.observe(1, 1));
    assert!(wide(share) > 1, "a few right drafts are enough");
}
