use proptest::prelude::*;

use super::*;

/// The chance to get longer than `generated + ahead`, at the last moment that is not later.
fn chance(lengths: &OutputLengths, generated: u32, ahead: u32) -> f32 {
    let moments = &lengths.ahead()[..MOMENTS];
    let moment = moments.partition_point(|&begin| begin <= ahead as f32) - 1;
    lengths.chances(generated)[moment]
}

fn observed(outputs: impl IntoIterator<Item = u32>) -> OutputLengths {
    let mut lengths = OutputLengths::default();
    outputs
        .into_iter()
        .for_each(|tokens| lengths.observe(tokens));
    lengths.refresh([]);
    lengths
}

#[test]
fn from_the_first_request_on_outputs_are_expected_to_be_those_of_chats() {
    let lengths = OutputLengths::default();
    assert!((0.4..0.65).contains(&chance(&lengths, 0, 512)));
    assert!(chance(&lengths, 0, 4096) < 0.1);
}

#[test]
fn what_was_observed_is_expected() {
    let lengths = observed((0..WINDOW as u32).map(|index| index + 1));
    for (generated, ahead, expected) in [
        (0, 250, 0.75),
        (0, 500, 0.5),
        (500, 250, 0.5),
        (800, 100, 0.5),
    ] {
        let chance = chance(&lengths, generated, ahead);
        assert!(
            (chance - expected).abs() < 0.06,
            "{generated} + {ahead}: {chance}"
        );
    }
}

#[test]
fn the_oldest_outputs_are_forgotten() {
    let long = (0..WINDOW).map(|_| 4000);
    let lengths = observed(long.chain((0..WINDOW).map(|_| 10)));
    assert!(chance(&lengths, 0, 40) < 0.02);
}

#[test]
fn an_output_that_was_cut_short_does_not_make_others_look_short() {
    let mut lengths = OutputLengths::default();
    for _ in 0..WINDOW {
        lengths.observe_cut(16);
        lengths.observe(1000);
    }
    lengths.refresh([]);
    assert!(chance(&lengths, 0, 600) > 0.95);
}

#[test]
fn outputs_that_were_all_cut_short_say_nothing_of_longer_ones() {
    let mut lengths = OutputLengths::default();
    (0..2 * WINDOW).for_each(|_| lengths.observe_cut(16));
    lengths.refresh([]);
    assert!((0.4..0.65).contains(&chance(&lengths, 0, 512)));
    // Where a length is the longest that anybody may have, all are expected to get there.
    let mut lengths = OutputLengths::default();
    (0..2 * WINDOW).for_each(|_| lengths.observe_cut(2048));
    lengths.refresh([]);
    assert_eq!(chance(&lengths, 0, 2000), 1.0);
}

#[test]
fn requests_that_still_run_count_as_long_as_they_are() {
    let ended = || {
        let mut lengths = OutputLengths::default();
        (0..100).for_each(|_| lengths.observe(10));
        lengths
    };
    let (mut alone, mut beside) = (ended(), ended());
    alone.refresh([]);
    beside.refresh([400; 300]);
    assert!(chance(&alone, 0, 100) < 0.3);
    assert!(chance(&beside, 0, 100) > 0.6);
}

#[test]
fn a_request_that_outlives_all_others_is_expected_to_go_on() {
    let lengths = observed((0..WINDOW as u32).map(|index| index % 300));
    for generated in [300, 3_000, 3_000_000, u32::MAX] {
        assert!(chance(&lengths, generated, 64) > 0.25);
    }
}

proptest! {
    #[test]
    fn chances_start_with_certainty_and_fall(
        outputs in prop::collection::vec((0u32..200_000, any::<bool>()), 0..300),
        running in prop::collection::vec(0u32..200_000, 0..20),
        generated in 0u32..300_000,
    ) {
        let mut lengths = OutputLengths::default();
        for &(tokens, cut) in &outputs {
            if cut { lengths.observe_cut(tokens) } else { lengths.observe(tokens) }
        }
        (0..REFRESH).for_each(|_| lengths.refresh(running.iter().copied()));
        let chances = lengths.chances(generated);
        prop_assert_eq!(chances[0], 1.0);
        prop_assert!(chances.is_sorted_by(|a, b| a >= b));
        prop_assert!(chances[MOMENTS - 1] > 0.0);
        prop_assert_eq!(lengths.ahead()[0], 0.0);
        prop_assert!(lengths.ahead().is_sorted_by(|a, b| a < b));
    }
}
