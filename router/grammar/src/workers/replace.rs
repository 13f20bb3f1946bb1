//! Threads that take the place of stuck ones, so that one grammar that never ends stops no other.

use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Instant;

use super::Shared;

impl Shared {
    /// Starts the thread that finds the stuck ones. Where the machine has none left, none is found.
    pub(super) fn watch(self: &Arc<Self>) {
        let shared = self.clone();
        let _ = thread::Builder::new()
            .name("grammar-watch".to_owned())
            .spawn(move || shared.find_stuck());
    }

    fn find_stuck(self: &Arc<Self>) {
        let mut state = self.state();
        while !state.closed {
            let now = Instant::now();
            let left = |began: &Instant| {
                let taken = now.saturating_duration_since(*began);
                self.limits.time.saturating_sub(taken)
            };
            let next = state.running.iter().min_by_key(|(_, began)| **began);
            let next = next.map(|(id, began)| (*id, left(began)));
            state = match next {
                None => self
                    .begun
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some((id, left)) if left.is_zero() => {
                    state.running.remove(&id);
                    state.stuck += 1;
                    state.able -= 1;
                    if state.stuck <= self.limits.replaced {
                        self.start(&mut state);
                    }
                    (self.on_stuck)(state.stuck);
                    state
                }
                Some((_, left)) => {
                    let woken = self.begun.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Whether a thread whose job has ended takes another. One that was stuck does where its place is free.
    pub(super) fn goes_on(&self, id: u64) -> bool {
        let mut state = self.state();
        if state.running.remove(&id).is_some() {
            return true;
        }
        state.stuck -= 1;
        let is_needed = state.able < self.limits.threads.get();
        state.able += usize::from(is_needed);
        (self.on_stuck)(state.stuck);
        is_needed
    }
}
