//! Python class of the scheduling policy: what the next step computes.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use text_generation_core::policy::arrivals::Arrivals;
use text_generation_core::policy::cost;
use text_generation_core::policy::expectation::OutputLengths;
use text_generation_core::policy::peak::Demand;
use text_generation_core::policy::windows::{DraftShare, Windows};
use text_generation_core::policy::{
    self, Admission, BatchLimits, Candidate, Joined, Order, Situation, WaitingServedRatio,
};

#[pyclass(frozen, module = "text_generation_router")]
#[derive(Debug, Clone)]
pub struct StepCost(cost::StepCost);

#[pymethods]
impl StepCost {
    #[new]
    #[pyo3(signature = (tokens, times_ms, *, pair_ns = 0.0, context_ns = 0.0, graph_tokens = Vec::new()))]
    fn new(
        tokens: Vec<u32>,
        times_ms: Vec<f32>,
        pair_ns: f32,
        context_ns: f32,
        graph_tokens: Vec<u32>,
    ) -> PyResult<Self> {
        if tokens.len() != times_ms.len() {
            return Err(PyValueError::new_err(
                "tokens and times_ms must have the same length",
            ));
        }
        let cost = cost::StepCost::new(&tokens, &times_ms, pair_ns, context_ns, &graph_tokens);
        Ok(Self(cost))
    }
}

#[pyclass(frozen, get_all, module = "text_generation_router")]
#[derive(Debug, Clone, Copy)]
pub struct Queued {
    length: u32,
    left: u32,
    generated: u32,
    cached: u32,
    unlocked: u32,
    follows: bool,
}

#[pymethods]
impl Queued {
    #[new]
    #[pyo3(signature = (length, left, *, generated = 0, cached = 0, unlocked = 0, follows = false))]
    fn new(
        length: u32,
        left: u32,
        generated: u32,
        cached: u32,
        unlocked: u32,
        follows: bool,
    ) -> Self {
        Self {
            length,
            left,
            generated,
            cached,
            unlocked,
            follows,
        }
    }
}

impl From<&Queued> for Candidate {
    fn from(queued: &Queued) -> Self {
        Self {
            length: queued.length,
            cached: queued.cached,
            unlocked: queued.unlocked,
            generated: queued.generated,
            left: queued.left,
            follows: queued.follows,
        }
    }
}

#[pyclass(frozen, get_all, module = "text_generation_router")]
#[derive(Debug, Clone, Copy)]
pub struct Running {
    computed: u32,
    slots: u32,
    left: u32,
    prompt_left: u32,
    generated: u32,
    cached: u32,
}

#[pymethods]
impl Running {
    #[new]
    #[pyo3(signature = (computed, slots, left, *, prompt_left = 0, generated = 0, cached = 0))]
    fn new(
        computed: u32,
        slots: u32,
        left: u32,
        prompt_left: u32,
        generated: u32,
        cached: u32,
    ) -> Self {
        Self {
            computed,
            slots,
            left,
            prompt_left,
            generated,
            cached,
        }
    }
}

impl Running {
    /// `place`: in the order in which requests came.
    fn for_policy(&self, place: u64) -> policy::Running {
        let decodes = self.prompt_left == 0 && self.left > 0;
        policy::Running {
            served: 0,
            order: Order {
                due: 0,
                sequence: place,
            },
            computed: self.computed,
            prompt_left: self.prompt_left,
            decodes,
            lacks_slot: decodes && self.cached.saturating_add(self.slots) <= self.computed,
            ahead: 0,
            drafts: DraftShare::default(),
            demand: Demand {
                slots: self.slots,
                generated: self.generated,
                left: self.left,
            },
        }
    }
}

#[pyclass(frozen, get_all, eq, module = "text_generation_router")]
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    decode: Vec<usize>,
    chunks: Vec<(usize, u32)>,
    admit: Vec<(usize, u32)>,
    pause: Vec<usize>,
    joined: Option<&'static str>,
}

#[pymethods]
impl Plan {
    fn __repr__(&self) -> String {
        let joined = self
            .joined
            .map_or("None".to_owned(), |why| format!("{why:?}"));
        format!(
            "Plan(decode={:?}, chunks={:?}, admit={:?}, pause={:?}, joined={joined})",
            self.decode, self.chunks, self.admit, self.pause
        )
    }
}

impl From<policy::Plan> for Plan {
    fn from(plan: policy::Plan) -> Self {
        let pair = |admission: Admission| (admission.index, admission.count);
        Self {
            decode: plan.decode,
            chunks: plan.chunks,
            admit: plan.admit.into_iter().map(pair).collect(),
            pause: plan.pause,
            joined: plan.joined.map(|why| match why {
                Joined::Backpressure => "backpressure",
                Joined::WaitExceeded => "wait_exceeded",
            }),
        }
    }
}

/// A queue that was given as a list.
struct Queue(Vec<Candidate>);

impl policy::Waiting for Queue {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&mut self, index: usize, _: &[Admission]) -> Option<Candidate> {
        self.0.get(index).copied()
    }
}

#[pyclass(module = "text_generation_router")]
#[derive(Debug)]
pub struct Scheduler {
    limits: BatchLimits,
    cost: cost::StepCost,
    lengths: OutputLengths,
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (*, max_batch_prefill_tokens, max_batch_total_tokens, waiting_served_ratio = 0.0,
                        max_waiting_tokens = 20, prefill_chunking = true, max_token_gap = None, cost = None))]
    fn new(
        max_batch_prefill_tokens: u32,
        max_batch_total_tokens: u32,
        waiting_served_ratio: f32,
        max_waiting_tokens: u32,
        prefill_chunking: bool,
        max_token_gap: Option<f64>,
        cost: Option<&StepCost>,
    ) -> PyResult<Self> {
        if !waiting_served_ratio.is_finite() || waiting_served_ratio < 0.0 {
            return Err(PyValueError::new_err(
                "waiting_served_ratio must be a number >= 0",
            ));
        }
        let gap = |ms: f64| Duration::try_from_secs_f64(ms / 1e3);
        let max_token_gap = max_token_gap.map(gap).transpose().map_err(|_| {
            PyValueError::new_err("max_token_gap must be a number of milliseconds >= 0")
        })?;
        let nothing_measured = || cost::StepCost::new(&[], &[], 0.0, 0.0, &[]);
        Ok(Self {
            limits: BatchLimits {
                waiting_served_ratio: WaitingServedRatio::Fixed(waiting_served_ratio),
                max_waiting_tokens,
                max_batch_prefill_tokens,
                max_batch_total_tokens,
                // What is free of it comes with each situation, as do hits in the cache.
                max_batch_size: u32::MAX,
                max_queue_time: None,
                prefill_chunking,
                max_token_gap,
                prefix_caching: true,
            },
            cost: cost.map_or_else(nothing_measured, |cost| cost.0.clone()),
            lengths: OutputLengths::default(),
        })
    }

    #[pyo3(signature = (tokens, *, cut = false))]
    fn observe(&mut self, tokens: u32, cut: bool) {
        if cut {
            self.lengths.observe_cut(tokens);
        } else {
            self.lengths.observe(tokens);
        }
    }

    #[pyo3(signature = (queue, running, free, rows, decodes_since_joining = 0))]
    fn plan(
        &mut self,
        queue: Vec<PyRef<'_, Queued>>,
        running: Vec<PyRef<'_, Running>>,
        free: u32,
        rows: usize,
        decodes_since_joining: u32,
    ) -> Plan {
        self.lengths
            .refresh(running.iter().map(|request| request.generated));
        let mut queue = Queue(queue.iter().map(|queued| (&**queued).into()).collect());
        let running: Vec<policy::Running> = (0..)
            .zip(&running)
            .map(|(place, request)| request.for_policy(place))
            .collect();
        let windows = Windows::default();
        let situation = Situation {
            running: &running,
            rows,
            free,
            freeing: 0,
            capacity: self.limits.max_batch_total_tokens,
            encode: Duration::ZERO,
            decodes_since_joining,
            now: Duration::ZERO,
            arrivals: &Arrivals::default(),
            limits: &self.limits,
            cost: &self.cost,
            lengths: &self.lengths,
            windows: &windows,
        };
        policy::plan(&situation, &mut queue).into()
    }
}
