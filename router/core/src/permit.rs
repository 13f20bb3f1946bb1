//! Permission to run one generation. It ends with the generation or with the stream that reads it, whichever is first:
//! a client that does not take the end of its answer keeps nobody out.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

/// A place of the server, and one of the tenant where it may not have all of them.
#[derive(Debug)]
pub(crate) struct Permit {
    pub(crate) _server: OwnedSemaphorePermit,
    pub(crate) _tenant: Option<OwnedSemaphorePermit>,
}

/// Half of a permit, which is given back when the first half is dropped.
#[derive(Debug)]
pub(crate) struct PermitHalf(Arc<Mutex<Option<Permit>>>);

impl PermitHalf {
    pub(crate) fn pair(permit: Permit) -> (Self, Self) {
        let shared = Arc::new(Mutex::new(Some(permit)));
        (Self(shared.clone()), Self(shared))
    }
}

impl Drop for PermitHalf {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
