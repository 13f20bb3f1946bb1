//! Choice of the prompts that a step computes, and of the length of their chunks.

use std::time::Duration;

use super::cost::{StepCost, StepShape};
use super::joining::{Room, joins};
use super::peak::{Demand, Forecast};
use super::windows::Beside;
use super::{Admission, Candidate, Joined, Plan, Situation, Waiting, WaitingServedRatio};

/// Queued requests that are looked at in one step. More than a step ever admits; it bounds those that follow others.
const MOST_CANDIDATES: usize = 512;

/// Chunks beside the decodes of `plan`: of the prompts that were begun, then of those that wait. Returns what windows of
/// the decodes find.
pub(super) fn add_chunks(
    situation: &Situation<'_>,
    queue: &mut impl Waiting,
    mut free: u32,
    plan: &mut Plan,
) -> Beside {
    let mut step = Step::beside_decodes(situation, plan);
    step.continue_prompts(situation, plan);
    if queue.is_empty() {
        return step.beside(free);
    }
    let decodes = plan.decode.len();
    let joined = decide(situation, &step, decodes, queue.len(), plan);
    // Where a prompt is being computed anyway, another one costs the running streams little.
    let is_auto = situation.limits.waiting_served_ratio == WaitingServedRatio::Auto;
    let interrupts_nobody = decodes == 0 || (is_auto && !plan.chunks.is_empty());
    if interrupts_nobody || joined.is_some() {
        admit(situation, queue, &mut free, &mut step, plan);
        if decodes > 0 && !plan.admit.is_empty() {
            plan.joined = joined.or(Some(Joined::Backpressure));
        }
    }
    step.beside(free)
}

/// Whether so many that wait may join those that decode. Leaves the ratio in `plan`.
fn decide(
    situation: &Situation<'_>,
    step: &Step<'_>,
    decodes: usize,
    waiting: usize,
    plan: &mut Plan,
) -> Option<Joined> {
    if decodes == 0 {
        return None;
    }
    let setting = situation.limits.waiting_served_ratio;
    let ratio = setting.in_force(situation, decodes as u32, &step.room());
    plan.ratio = Some(ratio);
    // Where rows are short, `auto` weighs how many become free.
    let waiting = match setting {
        WaitingServedRatio::Auto => waiting.min(situation.rows),
        WaitingServedRatio::Fixed(_) => waiting,
    };
    joins(situation, ratio, decodes, waiting)
}

/// TGI's v2 loop: a step of whole prompts instead of the decodes of `plan`, or nothing.
///
/// A request that was paused may be longer than `max_batch_prefill_tokens`; it alone is computed in several steps.
pub(super) fn add_whole_prompts(
    situation: &Situation<'_>,
    queue: &mut impl Waiting,
    mut free: u32,
    plan: &mut Plan,
) -> Beside {
    let mut prompts = Plan {
        pause: plan.pause.clone(),
        ..Plan::default()
    };
    let mut step = Step::of_prompts(situation);
    step.continue_prompts(situation, &mut prompts);
    if prompts.chunks.is_empty() && !queue.is_empty() {
        let decodes = plan.decode.len();
        let joined = decide(situation, &step, decodes, queue.len(), plan);
        prompts.ratio = plan.ratio;
        // A prefill is always followed by a decode of those that it interrupted.
        let joined = joined.filter(|_| situation.decodes_since_joining > 0);
        if decodes == 0 || joined.is_some() {
            admit(situation, queue, &mut free, &mut step, &mut prompts);
            prompts.joined = joined.filter(|_| decodes > 0);
        }
    }
    if !prompts.is_idle() {
        *plan = prompts;
    }
    step.beside(free)
}

/// A step as it fills up.
struct Step<'a> {
    shape: StepShape,
    cost: &'a StepCost,
    /// Tokens of prompts that may still join.
    tokens: u32,
    /// How long it may take.
    gap: Option<Duration>,
    /// Prompts are computed whole, where they fit at all.
    whole: bool,
}

impl<'a> Step<'a> {
    fn beside_decodes(situation: &Situation<'a>, plan: &Plan) -> Self {
        let limits = situation.limits;
        let mut shape = StepShape {
            encode: situation.encode,
            ..StepShape::default()
        };
        for &index in &plan.decode {
            shape.add_decode(situation.running[index].computed.saturating_add(1));
        }
        let most = limits.max_batch_prefill_tokens;
        let alone = plan.decode.is_empty();
        // Nobody waits for the end of such a step, but the next request may: larger ones would gain nothing.
        let efficient = situation.cost.efficient_tokens().unwrap_or(most);
        Self {
            shape,
            cost: situation.cost,
            tokens: if alone { most.min(efficient) } else { most },
            gap: limits.max_token_gap.filter(|_| !alone),
            whole: false,
        }
    }

    fn of_prompts(situation: &Situation<'a>) -> Self {
        Self {
            shape: StepShape {
                encode: situation.encode,
                ..StepShape::default()
            },
            cost: situation.cost,
            tokens: situation.limits.max_batch_prefill_tokens,
            gap: None,
            whole: true,
        }
    }

    fn beside(&self, free: u32) -> Beside {
        let chunks = StepShape {
            decodes: 0,
            context: 0,
            ..self.shape
        };
        Beside {
            chunks,
            free,
            gap: self.gap,
        }
    }

    fn room(&self) -> Room {
        Room {
            shape: self.shape,
            tokens: self.tokens,
            gap: self.gap,
        }
    }

    /// Adds a chunk of a prompt of which `left` tokens are left behind `first`; returns its tokens, 0 for none.
    fn add(&mut self, first: u32, left: u32) -> u32 {
        let most = left.min(self.tokens);
        if most == 0 || (self.whole && most < left && self.shape.chunk_tokens > 0) {
            return 0;
        }
        let count = self
            .cost
            .chunk_tokens_within(&self.shape, first, most, self.gap);
        if count > 0 {
            self.shape.add_chunk(first, count);
            self.tokens -= count;
        }
        count
    }

    fn continue_prompts(&mut self, situation: &Situation<'_>, plan: &mut Plan) {
        let running = situation.running;
        let mut begun: Vec<usize> = (0..running.len())
            .filter(|index| running[*index].prompt_left > 0 && !plan.pause.contains(index))
            .collect();
        begun.sort_unstable_by_key(|&index| running[index].place());
        for index in begun {
            let request = &running[index];
            match self.add(request.computed, request.prompt_left) {
                0 => break,
                count => plan.chunks.push((index, count)),
            }
        }
    }
}

/// Lets queued requests start, in order, as far as there are rows, slots now and by expectation, and time.
fn admit(
    situation: &Situation<'_>,
    queue: &mut impl Waiting,
    free: &mut u32,
    step: &mut Step<'_>,
    plan: &mut Plan,
) {
    // Somebody just lost slots: nobody new gets them.
    if !plan.pause.is_empty() || situation.freeing > 0 {
        return;
    }
    let mut expected = Expected::of(situation);
    let mut nobody = situation.running.is_empty();
    for index in 0..queue.len().min(MOST_CANDIDATES) {
        if plan.admit.len() == situation.rows || step.tokens == 0 {
            break;
        }
        let Some(candidate) = queue.candidate(index, &plan.admit) else {
            break;
        };
        if candidate.follows {
            continue;
        }
        // Alone it runs whatever is expected.
        if candidate.takes() > *free || !(nobody || expected.fits(&candidate)) {
            break;
        }
        let count = step.add(candidate.cached, candidate.prompt());
        if count == 0 {
            break;
        }
        nobody = false;
        *free -= candidate.takes();
        expected.add(&candidate);
        plan.admit.push(Admission { index, count });
    }
}

/// The slots that all requests are expected to need at most.
struct Expected<'a> {
    situation: &'a Situation<'a>,
    /// Slots that stay in use whoever ends: of cached prefixes that several read.
    shared: u64,
    /// If all ran to their last permitted tokens: cheap, and more than the peak.
    bound: u64,
    /// Made when the bound alone does not let a request in.
    forecast: Option<Forecast>,
    joined: Vec<Demand>,
}

impl<'a> Expected<'a> {
    fn of(situation: &'a Situation<'a>) -> Self {
        // Slots for tokens to come are in the growth.
        let ahead: u64 = situation
            .running
            .iter()
            .map(|request| u64::from(request.ahead))
            .sum();
        let used = u64::from(situation.capacity.saturating_sub(situation.free));
        let used = used.saturating_sub(ahead);
        let demands = || situation.running.iter().map(|request| request.demand);
        let own: u64 = demands().map(|demand| u64::from(demand.slots)).sum();
        let growth: u64 = demands().map(|demand| u64::from(demand.left)).sum();
        Self {
            situation,
            shared: used.saturating_sub(own),
            bound: used + growth,
            forecast: None,
            joined: Vec::new(),
        }
    }

    fn fits(&mut self, candidate: &Candidate) -> bool {
        let (demand, situation) = (candidate.demand(), self.situation);
        let capacity = u64::from(situation.capacity);
        if self.bound + u64::from(demand.slots) + u64::from(demand.left) <= capacity {
            return true;
        }
        let forecast = self.forecast.get_or_insert_with(|| {
            let running = situation.running.iter().map(|request| request.demand);
            Forecast::of(
                situation.lengths,
                running.chain(self.joined.iter().copied()),
            )
        });
        let mut with = forecast.clone();
        with.add(situation.lengths, demand);
        with.peak(self.shared) <= capacity
    }

    fn add(&mut self, candidate: &Candidate) {
        let demand = candidate.demand();
        self.bound += u64::from(demand.slots) + u64::from(demand.left);
        self.joined.push(demand);
        if let Some(forecast) = &mut self.forecast {
            forecast.add(self.situation.lengths, demand);
        }
    }
}
