//! One budget for the memory that requests take before they are admitted, bodies and prompts, and that answers take
//! until their clients have them.
//!
//! Without it, what clients can make this process hold would be their connections times the largest body, and many
//! times that while texts are parsed and tokenised.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

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
    /// Units that are held. More than there are where answers that are there already need more.
    held: Arc<AtomicUsize>,
    units: usize,
    for_small: usize,
    /// What one large request may hold while nobody else holds anything.
    for_large: usize,
}

/// What one request holds of the budget, given back when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct MemoryShare(Arc<Share>);

#[derive(Debug)]
struct Share {
    budget: MemoryBudget,
    units: Mutex<usize>,
    /// Bytes for the texts of its body.
    texts: AtomicUsize,
}

impl MemoryBudget {
    pub fn new(bytes: usize) -> Self {
        let units = bytes / UNIT;
        Self {
            held: Arc::default(),
            units,
            for_small: units / FOR_SMALL,
            for_large: units - units / FOR_SMALL,
        }
    }

    /// The share of a new request, which holds nothing yet.
    pub fn share(&self) -> MemoryShare {
        MemoryShare(Arc::new(Share {
            budget: self.clone(),
            units: Mutex::default(),
            texts: AtomicUsize::default(),
        }))
    }

    /// Bytes that are held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed).saturating_mul(UNIT)
    }

    /// Takes `more` units for a request that will hold `units`. Two large ones at once may take a little of what is for
    /// small ones, and never more than there is.
    fn take(&self, more: usize, units: usize) -> bool {
        let take = |held: usize| {
            let left = self.units.checked_sub(held)?.checked_sub(more)?;
            (units <= SMALL || left >= self.for_small).then_some(held + more)
        };
        let order = Ordering::Relaxed;
        self.held.fetch_update(order, order, take).is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let units = self.units.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.budget.held.fetch_sub(*units, Ordering::Relaxed);
    }
}

impl MemoryShare {
    fn units(&self) -> MutexGuard<'_, usize> {
        self.0.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds `bytes` from now on, more or less than before. Never waits: a request that waited would keep what it has.
    ///
    /// # Errors
    /// 429 when the other requests leave too little; the share stays as it was.
    pub fn resize(&self, bytes: usize) -> Result<(), ApiError> {
        let units = bytes.div_ceil(UNIT);
        let budget = &self.0.budget;
        let mut has = self.units();
        match units.checked_sub(*has) {
            Some(more) if !budget.take(more, units) => return Err(ApiError::out_of_memory()),
            Some(_) => {}
            None => drop(budget.held.fetch_sub(*has - units, Ordering::Relaxed)),
        }
        *has = units;
        Ok(())
    }

    /// Holds `bytes` of an answer that is there already, also where that is more than is left: others wait then.
    pub fn hold_answer(&self, bytes: usize) {
        let more = bytes.div_ceil(UNIT);
        *self.units() += more;
        self.0.budget.held.fetch_add(more, Ordering::Relaxed);
    }

    /// Holds what a body takes from now on: `texts` bytes, and for its JSON values `values` more until
    /// [`MemoryShare::forget_values`]. A body that counts more than one request may hold is taken while nobody else
    /// holds anything.
    ///
    /// # Errors
    /// As [`MemoryShare::resize`].
    pub fn hold_body(&self, texts: usize, values: usize) -> Result<(), ApiError> {
        let most = self.0.budget.for_large * UNIT;
        self.resize(texts.saturating_add(values).min(most))?;
        self.0.texts.store(texts, Ordering::Relaxed);
        Ok(())
    }

    /// Holds what is added to a body from now on, counted as in [`MemoryShare::hold_body`].
    ///
    /// # Errors
    /// As [`MemoryShare::resize`].
    pub fn hold_more(&self, texts: usize, values: usize) -> Result<(), ApiError> {
        let has = *self.units() * UNIT;
        let of_texts = self.0.texts.load(Ordering::Relaxed);
        let of_values = has.saturating_sub(of_texts);
        self.hold_body(
            of_texts.saturating_add(texts),
            of_values.saturating_add(values),
        )
    }

    /// The JSON of the body is gone: it is a prompt, and maybe tools that an answer is read with.
    pub fn forget_values(&self) {
        self.shrink(self.0.texts.load(Ordering::Relaxed));
    }

    /// Holds no more than `bytes` from now on.
    fn shrink(&self, bytes: usize) {
        let mut has = self.units();
        let rest = has.saturating_sub(bytes.div_ceil(UNIT));
        self.0.budget.held.fetch_sub(rest, Ordering::Relaxed);
        *has -= rest;
    }
}

/// Gives each request its share, which it holds until its handler has answered, or for as long as the handler keeps it,
/// and its answer the budget, in which [`AnswerBody`](crate::connection::AnswerBody) counts it.
pub async fn meter(
    State(budget): State<MemoryBudget>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(budget.share());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(budget);
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
        assert_eq!(budget.held(), 33 * UNIT);
        share.forget_values();
        assert_eq!(budget.held(), 11 * UNIT);
    }

    #[test]
    fn an_answer_that_is_there_is_held_whatever_is_left() {
        let budget = MemoryBudget::new(10 * UNIT);
        let (answer, request) = (budget.share(), budget.share());
        answer.hold_answer(11 * UNIT);
        assert_eq!(budget.held(), 11 * UNIT);
        assert!(request.resize(1).is_err());
        drop(answer);
        assert_eq!(request.resize(10 * UNIT), Ok(()));
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
