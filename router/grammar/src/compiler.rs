//! Compiles sources on threads of its own, within limits.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::{Cache, Lookup, Outcome, Progress};
use crate::engine::Engine;
use crate::lower;
use crate::workers::{StuckThreads, WorkerLimits, Workers};
use crate::{CompilerLimits, Grammar, GrammarError, GrammarSource, Vocabulary};

type Compile = Box<dyn Fn(GrammarSource) -> Outcome + Send + Sync>;

/// Makes grammars of sources for one vocabulary. Clones share threads and cache.
#[derive(Debug, Clone)]
pub struct Compiler {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
}

struct Shared {
    vocabulary: Vocabulary,
    limits: CompilerLimits,
    compile: Compile,
    cache: Cache,
}

impl Compiler {
    /// Starts the threads. They end with the last clone.
    pub fn new(vocabulary: Vocabulary, limits: CompilerLimits) -> Self {
        Self::watched(vocabulary, limits, Box::new(|_| {}))
    }

    /// The same; `on_stuck` is told how many threads are stuck.
    pub fn watched(vocabulary: Vocabulary, limits: CompilerLimits, on_stuck: StuckThreads) -> Self {
        let engine = Engine::new(vocabulary.clone(), limits.clone());
        let compile = Box::new(move |source| engine.compile(source));
        Self::with(vocabulary, limits, on_stuck, compile)
    }

    fn with(
        vocabulary: Vocabulary,
        limits: CompilerLimits,
        on_stuck: StuckThreads,
        compile: Compile,
    ) -> Self {
        let of_workers = WorkerLimits {
            threads: limits.threads,
            queue: limits.queue,
            time: limits.time,
            replaced: limits.replaced_threads,
        };
        let cache = Cache::new(limits.cache_bytes);
        Self {
            shared: Arc::new(Shared {
                vocabulary,
                limits,
                compile,
                cache,
            }),
            workers: Arc::new(Workers::new(of_workers, on_stuck)),
        }
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.shared.vocabulary
    }

    /// The grammar of `source`; equal sources are compiled once. Needs tokio's timer. A caller that goes away leaves the
    /// compilation to those who wait for the same source, and to the cache.
    pub async fn compile(&self, source: GrammarSource) -> Result<Arc<Grammar>, GrammarError> {
        let part = source.part();
        lower::check(&source, &self.shared.limits)?;
        let key = Arc::from(source.key());
        let waiting = match self.shared.cache.lookup(&key) {
            Lookup::Ready(grammar) => return Ok(grammar),
            Lookup::Pending(waiting) => waiting,
            Lookup::Missing(sender, waiting) => {
                let (shared, key_of_job) = (self.shared.clone(), key.clone());
                let job = move || {
                    sender.send_replace(Progress::Runs);
                    let outcome = (shared.compile)(source);
                    shared.cache.finish(&key_of_job, &outcome);
                    sender.send_replace(Progress::Ended(outcome));
                };
                if let Err(error) = self.workers.submit(Box::new(job)) {
                    self.shared.cache.finish(&key, &Err(error.clone()));
                    return Err(error);
                }
                waiting
            }
        };
        outcome(waiting, part, self.shared.limits.time).await
    }
}

/// Waits for the outcome of a job: at most `limit` for its turn, and as long again from then on.
async fn outcome(
    mut job: watch::Receiver<Progress>,
    part: &'static str,
    limit: Duration,
) -> Outcome {
    // The job was dropped without an answer.
    let gone = |_| GrammarError::Internal {
        reason: "its compilation ended without a result".to_owned(),
    };
    let begun = job.wait_for(|progress| !matches!(progress, Progress::Waits));
    match timeout(limit, begun).await {
        Ok(begun) => drop(begun.map_err(gone)?),
        Err(_) => return Err(GrammarError::WaitedTooLong { limit }),
    }
    let ended = job.wait_for(|progress| matches!(progress, Progress::Ended(_)));
    let progress = match timeout(limit, ended).await {
        Ok(ended) => ended.map_err(gone)?,
        Err(_) => return Err(GrammarError::TooSlow { part, limit }),
    };
    match &*progress {
        Progress::Ended(outcome) => outcome.clone(),
        Progress::Waits | Progress::Runs => Err(GrammarError::TooSlow { part, limit }),
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("vocabulary", &self.vocabulary)
            .field("limits", &self.limits)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}
