//! A plan that is on its way.

use text_generation_client::ClientError;
use text_generation_client::types::{Row, StepMasks};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

/// What an answer may take beside its step.
const GRACE: Duration = Duration::from_secs(2);

/// A plan that was sent.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) number: u64,
    /// Rows of which it computes parts of prompts.
    pub(super) chunks: Vec<Row>,
    /// Rows that get a token, in the plan's order.
    pub(super) rows: Vec<Row>,
    /// Those of `rows` whose choice waits for masks.
    pub(super) constrained: Vec<Row>,
    /// Takes the masks, until they are sent.
    pub(super) masks: Option<oneshot::Sender<StepMasks>>,
    pub(super) sent: Instant,
    pub(super) predicted: Duration,
    /// So long may it take from its turn on.
    pub(super) limit: Duration,
    /// When its turn came, as far as that is known: it was sent, the plan before it was answered, its masks were sent.
    pub(super) turn: Instant,
}

impl InFlight {
    pub(super) fn is_prefill(&self) -> bool {
        !self.chunks.is_empty()
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
