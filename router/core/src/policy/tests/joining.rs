//! When waiting prompts join the requests that decode.

use super::*;

#[test]
fn waiting_requests_join_when_enough_of_them_wait_or_long_enough() {
    let joins = |waiting: usize, steps| {
        let mut case = Case::with(many(4), prompts(&vec![1; waiting]));
        case.limits.waiting_served_ratio = WaitingServedRatio::Fixed(0.5);
        case.decodes_since_joining = steps;
        let plan = case.plan();
        assert_eq!(plan.decode, [0, 1, 2, 3], "beside the decodes");
        assert_eq!(plan.admit.is_empty(), plan.joined.is_none());
        plan.joined
    };
    assert_eq!(joins(1, 0), None);
    assert_eq!(joins(2, 0), Some(Joined::Backpressure));
    assert_eq!(joins(1, 18), None);
    assert_eq!(joins(1, 19), Some(Joined::WaitExceeded));
    assert_eq!(joins(0, 19), None);
}

/// Of these four decode, and one computes its prompt.
fn with_a_prompt_under_way(waiting: &[u32], ratio: WaitingServedRatio) -> Case {
    let mut running = many(4);
    running.push(begun(4, 10));
    let mut case = Case::with(running, prompts(waiting));
    case.limits.waiting_served_ratio = ratio;
    case
}

#[test]
fn while_a_prompt_is_computed_others_join_by_the_ratio() {
    let two = WaitingServedRatio::Fixed(0.5);
    let plan = with_a_prompt_under_way(&[5], two).plan();
    assert_eq!(
        (plan.chunks.as_slice(), plan.admit.len()),
        ([(4, 10)].as_slice(), 0)
    );
    let plan = with_a_prompt_under_way(&[5, 5], two).plan();
    assert_eq!(
        (plan.admit.len(), plan.joined),
        (2, Some(Joined::Backpressure))
    );
    let mut late = with_a_prompt_under_way(&[5], two);
    late.decodes_since_joining = 19;
    assert_eq!(late.plan().joined, Some(Joined::WaitExceeded));
}

#[test]
fn with_auto_others_join_a_prompt_that_is_computed_anyway() {
    let mut case = with_a_prompt_under_way(&[5], WaitingServedRatio::Auto);
    case.arrivals = every(ms(1.0), 5);
    assert_eq!(case.plan().admit.len(), 1);
}

/// Requests have come at this distance until now, with prompts of so many tokens.
fn every(distance: Duration, prompt_tokens: u32) -> Arrivals {
    let mut arrivals = Arrivals::default();
    for index in (0..5000).rev() {
        arrivals.ready(NOW.saturating_sub(distance * index), 1);
        arrivals.started(prompt_tokens);
    }
    arrivals
}

/// So many decode, requests come at this distance, and so many wait, all with prompts of so many tokens.
fn auto(decodes: u64, distance_ms: f64, waiting: usize, tokens: u32) -> Case {
    let mut case = Case::with(many(decodes), prompts(&vec![tokens; waiting]));
    case.limits = BatchLimits {
        waiting_served_ratio: WaitingServedRatio::Auto,
        max_batch_prefill_tokens: 4096,
        max_token_gap: Some(ms(36.0)),
        max_batch_size: 512,
        max_batch_total_tokens: 500_000,
        ..limits()
    };
    case.rows = 512 - decodes as usize;
    case.free = 400_000;
    case.cost = card();
    case.arrivals = every(ms(distance_ms), tokens);
    case
}

#[test]
fn with_auto_prompts_that_share_a_step_wait_for_each_other() {
    let case = |waiting| auto(250, 10.0, waiting, 64);
    let ratio = case(1).plan().ratio.unwrap();
    let wanted = (250.0 * ratio) as usize;
    assert!((2..30).contains(&wanted), "{wanted}");
    assert_eq!(case(wanted - 1).plan().joined, None);
    let plan = case(wanted).plan();
    assert_eq!(
        (plan.admit.len(), plan.joined),
        (wanted, Some(Joined::Backpressure))
    );
    // Rarer ones, and fewer that would be interrupted, wait for fewer.
    assert!(auto(250, 40.0, 1, 64).plan().ratio.unwrap() < ratio);
    assert!(auto(60, 10.0, 1, 64).plan().ratio.unwrap() * 60.0 < 250.0 * ratio);
}

#[test]
fn with_auto_prompts_start_at_once_where_waiting_gains_nothing() {
    let starts = |case: Case| case.plan().joined == Some(Joined::Backpressure);
    assert!(starts(auto(4, 10.0, 1, 64)), "few streams");
    assert!(starts(auto(250, 5000.0, 1, 64)), "requests are rare");
    assert!(starts(auto(64, 40.0, 1, 2048)), "a prompt fills a step");
    let mut unknown = auto(250, 10.0, 1, 64);
    unknown.arrivals = Arrivals::default();
    assert!(starts(unknown));
    let mut unmeasured = auto(250, 10.0, 1, 64);
    unmeasured.cost = StepCost::new(&[], &[], 0.0, 0.0, &[]);
    assert!(starts(unmeasured));
}

#[test]
fn with_auto_rows_that_are_short_are_filled_together() {
    let mut case = auto(250, 10.0, 400, 64);
    case.rows = 1;
    assert_eq!(case.plan().joined, None);
    case.rows = 20;
    assert_eq!(case.plan().admit.len(), 20);
}

#[test]
fn with_auto_nobody_is_held_back_for_more_than_max_waiting_tokens() {
    let mut case = auto(250, 10.0, 1, 64);
    case.decodes_since_joining = 18;
    assert_eq!(case.plan().joined, None);
    case.decodes_since_joining = 19;
    assert_eq!(case.plan().joined, Some(Joined::WaitExceeded));
}

#[test]
fn without_chunking_auto_weighs_steps_of_prompts_alone() {
    let mut case = auto(250, 10.0, 1, 64);
    case.limits.prefill_chunking = false;
    case.decodes_since_joining = 1;
    let wanted = (250.0 * case.plan().ratio.unwrap()) as usize;
    assert!(wanted >= 2, "{wanted}");
    assert!(case.plan().admit.is_empty());
    case.queue = prompts(&vec![64; wanted]);
    assert_eq!(case.plan().admit.len(), wanted);
}

#[test]
fn a_ratio_is_shown_as_the_decimal_that_was_given_or_with_four_places() {
    let given = |ratio| WaitingServedRatio::Fixed(ratio).shown(ratio);
    assert_eq!([given(0.3), given(1e-6), given(2.0)], [0.3, 1e-6, 2.0]);
    let found = |ratio| WaitingServedRatio::Auto.shown(ratio);
    assert_eq!([found(0.000_015_657_464), found(1.0 / 3.0)], [0.0, 0.3333]);
}
