//! Display of a running benchmark.

mod bar;
mod tui;

use std::io::IsTerminal;
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
    /// The full screen on a terminal, else a progress bar.
    pub fn start(live: Arc<Live>, no_tui: bool) -> Self {
        let full = !no_tui && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let thread = std::thread::spawn(move || {
            let shown = full && tui::show(&live, &seen).is_ok();
            if !shown {
                bar::show(&live, &seen);
            }
        });
        Self { ended, thread }
    }

    /// Leaves the terminal as it was.
    pub fn finish(self) {
        self.ended.store(true, Relaxed);
        // A screen that failed has already said so; the results do not depend on it.
        let _ = self.thread.join();
    }
}
