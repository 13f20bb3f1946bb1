//! Prompts in chunks beside the decodes.

use super::*;

/// Requests that decode at 1,000 positions each, on a measured card.
fn busy(decodes: u64, gap: f64, queue: Vec<Candidate>) -> Case {
    let mut case = Case::with(many(decodes), queue);
    for request in &mut case.running {
        request.computed = 1000;
    }
    case.cost = card();
    case.free = 100_000;
    case.limits.max_batch_total_tokens = 200_000;
    case.limits.max_batch_prefill_tokens = 4096;
    case.limits.max_token_gap = Some(ms(gap));
    case.limits.waiting_served_ratio = WaitingServedRatio::Fixed(0.0);
    case
}

#[test]
fn an_idle_server_computes_whatever_waits() {
    assert_eq!(Case::idle(prompts(&[5, 7])).admitted(), [(0, 5), (1, 7)]);
    let plan = Case::idle(prompts(&[5])).plan();
    assert_eq!((plan.joined, plan.decode.len()), (None, 0));
}

#[test]
fn a_step_has_at_most_max_batch_prefill_tokens() {
    assert_eq!(
        Case::idle(prompts(&[60, 60, 1])).admitted(),
        [(0, 60), (1, 40)]
    );
    assert_eq!(Case::idle(prompts(&[300])).admitted(), [(0, 100)]);
}

#[test]
fn where_nobody_decodes_a_chunk_is_as_large_as_is_efficient_whatever_the_gap() {
    // 512 tokens take 10.8 ms; more at once are no faster.
    assert_eq!(busy(0, 1.0, prompts(&[5000])).admitted(), [(0, 512)]);
    let mut case = busy(0, 1.0, prompts(&[5000]));
    case.limits.max_batch_prefill_tokens = 300;
    assert_eq!(case.admitted(), [(0, 300)]);
}

#[test]
fn beside_decodes_a_chunk_keeps_the_gap() {
    // With 16 decodes a graph of 512 tokens takes 10.8 ms.
    let case = busy(16, 12.0, prompts(&[5000, 5000]));
    assert_eq!(case.admitted(), [(0, 512 - 16)]);
    let case = busy(16, 12.0, prompts(&[400, 5000]));
    assert_eq!(case.admitted(), [(0, 400), (1, 512 - 16 - 400)]);
    let mut case = busy(16, 12.0, prompts(&[5000]));
    case.limits.max_token_gap = None;
    assert_eq!(case.admitted(), [(0, 4096)]);
}

#[test]
fn a_prompt_gets_on_even_where_decodes_alone_take_longer_than_the_gap() {
    let case = busy(16, 1.0, prompts(&[5000, 5000]));
    let [(0, count)] = case.admitted()[..] else {
        panic!("only the first")
    };
    assert!(count >= cost::MIN_CHUNK_TOKENS);
}

#[test]
fn prompts_that_were_begun_continue_first_and_in_order() {
    let mut case = Case::with(
        vec![begun(2, 30), begun(1, 40), decoding(0)],
        prompts(&[90]),
    );
    let plan = case.plan();
    assert_eq!(plan.chunks, [(1, 40), (0, 30)]);
    assert_eq!(
        plan.admit,
        [Admission {
            index: 0,
            count: 30
        }]
    );
    case.running[1].prompt_left = 300;
    let plan = case.plan();
    assert_eq!(plan.chunks, [(1, 100)]);
    assert!(plan.admit.is_empty());
}

#[test]
fn only_what_is_not_cached_is_computed() {
    let cached = Candidate {
        cached: 80,
        ..prompt(100)
    };
    let case = Case::idle(vec![cached, prompt(200)]);
    assert_eq!(case.admitted(), [(0, 20), (1, 80)]);
}

#[test]
fn joining_is_reported_only_where_somebody_starts_beside_decodes() {
    let mut case = Case::with(many(4), prompts(&[5]));
    case.decodes_since_joining = 30;
    case.free = 3;
    assert_eq!(case.plan().joined, None);
    let case = Case::with(vec![begun(0, 10)], prompts(&[5]));
    let plan = case.plan();
    assert_eq!((plan.admit.len(), plan.joined), (1, None));
}

#[test]
fn who_does_not_fit_holds_back_those_behind() {
    let mut case = Case::idle(prompts(&[10, 60, 5]));
    case.free = 40;
    assert_eq!(case.admitted(), [(0, 10)]);
    // The slot of the first token counts.
    case.free = 11 + 60;
    assert_eq!(case.admitted(), [(0, 10)]);
    case.free += 1;
    assert_eq!(case.admitted(), [(0, 10), (1, 60)]);
}

#[test]
fn cached_slots_that_nobody_uses_are_taken_from_the_free_ones() {
    let candidate = |unlocked| Candidate {
        cached: 50,
        unlocked,
        ..prompt(60)
    };
    let mut case = Case::idle(vec![candidate(0)]);
    case.free = 11;
    assert_eq!(case.admitted(), [(0, 10)]);
    case.queue = vec![candidate(1)];
    assert!(case.admitted().is_empty());
    case.free = 12;
    assert_eq!(case.admitted(), [(0, 10)]);
}

#[test]
fn who_follows_another_is_skipped_and_holds_nobody_back() {
    let follower = Candidate {
        follows: true,
        ..prompt(10)
    };
    let too_large = Candidate {
        follows: true,
        ..prompt(5000)
    };
    let case = Case::idle(vec![follower, too_large, prompt(5), follower, prompt(6)]);
    assert_eq!(case.admitted(), [(2, 5), (4, 6)]);
}

#[test]
fn no_more_start_than_there_are_rows() {
    let mut case = Case::idle(prompts(&[1; 20]));
    assert_eq!(case.admitted().len(), 8);
    case.rows = 0;
    assert!(case.plan().is_idle());
}

#[test]
fn alone_a_request_runs_whatever_is_expected_of_it() {
    // Outputs of 2,000 tokens are expected of a pool of 1,000.
    let mut case = Case::idle(vec![
        Candidate {
            left: 940,
            ..prompt(60)
        };
        2
    ]);
    for _ in 0..1064 {
        case.lengths.observe(2000);
    }
    case.lengths.refresh([]);
    assert_eq!(case.admitted(), [(0, 60)]);
    let mut case = Case::with(many(1), case.queue);
    case.free = 980;
    case.decodes_since_joining = 30;
    assert!(case.plan().admit.is_empty());
}

#[test]
fn slots_are_judged_by_what_outputs_were_like_and_not_by_what_they_may_become() {
    let queue = vec![
        Candidate {
            left: 900,
            ..prompt(20)
        };
        8
    ];
    let mut case = Case::with(many(1), queue);
    case.free = 980;
    for _ in 0..1064 {
        case.lengths.observe(10);
    }
    case.lengths.refresh([]);
    assert_eq!(
        case.admitted().len(),
        5,
        "all that 100 tokens are enough for"
    );
    assert!(case.admitted().iter().all(|&(_, count)| count == 20));
}
