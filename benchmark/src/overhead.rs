//! Cost of the client itself: CPU time, and how long its event loop lets a ready task wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

use crate::stats::Distribution;

const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// Above these the client distorts what it measures.
const MAX_LAG_MS: f64 = 5.0;
const MAX_BUSY: f64 = 0.8;

/// The client's own load during one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientLoad {
    /// Worker threads of the client, at most the cores that it may use.
    pub threads: usize,
    /// CPU seconds (user and system) per second.
    pub cores_used: f64,
    /// From "a task is ready" to "it runs", sampled every 10 ms.
    pub loop_lag_ms: Option<Distribution>,
    /// From when a request was due to when it was sent (open loop).
    pub send_delay_ms: Option<Distribution>,
    /// Set when the client, not the server, was the limit: why.
    pub limit: Option<String>,
}

/// Measures from `start` to `finish`.
#[derive(Debug)]
pub struct OverheadProbe {
    started: Instant,
    cpu: Duration,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl OverheadProbe {
    /// Call it on the runtime whose workers carry the load.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Handle::current();
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let (sender, receiver) = mpsc::channel();
            while !ended.load(Relaxed) {
                let sender = sender.clone();
                let ready = Instant::now();
                runtime.spawn(async move { sender.send(ready.elapsed().as_secs_f64() * 1e3) });
                std::thread::sleep(PROBE_INTERVAL);
            }
            drop(sender);
            receiver.iter().collect()
        });
        Self {
            started: Instant::now(),
            cpu: cpu_time(),
            stop,
            thread,
        }
    }

    /// `send_delays_ms`: of the requests of an open loop without a limit of its own.
    pub async fn finish(self, threads: usize, send_delays_ms: Vec<f64>) -> ClientLoad {
        let wall = self.started.elapsed().as_secs_f64();
        let cores_used = cpu_time().saturating_sub(self.cpu).as_secs_f64() / wall;
        self.stop.store(true, Relaxed);
        // The thread waits for tasks of this runtime, so it is joined outside of it.
        let lags = tokio::task::spawn_blocking(|| self.thread.join().unwrap_or_default())
            .await
            .unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(threads, usize::from);
        let mut load = ClientLoad {
            threads: threads.min(cores),
            cores_used,
            loop_lag_ms: Distribution::of(lags),
            send_delay_ms: Distribution::of(send_delays_ms),
            limit: None,
        };
        load.limit = load.verdict();
        load
    }
}

impl ClientLoad {
    fn verdict(&self) -> Option<String> {
        let late =
            |lag: &Option<Distribution>| lag.map(|lag| lag.p99).filter(|p99| *p99 > MAX_LAG_MS);
        let busy = self.cores_used / self.threads as f64;
        if busy > MAX_BUSY {
            Some(format!(
                "it used {:.1} of its {} threads (--threads)",
                self.cores_used, self.threads
            ))
        } else if let Some(p99) = late(&self.loop_lag_ms) {
            Some(format!("its event loop ran {p99:.1} ms late (p99)"))
        } else {
            late(&self.send_delay_ms)
                .map(|p99| format!("it sent requests {p99:.1} ms after they were due (p99)"))
        }
    }
}

/// User and system time of this process so far.
fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let microseconds =
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(microseconds.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(cores_used: f64, lag_ms: f64, delay_ms: f64) -> ClientLoad {
        ClientLoad {
            threads: 4,
            cores_used,
            loop_lag_ms: Distribution::of(vec![lag_ms]),
            send_delay_ms: Distribution::of(vec![delay_ms]),
            limit: None,
        }
    }

    #[test]
    fn the_client_is_the_limit_when_it_is_busy_or_late() {
        assert_eq!(load(1.0, 0.1, 0.1).verdict(), None);
        assert!(load(3.9, 0.1, 0.1).verdict().unwrap().contains("threads"));
        assert!(
            load(1.0, 9.0, 0.1)
                .verdict()
                .unwrap()
                .contains("event loop")
        );
        assert!(load(1.0, 0.1, 9.0).verdict().unwrap().contains("due"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_blocked_event_loop_is_seen() {
        let probe = OverheadProbe::start();
        // Block the only worker from a task of its own until the probe has something to wait for.
        let blocked = tokio::spawn(async { std::thread::sleep(Duration::from_millis(60)) });
        blocked.await.unwrap();
        let load = probe.finish(1, Vec::new()).await;
        assert!(load.loop_lag_ms.unwrap().max > 20.0, "{load:?}");
        assert!(load.limit.is_some());
    }
}
