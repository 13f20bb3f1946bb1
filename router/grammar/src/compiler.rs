//! Compiles sources on threads of its own, within limits.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

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
        let mut waiting = match self.shared.cache.lookup(&key) {
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
        let limit = self.shared.limits.time;
        let ended = |progress: &Progress| matches!(progress, Progress::Ended(_));
        // The job was dropped without an answer.
        let gone = || GrammarError::Internal {
            reason: "its compilation ended without a result".to_owned(),
        };
        if let Ok(Err(_)) = timeout(limit, waiting.wait_for(ended)).await {
            return Err(gone());
        }
        match &*waiting.borrow() {
            Progress::Waits => Err(GrammarError::Overloaded),
            Progress::Runs => Err(GrammarError::TooSlow { part, limit }),
            Progress::Ended(outcome) => outcome.clone(),
        }
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
