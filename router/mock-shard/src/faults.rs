//! Faults, as tests ask for them while the mock runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, watch};

use crate::lock::lock;

/// What goes wrong with the next step, in the rank that comes to it first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepFault {
    /// It fails with INTERNAL and this message.
    Error(String),
    /// It never ends.
    Hang,
    /// The reply leaves its first row out. The ranks disagree, where there are several.
    LostRow,
    /// The reply has another token for its first row than the row chose.
    WrongToken,
}

/// What a test can change while the mock runs; shared by the ranks.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Every step takes one permit and forgets it; `None` lets steps run freely.
    pub gate: Mutex<Option<Arc<Semaphore>>>,
    /// Of the next steps, one each.
    pub steps: Mutex<VecDeque<StepFault>>,
    /// The next masks are refused with this message.
    pub failing_masks: Mutex<Vec<String>>,
    /// So many of the next calls of ClearCache fail.
    pub failing_clears: Mutex<usize>,
    pub healthy: Mutex<bool>,
    /// Whether adapters are read; else calls wait.
    pub loads: watch::Sender<bool>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            gate: Mutex::default(),
            steps: Mutex::default(),
            failing_masks: Mutex::default(),
            failing_clears: Mutex::default(),
            healthy: Mutex::new(true),
            loads: watch::Sender::new(true),
        }
    }
}

impl Faults {
    /// What goes wrong with the step that begins now.
    pub(crate) fn next_step(&self) -> Option<StepFault> {
        lock(&self.steps).pop_front()
    }

    /// Whether this call of ClearCache fails.
    pub(crate) fn clear_fails(&self) -> bool {
        let mut failing = lock(&self.failing_clears);
        let fails = *failing > 0;
        *failing = failing.saturating_sub(1);
        fails
    }
}
