//! A group of shards without a model, for tests and benchmarks of everything above gRPC: over real Unix sockets, or
//! within the process of its caller, whose clock may be paused then.
//!
//! Plans run in the order of their numbers; rows, slots and masks are kept and checked as in a real shard; what breaks
//! the contract is listed by [`MockShard::violations`]. Steps can be held, delayed and made to fail, and the
//! group can be lost and start again, so tests wait for conditions, not for time.

mod adapters;
mod config;
mod connection;
mod content;
mod faults;
mod group;
mod hints;
mod lock;
mod masks;
mod media;
mod script;
mod service;
mod state;
mod step;
mod wire;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use text_generation_proto::v1;
use tokio::sync::Semaphore;
use tonic::transport::Channel;

pub use config::{
    AdapterSource, DraftsOf, MockConfig, MockLoad, MockRow, RowTest, StepTime, TokenSource,
};
pub use content::{Read, content_after};
pub use faults::StepFault;
use group::Group;
use lock::lock;
pub use script::Script;
use service::Crash;
use state::State;
pub use step::MockStep;

/// A running mock group. Dropping it stops the servers and removes the sockets.
#[derive(Debug)]
pub struct MockShard(Arc<Group>);

impl MockShard {
    /// Starts all ranks on the current tokio runtime; the sockets accept connections when this returns.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(config: MockConfig) -> io::Result<Self> {
        Ok(Self(Group::on_sockets(config)?))
    }

    /// Starts all ranks on the current tokio runtime, without sockets; [`MockShard::channels`] lead to them.
    ///
    /// # Errors
    /// None that can be known before.
    pub fn start_in_process(config: MockConfig) -> io::Result<Self> {
        Ok(Self(Group::in_process(config)?))
    }

    /// The socket of rank 0; empty where there is none.
    pub fn path(&self) -> PathBuf {
        self.0.socket(0).unwrap_or_default()
    }

    /// One for each rank of a group in this process, in their order; none where there are sockets. They connect when
    /// they are used, and again where a connection was lost.
    pub fn channels(&self) -> Vec<Channel> {
        self.0.channels()
    }

    /// Ends the connections to one rank, which goes on.
    pub fn cut(&self, rank: usize) {
        self.0.cut(rank);
    }

    /// All ranks end at once, as by SIGKILL; connections break. With [`MockConfig::restarts`] they start again.
    pub fn kill(&self) {
        self.0.clone().crash(self.0.number());
    }

    /// Ranks neither read nor write from now on, as after SIGSTOP, until [`MockShard::restart`].
    pub fn hang(&self) {
        self.0.hang();
    }

    /// Ends what is left of the ranks, and starts them anew on the same sockets. They wait for Warmup.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn restart(&self) -> io::Result<()> {
        self.0.end(self.0.number());
        self.0.start()
    }

    /// How often the group was started.
    pub fn starts(&self) -> usize {
        self.0.number() + 1
    }

    /// What each Warmup of rank 0 asked for, over all starts.
    pub fn warmups(&self) -> Vec<v1::WarmupRequest> {
        self.0.collect(1, |state| state.warmups.clone())
    }

    /// Broken rules of the contract, over all ranks and starts; empty for a correct router.
    pub fn violations(&self) -> Vec<String> {
        self.0.collect(usize::MAX, |state| state.violations.clone())
    }

    /// Rows in use on rank 0.
    pub fn rows(&self) -> usize {
        self.0.now(State::rows).unwrap_or(0)
    }

    /// Slots that the rows of rank 0 use.
    pub fn slots(&self) -> usize {
        self.0.now(State::slots).unwrap_or(0)
    }

    /// Every step of rank 0 so far, over all starts.
    pub fn steps(&self) -> Vec<MockStep> {
        self.0.collect(1, |state| state.steps.clone())
    }

    /// Links to spans of requests, of each step of rank 0 that had any.
    pub fn trace_links(&self) -> Vec<Vec<u8>> {
        self.0.collect(1, |state| state.trace_links.clone())
    }

    /// How long the device of rank 0 had nothing to do before each step that it began, but for the first of each start.
    pub fn idle(&self) -> Vec<Duration> {
        self.0.collect(1, |state| state.idle.clone())
    }

    /// Requests that own a row of rank 0.
    pub fn requests(&self) -> Vec<u64> {
        self.0.now(State::requests).unwrap_or_default()
    }

    /// How often a request got a row of rank 0: again when it resumes after a pause.
    pub fn admitted(&self) -> usize {
        self.0
            .collect(1, |state| vec![state.admitted])
            .into_iter()
            .sum()
    }

    /// How many images came to rank 0, and how many it has encoded, over all starts.
    pub fn images(&self) -> (usize, usize) {
        let counts = self
            .0
            .collect(1, |state| vec![(state.media.puts, state.media.encoded)]);
        let sum = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
        counts.into_iter().fold((0, 0), sum)
    }

    /// Images whose pixels rank 0 keeps.
    pub fn waiting_images(&self) -> usize {
        self.0.now(|state| state.media.waiting()).unwrap_or(0)
    }

    /// The next image is refused by every rank.
    pub fn refuse_next_image(&self) {
        self.0.collect(usize::MAX, |state| {
            state.media.refuses = true;
            Vec::<()>::new()
        });
    }

    /// Every call of LoadAdapter that came to rank 0, over all starts.
    pub fn loads(&self) -> Vec<v1::LoadAdapterRequest> {
        self.0.collect(1, |state| state.adapters.loads.clone())
    }

    /// Every copy that a plan asked rank 0 for, over all starts.
    pub fn copies(&self) -> Vec<v1::AdapterCopy> {
        self.0.collect(1, |state| state.adapters.copies.clone())
    }

    /// Generations in the host memory of rank 0, ascending.
    pub fn adapters(&self) -> Vec<u64> {
        self.0
            .now(|state| state.adapters.in_host_memory())
            .unwrap_or_default()
    }

    /// From now on a call of LoadAdapter waits for [`MockShard::resume_loads`].
    pub fn hold_loads(&self) {
        self.0.faults.loads.send_replace(false);
    }

    /// Ends a hold of loads.
    pub fn resume_loads(&self) {
        self.0.faults.loads.send_replace(true);
    }

    /// From now on a step waits for [`MockShard::release`].
    pub fn hold(&self) {
        *lock(&self.0.faults.gate) = Some(Arc::new(Semaphore::new(0)));
    }

    /// Lets `steps` held steps through, each on all ranks.
    pub fn release(&self, steps: usize) {
        if let Some(gate) = lock(&self.0.faults.gate).as_ref() {
            gate.add_permits(steps * self.0.world_size());
        }
    }

    /// Ends a hold: steps run freely again.
    pub fn resume(&self) {
        if let Some(gate) = lock(&self.0.faults.gate).take() {
            gate.add_permits(Semaphore::MAX_PERMITS / 2);
        }
    }

    /// The next step of one rank fails with INTERNAL and this message.
    pub fn fail_next_step(&self, message: &str) {
        self.disturb_next_step(StepFault::Error(message.to_owned()));
    }

    /// This goes wrong with the next step, or with the one after those that were disturbed already.
    pub fn disturb_next_step(&self, fault: StepFault) {
        lock(&self.0.faults.steps).push_back(fault);
    }

    /// The next ClearCache of one rank fails with INTERNAL.
    pub fn fail_next_clear(&self) {
        *lock(&self.0.faults.failing_clears) += 1;
    }

    /// The next masks of one rank are refused with INTERNAL and this message.
    pub fn fail_next_masks(&self, message: &str) {
        lock(&self.0.faults.failing_masks).push(message.to_owned());
    }

    /// This request fails alone at its next step.
    pub fn fail_request(&self, id: u64) {
        self.0.collect(usize::MAX, |state| {
            state.failing.push(id);
            Vec::<()>::new()
        });
    }

    /// What Health answers from now on.
    pub fn set_healthy(&self, healthy: bool) {
        *lock(&self.0.faults.healthy) = healthy;
    }
}

impl Drop for MockShard {
    fn drop(&mut self) {
        self.0.end(self.0.number());
    }
}
