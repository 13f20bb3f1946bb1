use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use text_generation_client::types::SlotRange;

use super::*;
use crate::alloc::SlotAllocator;

fn limits() -> BatchLimits {
    BatchLimits {
        waiting_served_ratio: 0.3,
        max_waiting_tokens: 20,
        max_batch_prefill_tokens: 100,
        max_batch_total_tokens: 1000,
        max_batch_size: 8,
        max_queue_time: None,
    }
}

fn queue(input_lengths: &[u32]) -> impl Iterator<Item = Candidate> + Clone {
    input_lengths.iter().map(|&input_length| Candidate {
        input_length,
        max_new_tokens: 10,
        samples: 1,
    })
}

fn running(count: usize) -> Vec<Demand> {
    vec![Demand::admitted(10, 50); count]
}

const PREFILL_ALL_OF_ONE: Action = Action::Prefill {
    count: 1,
    concat: None,
};

#[test]
fn an_idle_server_prefills_whatever_is_queued() {
    let start = Progress::default();
    assert_eq!(next_action(queue(&[]), &[], start, &limits()), Action::Wait);
    assert_eq!(
        next_action(queue(&[5]), &[], start, &limits()),
        PREFILL_ALL_OF_ONE
    );
}

#[test]
fn a_prefill_is_bounded_by_its_tokens_and_by_rows_without_skipping_the_head() {
    let start = Progress::default();
    let prefill = |count| Action::Prefill {
        count,
        concat: None,
    };
    assert_eq!(
        next_action(queue(&[60, 40, 1]), &[], start, &limits()),
        prefill(2)
    );
    assert_eq!(
        next_action(queue(&[60, 50, 1]), &[], start, &limits()),
        prefill(1)
    );
    assert_eq!(
        next_action(queue(&[1; 20]), &[], start, &limits()),
        prefill(8)
    );
}

#[test]
fn running_requests_are_interrupted_when_enough_wait_or_after_long_enough() {
    let limits = BatchLimits {
        waiting_served_ratio: 0.5,
        ..limits()
    };
    let action = |waiting: usize, steps| {
        next_action(
            queue(&vec![1; waiting]),
            &running(4),
            Progress { steps },
            &limits,
        )
    };
    assert_eq!(
        action(4, 0),
        Action::Decode,
        "a decode follows every prefill"
    );
    assert_eq!(action(1, 1), Action::Decode);
    assert_eq!(
        action(2, 1),
        Action::Prefill {
            count: 2,
            concat: Some(Concat::Backpressure)
        }
    );
    assert_eq!(action(1, 18), Action::Decode);
    assert_eq!(
        action(1, 19),
        Action::Prefill {
            count: 1,
            concat: Some(Concat::WaitExceeded)
        }
    );
    assert_eq!(action(0, 19), Action::Decode);
}

#[test]
fn how_many_wait_decides_not_how_many_fit_into_one_prefill() {
    // Four run, so two must wait; they do, but a prefill takes one of them.
    let limits = BatchLimits {
        waiting_served_ratio: 0.5,
        ..limits()
    };
    let action = next_action(
        queue(&[90, 90]),
        &running(4),
        Progress { steps: 1 },
        &limits,
    );
    let one = Action::Prefill {
        count: 1,
        concat: Some(Concat::Backpressure),
    };
    assert_eq!(action, one);
}

#[test]
fn every_sample_of_a_request_counts_as_a_row() {
    let group = |samples| Candidate {
        input_length: 10,
        max_new_tokens: 10,
        samples,
    };
    let action = |waiting: &[u32], busy| {
        let queue = waiting.iter().map(|&samples| group(samples));
        next_action(queue, &running(busy), Progress { steps: 1 }, &limits())
    };
    let backpressure = |count| Action::Prefill {
        count,
        concat: Some(Concat::Backpressure),
    };
    // Eight rows: 3 and 4 fit beside one, 3 and 5 do not. A group is not cut.
    assert_eq!(action(&[3, 4, 1], 1), backpressure(2));
    assert_eq!(action(&[3, 5], 1), backpressure(1));
    assert_eq!(action(&[8], 1), Action::Decode);
    // Two rows must wait before seven are interrupted.
    let limits = BatchLimits {
        max_batch_size: 16,
        ..limits()
    };
    let waiting = |samples| {
        let queue = [group(samples)].into_iter();
        next_action(queue, &running(7), Progress { steps: 1 }, &limits)
    };
    assert_eq!(waiting(1), Action::Decode);
    assert_eq!(waiting(2), backpressure(1));
    assert!(group(16).fits_alone(&limits));
    assert!(!group(17).fits_alone(&limits));
    // 100 + 7 * 150 slots: the prompt once, each answer on its own.
    let large = |samples| Candidate {
        input_length: 100,
        max_new_tokens: 151,
        samples,
    };
    assert!(large(6).fits_alone(&limits));
    assert!(!large(7).fits_alone(&limits));
}

#[test]
fn slots_are_judged_by_the_peak_not_by_the_sum_of_worst_cases() {
    let limits = BatchLimits {
        max_batch_total_tokens: 150,
        ..limits()
    };
    let long = Demand::admitted(10, 100);
    let short = Candidate {
        input_length: 50,
        max_new_tokens: 5,
        samples: 1,
    };
    let action = next_action(
        [short, short].into_iter(),
        &[long],
        Progress { steps: 30 },
        &limits,
    );
    let expected = Action::Prefill {
        count: 2,
        concat: Some(Concat::WaitExceeded),
    };
    assert_eq!(action, expected, "worst cases: 109 + 54 + 54 > 150");
}

#[test]
fn a_request_that_could_never_run_is_told_apart() {
    let candidate = |input_length, max_new_tokens| Candidate {
        input_length,
        max_new_tokens,
        samples: 1,
    };
    assert!(candidate(100, 901).fits_alone(&limits()));
    assert!(!candidate(101, 1).fits_alone(&limits()));
    assert!(!candidate(100, 902).fits_alone(&limits()));
}

/// One request of the simulation; ends after `actual` tokens, which may be fewer than it may generate.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    after: u32,
    candidate: Candidate,
    actual: u32,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (0u32..12, 1u32..80, 1u32..200, any::<prop::sample::Index>()).prop_map(
        |(gap, input_length, max_new_tokens, end)| Arrival {
            // Bursts are common, gaps are not.
            after: gap.saturating_sub(8) * 10,
            candidate: Candidate {
                input_length,
                max_new_tokens,
                samples: 1,
            },
            actual: end.index(max_new_tokens as usize) as u32 + 1,
        },
    );
    prop::collection::vec(arrival, 1..150)
}

fn any_limits() -> impl Strategy<Value = BatchLimits> {
    (0u32..30, 0u32..30, 80u32..400, 280u32..2000, 1u32..40).prop_map(
        |(ratio, waiting, prefill, total, size)| BatchLimits {
            waiting_served_ratio: ratio as f32 / 10.0,
            max_waiting_tokens: waiting,
            max_batch_prefill_tokens: prefill,
            max_batch_total_tokens: total,
            max_batch_size: size,
            max_queue_time: None,
        },
    )
}

struct Row {
    number: usize,
    demand: Demand,
    slots: Vec<SlotRange>,
    left: u32,
}

/// The batcher without I/O: queue, running rows, pool.
struct Simulation {
    limits: BatchLimits,
    pool: SlotAllocator,
    queue: VecDeque<(usize, Arrival)>,
    rows: Vec<Row>,
    progress: Progress,
    started: Vec<usize>,
    /// Decode steps in a row during which the head of the queue could have started.
    head_waits: u32,
}

impl Simulation {
    fn demands(&self) -> Vec<Demand> {
        self.rows.iter().map(|row| row.demand).collect()
    }

    fn allocate(&mut self, count: u32) -> Result<Vec<SlotRange>, TestCaseError> {
        let slots = self.pool.allocate(count);
        slots.ok_or_else(|| TestCaseError::fail("the pool ran short"))
    }

    fn prefill(&mut self, count: usize) -> Result<(), TestCaseError> {
        let new: Vec<_> = self.queue.drain(..count).collect();
        let tokens: u32 = new.iter().map(|(_, a)| a.candidate.input_length).sum();
        prop_assert!(tokens <= self.limits.max_batch_prefill_tokens);
        let first = self.rows.len();
        for (number, arrival) in new {
            self.rows.push(Row {
                number,
                demand: Demand::admitted(
                    arrival.candidate.input_length,
                    arrival.candidate.max_new_tokens,
                ),
                slots: Vec::new(),
                left: arrival.actual,
            });
            self.started.push(number);
        }
        prop_assert!(self.rows.len() <= self.limits.max_batch_size as usize);
        let mut surplus = budget::surplus(self.demands().into_iter(), self.pool.capacity());
        for index in first..self.rows.len() {
            let demand = &mut self.rows[index].demand;
            demand.held += demand.run(&mut surplus);
            let held = demand.held;
            self.rows[index].slots = self.allocate(held)?;
        }
        self.progress = Progress::default();
        self.head_waits = 0;
        // The prefill chose the first token, which `admitted` already counts.
        for row in &mut self.rows[first..] {
            row.left -= 1;
        }
        self.release_finished()
    }

    fn decode(&mut self) -> TestCaseResult {
        let mut surplus = budget::surplus(self.demands().into_iter(), self.pool.capacity());
        for index in 0..self.rows.len() {
            let count = self.rows[index].demand.grant(&mut surplus);
            let slots = self.allocate(count)?;
            let row = &mut self.rows[index];
            row.slots.extend(slots);
            row.demand.held += count;
            prop_assert!(row.demand.held >= row.demand.needed());
            row.demand.advance(1);
            row.left -= 1;
        }
        self.progress.steps += 1;
        self.release_finished()
    }

    fn release_finished(&mut self) -> TestCaseResult {
        for row in self.rows.extract_if(.., |row| row.left == 0) {
            prop_assert_eq!(self.pool.free(&row.slots), Ok(()), "row {}", row.number);
        }
        Ok(())
    }

    fn head_could_start(&self) -> bool {
        let head = self.queue.iter().take(1).map(|(_, a)| a.candidate);
        admissible(head, &self.demands(), &self.limits) == 1
    }
}

fn run(arrivals: Vec<Arrival>, limits: BatchLimits) -> TestCaseResult {
    let total = arrivals.len();
    let mut arrivals: VecDeque<_> = arrivals.into_iter().enumerate().collect();
    let mut pause = 0;
    let mut simulation = Simulation {
        limits,
        pool: SlotAllocator::new(limits.max_batch_total_tokens),
        queue: VecDeque::new(),
        rows: Vec::new(),
        progress: Progress::default(),
        started: Vec::new(),
        head_waits: 0,
    };
    loop {
        while pause == 0
            && let Some(arrival) = arrivals.pop_front()
        {
            simulation.queue.push_back(arrival);
            pause = arrivals.front().map_or(0, |(_, next)| next.after);
        }
        pause = pause.saturating_sub(1);
        let queue = simulation.queue.iter().map(|(_, a)| a.candidate);
        match next_action(queue, &simulation.demands(), simulation.progress, &limits) {
            Action::Prefill { count, .. } => simulation.prefill(count)?,
            Action::Decode => {
                let waits = simulation.head_could_start();
                simulation.head_waits = if waits { simulation.head_waits + 1 } else { 0 };
                prop_assert!(simulation.head_waits <= limits.max_waiting_tokens.max(1));
                simulation.decode()?;
            }
            Action::Wait => prop_assert!(simulation.queue.is_empty(), "an idle server starves"),
        }
        if arrivals.is_empty() && simulation.queue.is_empty() && simulation.rows.is_empty() {
            break;
        }
    }
    prop_assert_eq!(&simulation.started, &(0..total).collect::<Vec<_>>());
    prop_assert_eq!(simulation.pool.available(), simulation.pool.capacity());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No budget is exceeded, no allocation fails, requests start in order, none starves, and one that fits starts
    /// within `max_waiting_tokens` steps.
    #[test]
    fn any_traffic_is_served(arrivals in arrivals(), limits in any_limits()) {
        run(arrivals, limits)?;
    }
}
