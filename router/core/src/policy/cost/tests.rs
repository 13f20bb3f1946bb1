use proptest::prelude::*;
use text_generation_client::types::WindowCost;

use super::*;

fn ms(time: f64) -> Duration {
    Duration::from_secs_f64(time / 1e3)
}

/// A card that reads its weights in 4 ms and computes 100 tokens in each further ms.
fn card() -> StepCost {
    let graphs = [64, 128, 256, 512, 1024];
    StepCost::new(
        &[64, 400, 1000, 2000],
        &[4.0, 4.0, 10.0, 20.0],
        2.0,
        1.0,
        &graphs,
    )
}

fn decodes(count: u32, context: u32) -> StepShape {
    let mut shape = StepShape::default();
    for _ in 0..count {
        shape.add_decode(context);
    }
    shape
}

#[test]
fn time_follows_the_points_in_straight_lines_and_goes_on_beyond_them() {
    let cost = card();
    for (tokens, time) in [
        (1, 4.0),
        (64, 4.0),
        (400, 4.0),
        (700, 7.0),
        (2000, 20.0),
        (3000, 30.0),
    ] {
        assert_eq!(
            cost.predict(&decodes(tokens, 0)),
            ms(time),
            "{tokens} tokens"
        );
    }
    assert_eq!(cost.predict(&StepShape::default()), Duration::ZERO);
}

#[test]
fn attention_adds_for_each_position_attended_to() {
    // 8 decodes of 1,000,000 positions each, 1 ns for each.
    assert_eq!(card().predict(&decodes(8, 1_000_000)), ms(4.0 + 8.0));
    let mut shape = StepShape::default();
    shape.add_chunk(10, 3);
    assert_eq!(shape.pairs, 11 + 12 + 13);
    shape.add_chunk(0, 2);
    assert_eq!((shape.pairs, shape.chunk_tokens), (36 + 1 + 2, 5));
}

#[test]
fn a_step_with_chunks_takes_as_long_as_its_graph() {
    let cost = card();
    let step = |count| {
        cost.predict(&StepShape {
            chunk_tokens: count,
            ..StepShape::default()
        })
    };
    assert_eq!(step(513), step(1024));
    assert!(step(1024) < step(1025));
    // Decodes alone have graphs of their own.
    assert!(cost.predict(&decodes(513, 0)) < step(513));
}

#[test]
fn nothing_measured_promises_nothing() {
    let unusable = StepCost::new(
        &[0, 8, 16],
        &[1.0, f32::NAN, -1.0],
        f32::INFINITY,
        -1.0,
        &[],
    );
    for cost in [StepCost::new(&[], &[], 0.0, 0.0, &[]), unusable] {
        assert_eq!(cost.predict(&decodes(100, 1000)), Duration::ZERO);
        assert_eq!(
            cost.chunk_tokens_within(&decodes(100, 1000), 0, 9000, Some(ms(1.0))),
            9000
        );
        assert_eq!(cost.efficient_tokens(), None);
    }
}

#[test]
fn a_chunk_is_as_long_as_the_gap_allows() {
    let cost = card();
    // The graph of 1,024 tokens takes 10.24 ms, attention 1 ms.
    assert_eq!(
        cost.chunk_tokens_within(&decodes(24, 0), 0, 5000, Some(ms(11.25))),
        1000
    );
    assert_eq!(
        cost.chunk_tokens_within(&decodes(24, 0), 0, 700, Some(ms(11.25))),
        700
    );
    assert_eq!(
        cost.chunk_tokens_within(&decodes(24, 0), 0, 5000, None),
        5000
    );
    // Far behind in a prompt each token attends to more.
    let far = cost.chunk_tokens_within(&decodes(24, 0), 30_000, 5000, Some(ms(12.0)));
    assert!((32..200).contains(&far), "{far}");
}

#[test]
fn a_cut_chunk_fills_a_graph_where_that_is_faster() {
    let cost = card();
    // 100 tokens at position 10,000 take 2 ms of attention: 512 - 24 of them would take too long.
    let cut = cost.chunk_tokens_within(&decodes(24, 0), 10_000, 5000, Some(ms(9.2)));
    assert_eq!(cut, 256 - 24);
    // Only just short of a graph it stays: the padding costs less than another step.
    let cut = cost.chunk_tokens_within(&decodes(24, 0), 10_000, 5000, Some(ms(14.8)));
    assert!((470..512 - 24).contains(&cut), "{cut}");
}

#[test]
fn a_prompt_gets_on_even_where_decodes_alone_take_too_long() {
    let cost = card();
    let slow = decodes(200, 50_000);
    // The graph of 256 is paid for anyway.
    assert_eq!(
        cost.chunk_tokens_within(&slow, 0, 5000, Some(ms(1.0))),
        256 - 200
    );
    assert_eq!(cost.chunk_tokens_within(&slow, 0, 5, Some(ms(1.0))), 5);
    let mut chunks = slow;
    chunks.add_chunk(0, 56);
    assert_eq!(cost.chunk_tokens_within(&chunks, 0, 5000, Some(ms(1.0))), 0);
}

#[test]
fn the_correction_follows_what_steps_take_and_not_an_outlier() {
    let (mut cost, shape) = (card(), decodes(64, 0));
    cost.observe(ms(4.0), Duration::from_secs(10));
    assert!(cost.predict(&shape) < ms(4.2));
    for _ in 0..200 {
        cost.observe(cost.predict(&shape), ms(6.0));
    }
    assert!(cost.predict(&shape).abs_diff(ms(6.0)) < ms(0.01));
    for _ in 0..1000 {
        cost.observe(cost.predict(&shape), Duration::from_secs(10));
    }
    assert_eq!(cost.predict(&shape), ms(16.0));
    cost.observe(Duration::ZERO, ms(1.0));
    cost.observe(ms(1.0), Duration::ZERO);
    assert_eq!(cost.predict(&shape), ms(16.0));
}

#[test]
fn efficient_is_the_fewest_tokens_near_the_best_time_for_each() {
    assert_eq!(card().efficient_tokens(), Some(400));
    let cost = StepCost::new(&[4000, 100, 2000], &[20.0, 4.0, 10.2], 0.0, 0.0, &[]);
    assert_eq!(cost.efficient_tokens(), Some(2000));
}

proptest! {
    #[test]
    fn chunks_keep_the_gap_or_are_the_smallest(
        rows in 0u32..300, context in 0u32..100_000, first in 0u32..100_000, most in 1u32..20_000, gap in 1u32..60,
        times in prop::collection::vec(0.1f32..40.0, 3),
    ) {
        let cost = StepCost::new(&[32, 300, 2000], &times, 1.0, 0.5, &[32, 64, 128, 256, 512, 1024, 2048]);
        let shape = decodes(rows, context);
        let gap = ms(f64::from(gap));
        let count = cost.chunk_tokens_within(&shape, first, most, Some(gap));
        let time = |count| cost.predict(&shape.with_chunk(first, count));
        let least = MIN_CHUNK_TOKENS.min(most);
        prop_assert!((least..=most).contains(&count));
        prop_assert!(time(count) <= gap.max(time(least).mul_f64(FILL)) + Duration::from_nanos(1));
        prop_assert!(time(count) <= time(count + 1));
        prop_assert!(cost.chunk_tokens_within(&shape, first, most, Some(gap * 2)) >= count.min(least));
    }
}

#[test]
fn windows_take_what_was_measured_of_their_width_and_read_their_context() {
    let measured = MeasuredCost {
        tokens: vec![1, 64],
        times_ms: vec![4.0, 9.0],
        context_ns: 1.0,
        windows: vec![WindowCost {
            width: 2,
            rows: vec![1, 8],
            times_ms: vec![5.0, 12.0],
            context_ns: 1.5,
        }],
        ..MeasuredCost::default()
    };
    let mut cost = StepCost::from(&measured);
    assert_eq!(cost.predict_windows(&decodes(1, 0), 2), Some(ms(5.0)));
    let with_context = cost.predict_windows(&decodes(8, 1_000_000), 2);
    assert_eq!(with_context, Some(ms(12.0 + 12.0)));
    assert_eq!(cost.predict_windows(&decodes(1, 0), 4), None);
    let mut with_prompt = decodes(1, 0);
    with_prompt.add_chunk(0, 8);
    assert_eq!(cost.predict_windows(&with_prompt, 2), None);
    (0..200).for_each(|_| cost.observe(ms(1.0), ms(2.0)));
    assert!(cost.predict_windows(&decodes(1, 0), 2) > Some(ms(5.0)));
}
