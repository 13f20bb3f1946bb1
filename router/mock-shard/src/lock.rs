//! Locks of what a test may have left behind.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A poisoned lock means that a test has already failed elsewhere; the data is still good to read.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
