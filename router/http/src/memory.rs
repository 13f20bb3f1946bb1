//! One budget for the memory that requests take before they are admitted: bodies, prompts, and large answers.
//!
//! Without it, what clients can make this process hold would be their connections times the largest body, and many
//! times that while texts are parsed and tokenised.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// The unit that is counted, in bytes.
const UNIT: usize = 1024;

/// What a request may hold and still count as small, in units: that of a body of 64 KiB that is nearly all text.
const SMALL: usize = 512;
/// This part of the budget is for small requests, so that some large ones cannot shut all others out.
const FOR_SMALL: usize = 8;

/// Bytes that all requests together may hold. Clones share them.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    for_small: usize,
    /// What one large request may hold while nobody else holds anything.
    for_large: usize,
}

/// What one request holds of the budget, given back when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct MemoryShare {
    budget: MemoryBudget,
    held: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    /// Bytes for the texts of its body.
    texts: Arc<AtomicUsize>,
}

impl MemoryBudget {
    pub fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS);
        Self {
            units: Arc::new(Semaphore::new(units)),
            for_small: units / FOR_SMALL,
            for_large: units - units / FOR_SMALL,
        }
    }

    /// The share of a new request, which holds nothing yet.
    pub fn share(&self) -> MemoryShare {
        MemoryShare {
            budget: self.clone(),
            held: Arc::default(),
            texts: Arc::default(),
        }
    }

    /// `more` units for a request that will hold `units`. Two large ones at once may take a little of what is for small
    /// ones, and never more than there is.
    fn take(&self, more: usize, units: usize) -> Option<OwnedSemaphorePermit> {
        let left = self.units.available_permits().checked_sub(more)?;
        if units > SMALL && left < self.for_small {
            return None;
        }
        let more = u32::try_from(more).ok()?;
        self.units.clone().try_acquire_many_owned(more).ok()
    }
}

impl MemoryShare {
    /// Holds `bytes` from now on, more or less than before. Never waits: a request that waited would keep what it has.
    ///
    /// # Errors
    /// 429 when the other requests leave too little; the share stays as it was.
    pub fn resize(&self, bytes: usize) -> Result<(), ApiError> {
        let units = bytes.div_ceil(UNIT);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if units > has {
            let more = self.budget.take(units - has, units);
            let more = more.ok_or_else(ApiError::out_of_memory)?;
            match held.as_mut() {
                Some(held) => held.merge(more),
                None => *held = Some(more),
            }
        } else if let Some(held) = held.as_mut() {
            drop(held.split(has - units));
        }
        Ok(())
    }

    /// Holds what a body takes from now on: `texts` bytes, and for its JSON values `values` more until
    /// [`MemoryShare::forget_values`]. A body that counts more than one request may hold is taken while nobody else
    /// holds anything.
    ///
    /// # Errors
    /// As [`MemoryShare::resize`].
    pub fn hold_body(&self, texts: usize, values: usize) -> Result<(), ApiError> {
        let most = self.budget.for_large * UNIT;
        self.resize(texts.saturating_add(values).min(most))?;
        self.texts.store(texts, Ordering::Relaxed);
        Ok(())
    }

    /// Holds what is added to a body from now on, counted as in [`MemoryShare::hold_body`].
    ///
    /// # Errors
    /// As [`MemoryShare::resize`].
    pub fn hold_more(&self, texts: usize, values: usize) -> Result<(), ApiError> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) * UNIT;
        drop(held);
        let of_texts = self.texts.load(Ordering::Relaxed);
        let of_values = has.saturating_sub(of_texts);
        self.hold_body(
            of_texts.saturating_add(texts),
            of_values.saturating_add(values),
        )
    }

    /// The JSON of the body is gone: it is a prompt, and maybe tools that an answer is read with.
    pub fn forget_values(&self) {
        self.shrink(self.texts.load(Ordering::Relaxed));
    }

    /// Holds no more than `bytes` from now on.
    fn shrink(&self, bytes: usize) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.as_mut() {
            let rest = held.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(held.split(rest));
        }
    }
}

/// Gives each request its share, which it holds until its handler has answered, or for as long as the handler keeps it.
pub async fn meter(
    State(budget): State<MemoryBudget>,
    mut request: Request,
    next: Next,
) -> Response {
    let share = budget.share();
    request.extensions_mut().insert(share.clone());
    let response = next.run(request).await;
    drop(share);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_grow_and_shrink_within_the_budget() {
        let budget = MemoryBudget::new(10 * UNIT);
        let (first, second) = (budget.share(), budget.share());
        assert_eq!(first.resize(6 * UNIT), Ok(()));
        assert_eq!(second.resize(4 * UNIT - 1), Ok(()));
        let refused = second.resize(5 * UNIT).expect_err("too much");
        assert_eq!(refused.status.as_u16(), 429);
        assert_eq!(first.resize(5 * UNIT), Ok(()));
        assert_eq!(second.resize(5 * UNIT), Ok(()));
        drop(first);
        assert_eq!(second.resize(10 * UNIT), Ok(()));
        second.shrink(20 * UNIT);
        assert!(budget.share().resize(1).is_err());
        second.shrink(9 * UNIT);
        assert_eq!(budget.share().resize(1), Ok(()));
    }

    #[test]
    fn values_of_a_body_are_forgotten_and_the_largest_body_is_taken_alone() {
        let budget = MemoryBudget::new(8000 * UNIT);
        let (first, second) = (budget.share(), budget.share());
        assert_eq!(first.hold_body(UNIT, 100_000 * UNIT), Ok(()));
        assert!(second.hold_body(UNIT, 1000 * UNIT).is_err());
        first.forget_values();
        assert_eq!(second.hold_body(UNIT, 6998 * UNIT), Ok(()));
    }

    #[test]
    fn what_is_added_to_a_body_counts_with_it() {
        let budget = MemoryBudget::new(8000 * UNIT);
        let share = budget.share();
        assert_eq!(share.hold_body(UNIT, 2 * UNIT), Ok(()));
        assert_eq!(share.hold_more(10 * UNIT, 20 * UNIT), Ok(()));
        assert_eq!(budget.units.available_permits(), 8000 - 33);
        share.forget_values();
        assert_eq!(budget.units.available_permits(), 8000 - 11);
    }

    #[test]
    fn large_shares_leave_room_for_small_ones() {
        let budget = MemoryBudget::new(8000 * UNIT);
        let (large, small) = (budget.share(), budget.share());
        assert!(large.resize(7001 * UNIT).is_err());
        assert_eq!(large.resize(7000 * UNIT), Ok(()));
        assert!(small.resize((SMALL + 1) * UNIT).is_err());
        assert_eq!(small.resize(SMALL * UNIT), Ok(()));
    }
}
