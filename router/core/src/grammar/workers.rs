//! Threads that follow grammars, so that neither the batching task nor a client's task waits for a mask.

use std::sync::Arc;
use std::time::Instant;

use metrics::Histogram;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use text_generation_grammar::{Grammar, GrammarError, Mask};
use tokio::sync::oneshot;

use super::Arrival;

/// Masks of 256 rows take 13 ms of one thread in the mean, and a step of 256 rows about as long: a quarter of the cores
/// of any server with a GPU, the share of the threads that serve clients, keeps well ahead of it.
const CORES_PER_THREAD: usize = 4;
const MOST_THREADS: usize = 16;

/// Clones share the threads, which start with the first use and end with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Workers {
    threads: Option<Arc<ThreadPool>>,
    /// How long each mask takes.
    duration: Histogram,
}

impl Workers {
    /// Where threads cannot be started, all work is answered with an error.
    pub(crate) fn new(duration: Histogram) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = ThreadPoolBuilder::new()
            .num_threads((cores / CORES_PER_THREAD).clamp(1, MOST_THREADS))
            .thread_name(|index| format!("masks-{index}"))
            // Without it a panic would end the process. Whoever waits for the work is told by its channel.
            .panic_handler(|_| tracing::error!("a thread that computes masks panicked"))
            .build();
        let threads = threads.inspect_err(|error| {
            tracing::error!(%error, "threads for masks cannot be started, so grammars cannot be followed");
        });
        Self {
            threads: threads.ok().map(Arc::new),
            duration,
        }
    }

    /// Lets each constraint take its token. The receiver fails where a thread panicked.
    pub(crate) fn advance(&self, mut arrivals: Vec<Arrival>) -> oneshot::Receiver<Vec<Arrival>> {
        let duration = self.duration.clone();
        self.run(move || {
            arrivals.par_iter_mut().for_each(|arrival| {
                let began = Instant::now();
                arrival.advance();
                duration.record(began.elapsed());
            });
            arrivals
        })
    }

    /// The mask of the first token, and the tokens that must come first.
    pub(super) async fn first_mask(
        &self,
        grammar: Arc<Grammar>,
    ) -> Result<(Mask, Arc<[u32]>), GrammarError> {
        let first = self.run(move || Ok((grammar.first_mask()?, grammar.first_forced().into())));
        first.await.unwrap_or_else(|_| {
            Err(GrammarError::Internal {
                reason: "the thread that computes masks failed".to_owned(),
            })
        })
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, outcome) = oneshot::channel();
        if let Some(threads) = &self.threads {
            // Nobody waits any more where the receiver is gone.
            threads.spawn(move || drop(done.send(work())));
        }
        outcome
    }
}
