//! Will this set of requests ever need more slots than the pool has?
//!
//! Nothing is reserved for the worst case of every request on its own. Requests that run together grow by one slot a
//! step and give everything back when they end, so what counts is the highest sum over time. This is the admission
//! estimate of LightLLM (`router/req_queue`), which sorts by remaining length and looks at the moments when a request
//! ends; here it also covers slots granted ahead of need. For requests that run to `max_new_tokens` it is exact but for
//! the one decode reply that a shard running ahead may send without a token of a new request: such a request counts as
//! growing at once and as ending a step later. A request that ends earlier only lowers the sum.
//!
//! Samples of one prompt share its slots: one of them carries these in its demand, the others start at length 0.

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
    /// Decode replies that may come without a token of it; 0 after the first reply.
    pub lag: u32,
}

impl Demand {
    /// A request as it stands when its prefill has chosen the first token, with no more slots than it must have.
    pub fn admitted(input_length: u32, max_new_tokens: u32) -> Self {
        let mut demand = Self {
            held: 0,
            length: input_length.saturating_add(1),
            remaining: max_new_tokens.saturating_sub(1),
            lag: u32::from(max_new_tokens > 1),
        };
        demand.held = demand.needed();
        demand
    }

    /// The samples of one prompt as they stand after their prefill. The first carries the prompt.
    pub fn group(
        input_length: u32,
        max_new_tokens: u32,
        samples: u32,
    ) -> impl Iterator<Item = Self> + Clone {
        let first = Self::admitted(input_length, max_new_tokens);
        let other = Self::admitted(0, max_new_tokens);
        (0..samples).map(move |sample| if sample == 0 { first } else { other })
    }

    /// Another sample of its group that carried `slots` of the prompt has ended: from now on this one does.
    pub fn carry(&mut self, slots: u32) {
        self.held = self.held.saturating_add(slots);
        self.length = self.length.saturating_add(slots);
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
        step: i64::from(demand.remaining) + i64::from(demand.lag) + 1,
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

    /// Whether the request still runs after a step: one that lags needs a step more.
    fn step(demand: &mut Demand) -> bool {
        if demand.remaining == 0 {
            demand.lag -= 1;
        }
        demand.advance(u32::from(demand.remaining > 0));
        demand.remaining + demand.lag > 0
    }

    /// Runs the requests step by step with grants of exactly what is needed; returns the most slots ever held.
    fn simulate(mut demands: Vec<Demand>) -> u64 {
        let held = |demands: &[Demand]| demands.iter().map(|d| u64::from(d.held)).sum::<u64>();
        let mut most = held(&demands);
        demands.retain(|d| d.remaining + d.lag > 0);
        while !demands.is_empty() {
            for demand in &mut demands {
                demand.held += demand.grant(&mut 0);
            }
            most = most.max(held(&demands));
            demands.retain_mut(step);
        }
        most
    }

    /// A request somewhere in its life, holding between what it needs and its limit.
    fn demand() -> impl Strategy<Value = Demand> {
        (1u32..60, 1u32..100, any::<prop::sample::Index>(), 0u32..80).prop_map(
            |(input, new, progress, extra)| {
                let mut demand = Demand::admitted(input, new);
                let tokens = progress.index(new as usize) as u32;
                demand.advance(tokens);
                demand.lag = demand.lag.min(u32::from(tokens == 0));
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

        /// Runs out of the surplus never make a later grant fail, and are used when there is room; whichever new
        /// requests get no token in the first step.
        #[test]
        fn grants_never_exceed_a_pool_that_fits(
            demands in prop::collection::vec((demand(), any::<bool>()), 1..12),
            room in 0u32..200,
        ) {
            let (mut demands, late): (Vec<Demand>, Vec<bool>) = demands.into_iter().unzip();
            let capacity = peak(demands.clone()) as u32 + room;
            let mut late: Vec<bool> = demands.iter().zip(late).map(|(d, late)| late && d.lag > 0).collect();
            while !demands.is_empty() {
                prop_assert!(fits(demands.iter().copied(), capacity));
                let mut running = demands.iter().map(|d| d.remaining > 0).collect::<Vec<_>>().into_iter();
                late.retain(|_| running.next() == Some(true));
                demands.retain(|d| d.remaining > 0);
                let mut spare = surplus(demands.iter().copied(), capacity);
                for demand in &mut demands {
                    demand.held += demand.grant(&mut spare);
                    prop_assert!(demand.held >= demand.needed() && demand.held <= demand.limit());
                }
                prop_assert!(demands.iter().map(|d| d.held).sum::<u32>() <= capacity);
                for (demand, late) in demands.iter_mut().zip(&mut late) {
                    demand.lag = 0;
                    demand.advance(u32::from(!std::mem::take(late)));
                }
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
    fn samples_of_a_prompt_count_it_once_for_as_long_as_one_of_them_runs() {
        let group: Vec<Demand> = Demand::group(50, 11, 4).collect();
        assert_eq!(peak(group.iter().copied()), 50 + 4 * 10);
        let (first, mut others) = (group[0], group[1..].to_vec());
        // The first ends: its own slots are free, the prompt's go to the next.
        others[0].carry(50);
        assert_eq!(others[0], first);
        assert_eq!(peak(others), 50 + 3 * 10);
    }

    #[test]
    fn a_new_request_may_hold_its_slots_a_step_longer() {
        let (short, long) = (Demand::admitted(50, 2), Demand::admitted(10, 100));
        let prompt = Demand { lag: 0, ..short };
        // 51 slots beside 14, or 15 when the first decode brings no token.
        assert_eq!(
            peak([
                prompt,
                Demand {
                    remaining: 5,
                    ..long
                }
            ]),
            51 + 13
        );
        assert_eq!(
            peak([
                short,
                Demand {
                    remaining: 5,
                    ..long
                }
            ]),
            51 + 14
        );
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
