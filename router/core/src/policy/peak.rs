//! How many slots the running requests will need at most.
//!
//! Requests that run together grow by one slot a step and give all back when they end, so what counts is the highest
//! sum over time. It is reached when a request is about to end: those that run longer have then grown by as much as
//! it has. This is the admission estimate of LightLLM, over expected lengths (see [`super::expectation`]).

/// What one request holds and is expected to need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Slots that become free when it ends; slots that others share with it are not among them.
    pub slots: u32,
    /// Tokens that it is expected to generate yet, one slot for each.
    pub remaining: u32,
}

impl Demand {
    /// As one number which orders by `remaining`: sorting these is several times faster than by a key.
    fn pack(self) -> u64 {
        u64::from(self.remaining) << 32 | u64::from(self.slots)
    }

    fn unpack(packed: u64) -> Self {
        Self {
            slots: packed as u32,
            remaining: (packed >> 32) as u32,
        }
    }
}

/// The demands of all running requests. Kept from step to step, it allocates nothing.
#[derive(Debug, Default)]
pub struct Forecast {
    /// The longest remaining first.
    sorted: Vec<u64>,
}

impl Forecast {
    /// Replaces all demands. O(n log n).
    pub fn set(&mut self, demands: impl IntoIterator<Item = Demand>) {
        self.sorted.clear();
        self.sorted.extend(demands.into_iter().map(Demand::pack));
        self.sorted.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// A request joins. O(n).
    pub fn add(&mut self, demand: Demand) {
        let packed = demand.pack();
        self.sorted.insert(self.place(packed), packed);
    }

    /// The most slots that these requests use at any time until all have ended, beside `shared` ones that stay in
    /// use all the while. O(n).
    pub fn peak(&self, shared: u64) -> u64 {
        shared + highest(self.sorted.iter().copied())
    }

    /// The peak if another request joined. O(n).
    pub fn peak_with(&self, shared: u64, demand: Demand) -> u64 {
        let packed = demand.pack();
        let (longer, shorter) = self.sorted.split_at(self.place(packed));
        let all = longer.iter().copied().chain([packed]);
        shared + highest(all.chain(shorter.iter().copied()))
    }

    fn place(&self, packed: u64) -> usize {
        self.sorted.partition_point(|&other| other > packed)
    }
}

/// `sorted` has the longest remaining first. When one of them ends, those before it are the ones that still run.
fn highest(sorted: impl Iterator<Item = u64>) -> u64 {
    let (mut slots, mut running, mut peak) = (0u64, 0u64, 0u64);
    for demand in sorted.map(Demand::unpack) {
        slots += u64::from(demand.slots);
        running += 1;
        peak = peak.max(slots + running * u64::from(demand.remaining));
    }
    peak
}
