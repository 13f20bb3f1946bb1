//! The batching policy.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use text_generation_core::budget::{self, Demand};
use text_generation_core::policy::{self, Candidate, Concat, Progress};
use text_generation_core::types::BatchLimits;

/// (held, length, remaining) of a running request.
type Running = (u32, u32, u32);

fn demand((held, length, remaining): Running) -> Demand {
    Demand {
        held,
        length,
        remaining,
        lag: 0,
    }
}

#[pyclass(frozen, get_all, eq, module = "text_generation_router")]
#[derive(Debug, PartialEq, Eq)]
pub struct Action {
    kind: &'static str,
    count: usize,
    concat: Option<&'static str>,
}

#[pymethods]
impl Action {
    fn __repr__(&self) -> String {
        let concat = self
            .concat
            .map_or("None".to_owned(), |why| format!("{why:?}"));
        format!(
            "Action(kind={:?}, count={}, concat={concat})",
            self.kind, self.count
        )
    }
}

impl From<policy::Action> for Action {
    fn from(action: policy::Action) -> Self {
        let (kind, count, concat) = match action {
            policy::Action::Prefill { count, concat } => ("prefill", count, concat),
            policy::Action::Decode => ("decode", 0, None),
            policy::Action::Wait => ("wait", 0, None),
        };
        let concat = concat.map(|why| match why {
            Concat::Backpressure => "backpressure",
            Concat::WaitExceeded => "wait_exceeded",
        });
        Self {
            kind,
            count,
            concat,
        }
    }
}

#[pyclass(frozen, module = "text_generation_router")]
#[derive(Debug)]
pub struct Scheduler(BatchLimits);

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (*, max_batch_prefill_tokens, max_batch_total_tokens, max_batch_size, waiting_served_ratio = 0.0,
                        max_waiting_tokens = 20))]
    fn new(
        max_batch_prefill_tokens: u32,
        max_batch_total_tokens: u32,
        max_batch_size: u32,
        waiting_served_ratio: f32,
        max_waiting_tokens: u32,
    ) -> PyResult<Self> {
        if !waiting_served_ratio.is_finite() || waiting_served_ratio < 0.0 {
            return Err(PyValueError::new_err(
                "waiting_served_ratio must be a number >= 0",
            ));
        }
        Ok(Self(BatchLimits {
            waiting_served_ratio,
            max_waiting_tokens,
            max_queue_time: None,
            max_batch_prefill_tokens,
            max_batch_total_tokens,
            max_batch_size,
        }))
    }

    fn next_action(&self, queue: Vec<(u32, u32)>, running: Vec<Running>, steps: u32) -> Action {
        let queue = queue
            .into_iter()
            .map(|(input_length, max_new_tokens)| Candidate {
                input_length,
                max_new_tokens,
                samples: 1,
            });
        let running: Vec<Demand> = running.into_iter().map(demand).collect();
        policy::next_action(queue, &running, Progress { steps }, &self.0).into()
    }

    fn admitted(&self, input_length: u32, max_new_tokens: u32) -> Running {
        let demand = Demand::admitted(input_length, max_new_tokens);
        (demand.held, demand.length, demand.remaining)
    }

    fn peak(&self, running: Vec<Running>) -> u64 {
        budget::peak(running.into_iter().map(demand))
    }
}
