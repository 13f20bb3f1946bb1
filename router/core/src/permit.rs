//! Permission to run one generation. It ends with the generation or with the stream that reads it, whichever is first:
//! a client that does not take the end of its answer keeps nobody out.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

/// Half of a permit, which is given back when the first half is dropped.
#[derive(Debug)]
pub(crate) struct PermitHalf(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl PermitHalf {
    pub(crate) fn pair(permit: OwnedSemaphorePermit) -> (Self, Self) {
        let shared = Arc::new(Mutex::new(Some(permit)));
        (Self(shared.clone()), Self(shared))
    }
}

impl Drop for PermitHalf {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
