//! Worker threads that encode and decode texts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{TextTokenizer, TokenizerError};
use crate::hints::Prediction;
use crate::types::TokenizedText;

type Job = Box<dyn FnOnce(&TextTokenizer) + Send>;

/// Texts that may wait for each worker; further callers wait for room.
const QUEUED_PER_WORKER: usize = 16;

/// Bytes from which on a text is long: it takes a worker for milliseconds or more.
const LONG_TEXT: usize = 64 * 1024;

/// Threads that encode, so that a long prompt does not hold up the runtime. Clones share the threads, which end when
/// the last clone is dropped. Where there are several, one of them is always left to short texts.
#[derive(Clone, Debug)]
pub struct TokenizerPool {
    tokenizer: TextTokenizer,
    jobs: mpsc::Sender<Job>,
    /// Workers that long texts may have.
    long_texts: Arc<Semaphore>,
}

impl TokenizerPool {
    /// Starts `workers` threads, at least one.
    pub fn new(tokenizer: TextTokenizer, workers: usize) -> Result<Self, TokenizerError> {
        let workers = workers.max(1);
        let (jobs, receiver) = mpsc::channel(workers.saturating_mul(QUEUED_PER_WORKER));
        let receiver = Arc::new(Mutex::new(receiver));
        for worker in 0..workers {
            let (tokenizer, receiver) = (tokenizer.clone(), receiver.clone());
            std::thread::Builder::new()
                .name(format!("tokenizer-{worker}"))
                .spawn(move || work(&tokenizer, &receiver))
                .map_err(|error| TokenizerError::Threads(error.to_string()))?;
        }
        let for_long_texts = (workers - 1).clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            tokenizer,
            jobs,
            long_texts: Arc::new(Semaphore::new(for_long_texts)),
        })
    }

    /// [`TextTokenizer::encode`] on a worker thread.
    pub async fn encode(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.run(text.len(), move |tokenizer| {
            tokenizer.encode(&text, add_special_tokens)
        })
        .await
    }

    /// [`TextTokenizer::encode`] of each text, without special tokens, by one worker.
    pub async fn encode_each(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, TokenizerError> {
        let bytes = texts.iter().map(String::len).sum();
        self.run(bytes, move |tokenizer| {
            let texts = texts.iter();
            texts.map(|text| tokenizer.encode(text, false)).collect()
        })
        .await
    }

    /// What a text may be, encoded and indexed on a worker thread.
    pub(crate) async fn encode_prediction(
        &self,
        text: String,
    ) -> Result<Prediction, TokenizerError> {
        self.run(text.len(), move |tokenizer| {
            tokenizer.encode(&text, false).map(Prediction::new)
        })
        .await
    }

    /// [`TextTokenizer::encode_with_offsets`] on a worker thread.
    pub async fn encode_with_offsets(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<TokenizedText, TokenizerError> {
        self.run(text.len(), move |tokenizer| {
            tokenizer.encode_with_offsets(text, add_special_tokens)
        })
        .await
    }

    /// [`TextTokenizer::decode`] on a worker thread.
    pub async fn decode(
        &self,
        ids: Vec<u32>,
        skip_special_tokens: bool,
    ) -> Result<String, TokenizerError> {
        self.run(ids.len(), move |tokenizer| {
            tokenizer.decode(&ids, skip_special_tokens)
        })
        .await
    }

    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Does the work on a text of about `length` bytes or ids.
    async fn run<T, F>(&self, length: usize, work: F) -> Result<T, TokenizerError>
    where
        T: Send + 'static,
        F: FnOnce(&TextTokenizer) -> Result<T, TokenizerError> + Send + 'static,
    {
        let turn = if length >= LONG_TEXT {
            let turn = self.long_texts.clone().acquire_owned().await;
            Some(turn.map_err(|_| TokenizerError::Stopped)?)
        } else {
            None
        };
        let (reply, result) = oneshot::channel();
        let job: Job = Box::new(move |tokenizer| {
            // The worker is taken until the end, also when the client goes before.
            let _turn = turn;
            // Nobody waits any more when the client has gone.
            if !reply.is_closed() {
                // A panic of the library on one text must not take the worker from the others.
                let result = catch_unwind(AssertUnwindSafe(|| work(tokenizer)));
                let failed = || {
                    Err(TokenizerError::Encode(
                        "the tokenizer failed on this text".to_owned(),
                    ))
                };
                let _ = reply.send(result.unwrap_or_else(|_| failed()));
            }
        });
        self.jobs
            .send(job)
            .await
            .map_err(|_| TokenizerError::Stopped)?;
        result.await.map_err(|_| TokenizerError::Stopped)?
    }
}

/// One worker: takes jobs until every sender is gone. The lock is held while waiting for a job, not while doing it.
fn work(tokenizer: &TextTokenizer, jobs: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        let job = jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        match job {
            Some(job) => job(tokenizer),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tokenizers::{byte_level, byte_level_json};

    #[tokio::test]
    async fn the_pool_encodes_like_the_tokenizer() {
        let tokenizer = byte_level();
        let pool = TokenizerPool::new(tokenizer.clone(), 2).unwrap();
        let texts = ["Hello there", "naïve café", "你好，世界", ""];
        let texts = texts.iter().cycle().take(100);
        let encoded = futures::future::join_all(
            texts
                .clone()
                .map(|text| pool.encode((*text).to_owned(), true)),
        )
        .await;
        for (text, ids) in texts.zip(encoded) {
            assert_eq!(ids, tokenizer.encode(text, true));
        }
        let tokens = pool.encode_with_offsets("naïve".to_owned(), false).await;
        let expected = tokenizer.encode_with_offsets("naïve".to_owned(), false);
        assert_eq!(tokens, expected);
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_text_only() {
        let pool = TokenizerPool::new(byte_level(), 1).unwrap();
        let failed: Result<(), _> = pool.run(0, |_| panic!("as a library might")).await;
        assert!(matches!(failed, Err(TokenizerError::Encode(_))));
        assert!(pool.encode("still here".to_owned(), false).await.is_ok());
    }

    #[tokio::test]
    async fn a_text_nobody_waits_for_is_skipped() {
        let pool = TokenizerPool::new(byte_level(), 1).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let mut first =
            Box::pin(pool.run(0, move |_| held.recv().map_err(|_| TokenizerError::Stopped)));
        assert!(futures::poll!(&mut first).is_pending());
        let (ran, was_run) = std::sync::mpsc::channel();
        let mut abandoned = Box::pin(pool.run(0, move |_| {
            ran.send(()).map_err(|_| TokenizerError::Stopped)
        }));
        assert!(futures::poll!(&mut abandoned).is_pending());
        drop(abandoned);
        release.send(()).unwrap();
        first.await.unwrap();
        pool.encode("after it".to_owned(), false).await.unwrap();
        assert_eq!(was_run.recv(), Err(std::sync::mpsc::RecvError));
    }

    #[tokio::test]
    async fn long_texts_leave_a_worker_to_short_ones() {
        let pool = TokenizerPool::new(byte_level(), 2).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let waits = |held: Arc<Mutex<std::sync::mpsc::Receiver<()>>>| {
            let held = held.lock().unwrap();
            held.recv().map_err(|_| TokenizerError::Stopped)
        };
        let mut long: Vec<_> = (0..3)
            .map(|_| {
                let held = held.clone();
                Box::pin(pool.run(LONG_TEXT, move |_| waits(held)))
            })
            .collect();
        for text in &mut long {
            assert!(futures::poll!(text).is_pending());
        }
        pool.encode("short".to_owned(), false).await.unwrap();
        for text in long {
            release.send(()).unwrap();
            text.await.unwrap();
        }
    }

    #[tokio::test]
    async fn threads_end_with_the_last_pool() {
        let tokenizer = TextTokenizer::from_json(&byte_level_json()).unwrap();
        let pool = TokenizerPool::new(tokenizer.clone(), 3).unwrap();
        pool.encode("hello".to_owned(), false).await.unwrap();
        drop(pool);
        while Arc::strong_count(&tokenizer.loaded) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
