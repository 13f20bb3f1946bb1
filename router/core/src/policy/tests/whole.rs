//! Without chunking: TGI's v2 loop, in which a step is whole prompts or a decode of all that runs.

use super::*;

fn whole(running: u64, queue: Vec<Candidate>, steps: u32) -> Case {
    let mut case = Case::with(many(running), queue);
    case.limits.prefill_chunking = false;
    case.limits.waiting_served_ratio = WaitingServedRatio::Fixed(0.5);
    case.rows = 8 - running as usize;
    case.decodes_since_joining = steps;
    case
}

/// A step of the first `count` prompts, which interrupts for this reason.
fn assert_prefill(case: &Case, count: usize, joined: Option<Joined>) {
    let plan = case.plan();
    assert!(plan.decode.is_empty(), "prompts are computed alone");
    let lengths = case.queue.iter().map(|candidate| candidate.length);
    let expected: Vec<_> = lengths.take(count).enumerate().collect();
    assert_eq!(case.admitted(), expected, "whole, and first in, first out");
    assert_eq!(plan.joined, joined);
}

fn assert_decode(case: &Case) {
    let plan = case.plan();
    assert_eq!(plan.decode.len(), case.running.len());
    assert!(plan.admit.is_empty() && plan.chunks.is_empty() && plan.joined.is_none());
}

#[test]
fn an_idle_server_computes_whatever_waits() {
    assert!(whole(0, Vec::new(), 0).plan().is_idle());
    assert_prefill(&whole(0, prompts(&[5]), 0), 1, None);
}

#[test]
fn a_prefill_is_bounded_by_its_tokens_and_by_rows_without_skipping_the_head() {
    assert_prefill(&whole(0, prompts(&[60, 40, 1]), 0), 2, None);
    assert_prefill(&whole(0, prompts(&[60, 50, 1]), 0), 1, None);
    assert_prefill(&whole(0, prompts(&[1; 20]), 0), 8, None);
}

#[test]
fn running_requests_are_interrupted_when_enough_wait_or_after_long_enough() {
    let case = |waiting: usize, steps| whole(4, prompts(&vec![1; waiting]), steps);
    // A decode follows every prefill.
    assert_decode(&case(4, 0));
    assert_decode(&case(1, 1));
    assert_prefill(&case(2, 1), 2, Some(Joined::Backpressure));
    assert_decode(&case(1, 18));
    assert_prefill(&case(1, 19), 1, Some(Joined::WaitExceeded));
    assert_decode(&case(0, 19));
}

#[test]
fn a_decode_follows_a_prefill_even_where_nobody_is_to_wait() {
    let mut case = whole(4, prompts(&[1]), 0);
    case.limits.max_waiting_tokens = 0;
    assert_decode(&case);
    case.decodes_since_joining = 1;
    assert_prefill(&case, 1, Some(Joined::WaitExceeded));
}

#[test]
fn how_many_wait_decides_not_how_many_fit_into_one_prefill() {
    // Four run, so two must wait; they do, but a prefill takes one of them.
    let case = whole(4, prompts(&[90, 90]), 1);
    assert_prefill(&case, 1, Some(Joined::Backpressure));
}

#[test]
fn without_rows_or_slots_running_requests_are_not_interrupted() {
    let mut case = whole(4, prompts(&[50, 50]), 30);
    case.free = 50;
    assert_decode(&case);
    case.free = 51;
    assert_prefill(&case, 1, Some(Joined::WaitExceeded));
    case.rows = 0;
    assert_decode(&case);
}

#[test]
fn slots_are_judged_by_the_peak_not_by_the_sum_of_worst_cases() {
    let mut case = whole(1, prompts(&[50, 50]), 30);
    case.running[0].demand.left = 100;
    case.queue.iter_mut().for_each(|short| short.left = 5);
    case.limits.max_batch_total_tokens = 220;
    case.free = 200;
    // 20 + 100, and twice 51 + 5, are more than there are.
    assert_prefill(&case, 2, Some(Joined::WaitExceeded));
}

#[test]
fn neither_the_gap_nor_the_efficient_size_cuts_a_prompt() {
    let mut case = whole(0, prompts(&[2000, 1000]), 0);
    case.cost = card();
    case.free = 10_000;
    case.limits.max_batch_total_tokens = 10_000;
    case.limits.max_batch_prefill_tokens = 4096;
    case.limits.max_token_gap = Some(ms(1.0));
    assert_prefill(&case, 2, None);
}

#[test]
fn a_paused_request_that_is_too_long_for_one_step_is_computed_alone_in_several() {
    let case = whole(0, prompts(&[150, 10]), 0);
    assert_eq!(case.admitted(), [(0, 100)]);
    let mut case = whole(2, prompts(&[10]), 0);
    case.running.push(begun(2, 50));
    let plan = case.plan();
    assert_eq!(plan.chunks, [(2, 50)]);
    assert!(plan.decode.is_empty() && plan.admit.is_empty());
    // Behind another prompt it waits for a step of its own.
    assert_eq!(whole(0, prompts(&[10, 150]), 0).admitted(), [(0, 10)]);
}
