//! What a person sees while the benchmark runs.

mod bar;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::live::Live;

/// A thread that shows the progress until `finish`.
#[derive(Debug)]
pub struct Screen {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Screen {
    pub fn start(live: Arc<Live>, _no_tui: bool) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let thread = std::thread::spawn(move || bar::show(&live, &seen));
        Self { ended, thread }
    }

    /// Leaves the terminal as it was.
    pub fn finish(self) {
        self.ended.store(true, Relaxed);
        // A screen that failed has already said so; the results do not depend on it.
        let _ = self.thread.join();
    }
}
