//! A progress bar on standard error; silent where that is no terminal.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::live::Live;

const INTERVAL: Duration = Duration::from_millis(100);
const TEMPLATE: &str = "{prefix} [{wide_bar}] {pos}/{len} {msg} {elapsed}";

/// Draws until `ended`.
pub fn show(live: &Live, ended: &AtomicBool) {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut started = None;
    while !ended.load(Relaxed) {
        let point = live.point().clone();
        if point.started != started {
            started = point.started;
            bar.reset();
            bar.set_length(point.total);
            bar.set_prefix(format!(
                "[{}/{}] {}",
                point.index + 1,
                point.points,
                point.label
            ));
        }
        let failed = live.failed.load(Relaxed);
        bar.set_position(live.done.load(Relaxed) + failed);
        let seconds = started.map_or(0.0, |started| started.elapsed().as_secs_f64());
        let rate = live.tokens.load(Relaxed) as f64 / seconds.max(1e-3);
        let failures = if failed > 0 {
            format!(", {failed} FAILED")
        } else {
            String::new()
        };
        bar.set_message(format!("{rate:.0} tokens/s{failures}"));
        std::thread::sleep(INTERVAL);
    }
    bar.finish_and_clear();
}
