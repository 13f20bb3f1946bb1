//! Will this set of requests ever need more slots than the pool has?
//!
//! Nothing is reserved for the worst case of every request on its own. Requests that run together grow by one slot a
//! step and give everything back when they end, so what counts is the highest sum over time. This is the admission
//! estimate of LightLLM (`router/req_queue`), which sorts by remaining length and looks at the moments when a request
//! ends; here it also covers slots granted ahead of need, and is exact for requests that run to `max_new_tokens`.
//! A request that ends earlier only lowers the sum.

/// Steps that a request must be able to run beyond the one being asked for, because shards run ahead.
pub const LOOKAHEAD: u32 = 2;

/// Slots granted beyond need while the pool has room, so that most steps carry no grant.
pub const RUN: u32 = 64;

/// What one request holds and will need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Slots that it holds.
    pub held: u32,
    /// Slots in use once its next decode step ran: prompt and the tokens generated so far.
    pub length: u32,
    /// Tokens still to come, one for each decode step.
    pub remaining: u32,
}

impl Demand {
    /// A request as it stands when its prefill has chosen the first token, with no more slots than it must have.
    pub fn admitted(input_length: u32, max_new_tokens: u32) -> Self {
        let mut demand = Self {
            held: 0,
            length: input_length.saturating_add(1),
            remaining: max_new_tokens.saturating_sub(1),
        };
        demand.held = demand.needed();
        demand
    }

    /// The most slots it will ever use. The last token is never written.
    pub fn limit(&self) -> u32 {
        self.length.saturating_add(self.remaining).saturating_sub(1)
    }

    /// The slots it must hold when its next decode is sent.
    pub fn needed(&self) -> u32 {
        self.length.saturating_add(LOOKAHEAD).min(self.limit())
    }

    /// How many slots to give it now: none while it holds what it needs, else up to that and a run out of `surplus`.
    pub fn grant(&self, surplus: &mut u32) -> u32 {
        let needed = self.needed();
        if self.held >= needed {
            return 0;
        }
        needed - self.held + self.run(surplus)
    }

    /// Slots beyond need, taken out of `surplus`.
    pub fn run(&self, surplus: &mut u32) -> u32 {
        let run = RUN.min(self.limit() - self.needed()).min(*surplus);
        *surplus -= run;
        run
    }

    /// `tokens` were generated.
    pub fn advance(&mut self, tokens: u32) {
        self.length = self.length.saturating_add(tokens);
        self.remaining = self.remaining.saturating_sub(tokens);
    }
}

/// At some step the slots held change from `constant + slope * step` by this much.
struct Change {
    step: i64,
    constant: i64,
    slope: i64,
}

/// The most slots that these requests hold at any time, each granted what it needs and no more, until all have run to
/// their last token. Step 0 is now, step 1 the next decode. O(n log n).
pub fn peak(demands: impl IntoIterator<Item = Demand>) -> u64 {
    let mut changes = Vec::new();
    let mut constant = 0;
    for demand in demands {
        constant += i64::from(demand.held);
        add_changes(demand, &mut changes);
    }
    changes.sort_unstable_by_key(|change| change.step);
    let mut slope = 0;
    let mut peak = constant;
    let mut step = 0;
    for change in changes {
        if change.step > step {
            // The sum only grows between changes: it is highest right before one.
            peak = peak.max(constant + slope * (change.step - 1));
            step = change.step;
        }
        constant += change.constant;
        slope += change.slope;
    }
    u64::try_from(peak).unwrap_or(0)
}

/// A request holds what it has, then one slot more each step, then its limit, then nothing.
fn add_changes(demand: Demand, changes: &mut Vec<Change>) {
    let held = i64::from(demand.held);
    let limit = i64::from(demand.limit());
    // At `step` it needs `ahead + step`, and at most `limit`.
    let ahead = i64::from(demand.length) - 1 + i64::from(LOOKAHEAD);
    if held < limit {
        let grows = (held - ahead).max(1);
        changes.push(Change {
            step: grows,
            constant: ahead - held,
            slope: 1,
        });
        changes.push(Change {
            step: grows.max(limit - ahead),
            constant: limit - ahead,
            slope: -1,
        });
    }
    changes.push(Change {
        step: i64::from(demand.remaining) + 1,
        constant: -held.max(limit),
        slope: 0,
    });
}

/// Slots of a pool of `capacity` that these requests will never need, so that they may be granted early.
pub fn surplus(demands: impl Iterator<Item = Demand> + Clone, capacity: u32) -> u32 {
    let capacity = u64::from(capacity);
    let worst: u64 = demands
        .clone()
        .map(|d| u64::from(d.limit().max(d.held)))
        .sum();
    // The sum of the limits bounds the peak and is cheap to know.
    let peak = if worst <= capacity {
        worst
    } else {
        peak(demands)
    };
    u32::try_from(capacity.saturating_sub(peak)).unwrap_or(u32::MAX)
}

/// Whether these requests can run to their ends in a pool of `capacity`.
pub fn fits(demands: impl Iterator<Item = Demand> + Clone, capacity: u32) -> bool {
    let capacity = u64::from(capacity);
    let worst: u64 = demands
        .clone()
        .map(|d| u64::from(d.limit().max(d.held)))
        .sum();
    worst <= capacity || peak(demands) <= capacity
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the requests step by step with grants of exactly what is needed; returns the most slots ever held.
    fn simulate(mut demands: Vec<Demand>) -> u64 {
        let held = |demands: &[Demand]| demands.iter().map(|d| u64::from(d.held)).sum::<u64>();
        let mut most = held(&demands);
        demands.retain(|d| d.remaining > 0);
        while !demands.is_empty() {
            for demand in &mut demands {
                demand.held += demand.grant(&mut 0);
            }
            most = most.max(held(&demands));
            for demand in &mut demands {
                demand.advance(1);
            }
            demands.retain(|d| d.remaining > 0);
        }
        most
    }

    /// A request somewhere in its life, holding between what it needs and its limit.
    fn demand() -> impl Strategy<Value = Demand> {
        (1u32..60, 1u32..100, any::<prop::sample::Index>(), 0u32..80).prop_map(
            |(input, new, progress, extra)| {
                let mut demand = Demand::admitted(input, new);
                demand.advance(progress.index(new as usize) as u32);
                // What it was given for the step before.
                let before = (demand.length - 1 + LOOKAHEAD).min(demand.limit());
                demand.held = (before + extra).min(demand.limit());
                demand
            },
        )
    }

    proptest! {
        #[test]
        fn the_peak_is_that_of_a_simulation(demands in prop::collection::vec(demand(), 0..12)) {
            prop_assert_eq!(peak(demands.clone()), simulate(demands));
        }

        /// Runs out of the surplus never make a later grant fail, and are used when there is room.
        #[test]
        fn grants_never_exceed_a_pool_that_fits(
            demands in prop::collection::vec(demand(), 1..12),
            room in 0u32..200,
        ) {
            let mut demands = demands;
            let capacity = peak(demands.clone()) as u32 + room;
            while !demands.is_empty() {
                prop_assert!(fits(demands.iter().copied(), capacity));
                demands.retain(|d| d.remaining > 0);
                let mut spare = surplus(demands.iter().copied(), capacity);
                for demand in &mut demands {
                    demand.held += demand.grant(&mut spare);
                    prop_assert!(demand.held >= demand.needed() && demand.held <= demand.limit());
                }
                prop_assert!(demands.iter().map(|d| d.held).sum::<u32>() <= capacity);
                demands.iter_mut().for_each(|d| d.advance(1));
            }
        }
    }

    #[test]
    fn a_lone_request_needs_prompt_and_all_tokens_but_the_last() {
        assert_eq!(peak([Demand::admitted(10, 20)]), 29);
        assert_eq!(peak([Demand::admitted(10, 1)]), 10);
        assert!(fits([Demand::admitted(10, 20)].into_iter(), 29));
        assert!(!fits([Demand::admitted(10, 20)].into_iter(), 28));
    }

    #[test]
    fn requests_that_end_early_make_room_for_the_long_ones() {
        let short = Demand::admitted(50, 2);
        let long = Demand::admitted(10, 100);
        // The worst cases add up to 51 + 109; they never occur together.
        assert_eq!(peak([short, long]), 109);
    }

    #[test]
    fn slots_beyond_need_come_in_runs_while_there_is_room() {
        let mut demand = Demand::admitted(10, 200);
        assert_eq!((demand.held, demand.grant(&mut 1000)), (13, 0));
        demand.advance(1);
        let mut spare = 100;
        assert_eq!((demand.grant(&mut spare), spare), (1 + RUN, 100 - RUN));
        assert_eq!(demand.grant(&mut 0), 1);
    }
}
