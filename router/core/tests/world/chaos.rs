//! What goes wrong in a world, and when.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use text_generation_mock_shard::StepFault;
use tokio::time::{Instant, sleep_until};

use super::server::Server;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// The next step fails with an error.
    Error,
    /// The next step never ends.
    Hang,
    /// One row is missing in the reply to the next step: of one rank, so several disagree.
    LostRow,
    /// The last rank has another token; only where there are several.
    Disagreement,
    /// One of those that run fails alone.
    Request,
    /// The connection to a rank ends.
    Cut(usize),
    /// All ranks end, and start again.
    Kill,
    /// The next step fails, and the call that clears the shards after it fails too.
    Unclear,
}

impl Fault {
    /// The shards are lost and start again: nobody need fail.
    pub fn is_loss(self) -> bool {
        matches!(
            self,
            Self::Hang | Self::Disagreement | Self::Cut(_) | Self::Kill
        )
    }
}

/// Each fault and when it happens, from the beginning of a world on.
pub type Chaos = Vec<(Duration, Fault)>;

/// So many faults within a time.
pub fn random(random: &mut StdRng, count: usize, within: Duration, ranks: usize) -> Chaos {
    let mut kinds = vec![
        Fault::Error,
        Fault::Hang,
        Fault::Cut(ranks - 1),
        Fault::Unclear,
        Fault::Kill,
    ];
    if ranks > 1 {
        kinds.extend([Fault::Disagreement, Fault::Cut(0)]);
    } else {
        kinds.extend([Fault::LostRow, Fault::Request]);
    }
    let mut fault = || {
        let at = random.random_range(0..within.as_millis() as u64);
        let kind = kinds.choose(random).copied().unwrap_or(Fault::Error);
        (Duration::from_millis(at), kind)
    };
    let mut chaos: Chaos = (0..count).map(|_| fault()).collect();
    chaos.sort_by_key(|(at, _)| *at);
    chaos
}

/// Lets everything go wrong in its time. Returns when each fault happened; one that found nothing to disturb did not.
pub async fn disturb(server: &Server, chaos: Chaos) -> Vec<(Instant, Fault)> {
    let began = Instant::now();
    let mut happened = Vec::new();
    for (at, fault) in chaos {
        sleep_until(began + at).await;
        if server.disturb(&fault) {
            happened.push((Instant::now(), fault));
        }
    }
    happened
}

impl Server {
    fn disturb(&self, fault: &Fault) -> bool {
        // A fault of the next step would wait for it, for who knows how long.
        let requests = self.mock.requests();
        let Some(&first) = requests.first() else {
            return false;
        };
        let step = |fault| self.mock.disturb_next_step(fault);
        match fault {
            Fault::Error => step(StepFault::Error("out of luck".to_owned())),
            Fault::Hang => step(StepFault::Hang),
            Fault::LostRow => step(StepFault::LostRow),
            Fault::Disagreement => step(StepFault::WrongToken),
            Fault::Request => self.mock.fail_request(first),
            Fault::Cut(rank) => self.mock.cut(*rank),
            Fault::Kill => self.mock.kill(),
            Fault::Unclear => {
                self.mock.fail_next_clear();
                step(StepFault::Error("out of luck".to_owned()));
            }
        }
        true
    }
}
