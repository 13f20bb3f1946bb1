//! A plan that is on its way.

use text_generation_client::ClientError;
use text_generation_client::types::{Row, StepMasks};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use super::Batcher;

/// What an answer may take beside its step.
const GRACE: Duration = Duration::from_secs(2);
/// How much later than a plan that finds the device idle the next one is sent.
const HEAD_START: Duration = Duration::from_millis(1);
/// A shorter step might end before the next one is there.
const SHORTEST_WITH_HEAD_START: Duration = Duration::from_millis(4);

/// A plan that was sent.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) number: u64,
    /// Rows of which it computes parts of prompts.
    pub(super) chunks: Vec<Row>,
    /// Rows that get a token, in the plan's order.
    pub(super) rows: Vec<Row>,
    /// The most tokens that each of `rows` gets whose prompt was computed before.
    pub(super) width: u32,
    /// It encodes images.
    pub(super) encodes: bool,
    /// Those of `rows` whose sampling waits for masks.
    pub(super) constrained: Vec<Row>,
    /// Takes the masks, until they are sent.
    pub(super) masks: Option<oneshot::Sender<StepMasks>>,
    pub(super) sent: Instant,
    pub(super) predicted: Duration,
    /// So long may it take from its turn on.
    pub(super) limit: Duration,
    /// When its turn came, as far as that is known: it was sent, the previous plan was answered, its masks were sent.
    pub(super) turn: Instant,
    /// The next plan is sent no earlier.
    pub(super) next_from: Instant,
}

impl InFlight {
    pub(super) fn is_prefill(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// The most tokens that this one of `rows` gets.
    pub(super) fn width_of(&self, row: Row) -> u32 {
        if self.width > 1 && self.chunks.contains(&row) {
            1
        } else {
            self.width
        }
    }

    /// It computes anything.
    pub(super) fn computes(&self) -> bool {
        self.encodes || !(self.chunks.is_empty() && self.rows.is_empty())
    }

    /// Nothing that it waited for is missing now.
    pub(super) fn may_run(&mut self) {
        self.turn = Instant::now();
    }

    /// If there is no answer then, the step hangs: a little later than the shards know it themselves.
    pub(super) fn due(&self) -> Instant {
        self.turn + self.limit + GRACE
    }

    pub(super) fn overdue(&self) -> ClientError {
        ClientError::Overdue {
            number: self.number,
            seconds: self.limit.as_secs(),
        }
    }
}

impl Batcher {
    /// What a plan that takes so long gets before the next one is sent. Where nothing is computed the device waits for
    /// it, and what the shards do for another plan would hold up its launch.
    pub(super) fn head_start(&self, predicted: Duration) -> Duration {
        let idle = !self.in_flight.iter().any(|(plan, _)| plan.computes());
        if idle && predicted >= SHORTEST_WITH_HEAD_START {
            HEAD_START
        } else {
            Duration::ZERO
        }
    }

    /// When the next plan may be sent, where that is later than now.
    pub(super) fn next_from(&self) -> Option<Instant> {
        let (last, _) = self.in_flight.back()?;
        Some(last.next_from).filter(|&from| from > Instant::now())
    }
}
