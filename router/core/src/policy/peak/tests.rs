use proptest::prelude::*;

use super::*;

/// Every request runs to the end of what it may generate.
fn certain() -> OutputLengths {
    let mut lengths = OutputLengths::default();
    (0..1064).for_each(|_| lengths.observe_cut(2000));
    lengths.refresh([]);
    lengths
}

/// Runs all to their ends, step by step; returns the most slots in use.
fn simulate(mut demands: Vec<Demand>) -> u64 {
    let mut most = 0;
    while !demands.is_empty() {
        most = most.max(demands.iter().map(|demand| u64::from(demand.slots)).sum());
        demands.retain_mut(|demand| {
            demand.slots += 1;
            demand.left = demand.left.wrapping_sub(1);
            demand.left != u32::MAX
        });
    }
    most
}

fn demand() -> impl Strategy<Value = Demand> {
    (0u32..3000, 0u32..1000, 0u32..1000).prop_map(|(slots, generated, left)| Demand {
        slots,
        generated,
        left,
    })
}

proptest! {
    /// Where all is certain the forecast is the peak, but for what grows from one moment to the next.
    #[test]
    fn what_is_certain_is_the_peak_of_a_simulation(
        demands in prop::collection::vec(demand(), 0..40), shared in 0u64..10_000,
    ) {
        let lengths = certain();
        let peak = Forecast::of(&lengths, demands.iter().copied()).peak(shared);
        let exact = shared + simulate(demands.clone());
        prop_assert!(peak >= exact);
        let moments = lengths.ahead().windows(2).filter(|pair| pair[0] <= 1000.0);
        let widest = moments.map(|pair| pair[1] - pair[0]).fold(0.0, f32::max);
        prop_assert!(peak as f32 <= exact as f32 * 1.0001 + 1.0 + widest * demands.len() as f32);
    }

    #[test]
    fn a_request_more_or_more_of_a_request_never_needs_less(
        demands in prop::collection::vec(demand(), 0..40), new in demand(), more in 0u32..500,
    ) {
        let lengths = OutputLengths::default();
        let before = Forecast::of(&lengths, demands.iter().copied());
        let with = |demand| {
            let mut forecast = before.clone();
            forecast.add(&lengths, demand);
            forecast.peak(0)
        };
        let peak = with(new);
        prop_assert!(peak >= before.peak(0));
        prop_assert!(peak >= u64::from(new.slots));
        let larger = with(Demand { slots: new.slots + more, ..new });
        let longer = with(Demand { left: new.left + more, ..new });
        prop_assert!(larger >= peak && longer >= peak);
    }
}

#[test]
fn sixteen_chats_without_a_limit_fit_at_once() {
    let chat = Demand {
        slots: 2000,
        generated: 0,
        left: 131_072 - 2000,
    };
    assert!(Forecast::of(&OutputLengths::default(), [chat; 16]).peak(0) < 840_000 / 8);
}

#[test]
fn a_limit_is_believed() {
    let short = Demand {
        slots: 50,
        generated: 0,
        left: 1,
    };
    assert_eq!(
        Forecast::of(&OutputLengths::default(), [short; 10]).peak(7),
        7 + 10 * 51
    );
    assert_eq!(Forecast::default().peak(7), 7);
}
