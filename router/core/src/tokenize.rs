//! Text to token ids and back: the loaded tokenizer, and the worker threads that encode prompts.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use tokenizers::Tokenizer;
use tokio::sync::{mpsc, oneshot};

use crate::token_bytes::TokenBytes;
use crate::types::SimpleToken;

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot load the tokenizer: {0}")]
    Load(String),
    #[error("cannot load the tokenizer: text cannot be streamed with its decoder, {0}")]
    Decoder(String),
    #[error("cannot start the tokenizer threads: {0}")]
    Threads(String),
    #[error("{0}")]
    Encode(String),
    #[error("{0}")]
    Decode(String),
    #[error("the tokenizer threads have stopped")]
    Stopped,
}

/// A loaded `tokenizer.json`; clones share it.
#[derive(Clone)]
pub struct TextTokenizer(Arc<Loaded>);

struct Loaded {
    tokenizer: Tokenizer,
    token_bytes: TokenBytes,
}

impl TextTokenizer {
    /// Loads a `tokenizer.json` file. Its truncation and padding are switched off: the limits of a request decide.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let json = std::fs::read_to_string(path)
            .map_err(|error| TokenizerError::Load(format!("{}: {error}", path.display())))?;
        Self::from_json(&json)
    }

    /// Loads the text of a `tokenizer.json`.
    pub fn from_json(json: &str) -> Result<Self, TokenizerError> {
        let load_error = |error: tokenizers::Error| TokenizerError::Load(error.to_string());
        let mut tokenizer = Tokenizer::from_str(json).map_err(load_error)?;
        tokenizer.with_truncation(None).map_err(load_error)?;
        tokenizer.with_padding(None);
        let token_bytes = TokenBytes::new(&tokenizer)?;
        Ok(Self(Arc::new(Loaded {
            tokenizer,
            token_bytes,
        })))
    }

    /// The ids of `text`; `add_special_tokens` adds what the tokenizer puts around a text (BOS).
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.0.tokenizer.encode_fast(text, add_special_tokens);
        let encoding = encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Like [`encode`](Self::encode), with the byte range of `text` that each token came from, widened to whole
    /// characters: tokens that share a character all show it. Added special tokens have the empty range `0..0`.
    pub fn encode_with_offsets(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<SimpleToken>, TokenizerError> {
        let encoding = self.0.tokenizer.encode(text, add_special_tokens);
        let encoding = encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?;
        let tokens =
            encoding
                .get_ids()
                .iter()
                .zip(encoding.get_offsets())
                .map(|(&id, &(start, stop))| {
                    let (start, stop) = whole_characters(text, start, stop);
                    SimpleToken {
                        id,
                        text: text[start..stop].to_owned(),
                        start,
                        stop,
                    }
                });
        Ok(tokens.collect())
    }

    /// The text of `ids`, taken as a whole text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        let text = self.0.tokenizer.decode(ids, skip_special_tokens);
        text.map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// Whether `id` is a special token, such as BOS or EOS.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.token_bytes.is_special(id)
    }

    /// The text of one token as it reads after other text (` world` keeps its space). Bytes that are no whole
    /// character show as U+FFFD; an unknown id has no text.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.bytes(id)).into_owned()
    }

    /// The bytes that `id` adds to a text.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        self.0.token_bytes.get(id)
    }
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TextTokenizer")
            .finish_non_exhaustive()
    }
}

/// The smallest range of whole characters that covers `start..stop`.
fn whole_characters(text: &str, start: usize, stop: usize) -> (usize, usize) {
    let mut start = start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut stop = stop.clamp(start, text.len());
    while !text.is_char_boundary(stop) {
        stop += 1;
    }
    (start, stop)
}

type Job = Box<dyn FnOnce(&TextTokenizer) + Send>;

/// Texts that may wait for each worker; further callers wait for room.
const QUEUED_PER_WORKER: usize = 16;

/// Threads that encode, so that a long prompt does not hold up the runtime. Clones share the threads, which end when
/// the last clone is dropped.
#[derive(Clone, Debug)]
pub struct TokenizerPool {
    tokenizer: TextTokenizer,
    jobs: mpsc::Sender<Job>,
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
        Ok(Self { tokenizer, jobs })
    }

    /// [`TextTokenizer::encode`] on a worker thread.
    pub async fn encode(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.run(move |tokenizer| tokenizer.encode(&text, add_special_tokens))
            .await
    }

    /// [`TextTokenizer::encode_with_offsets`] on a worker thread.
    pub async fn encode_with_offsets(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<SimpleToken>, TokenizerError> {
        self.run(move |tokenizer| tokenizer.encode_with_offsets(&text, add_special_tokens))
            .await
    }

    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    async fn run<T, F>(&self, encode: F) -> Result<T, TokenizerError>
    where
        T: Send + 'static,
        F: FnOnce(&TextTokenizer) -> Result<T, TokenizerError> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        let job: Job = Box::new(move |tokenizer| {
            // Nobody waits any more when the client has gone.
            if !reply.is_closed() {
                // A panic of the library on one text must not take the worker from the others.
                let result = catch_unwind(AssertUnwindSafe(|| encode(tokenizer)));
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
    use crate::test_tokenizers::{byte_fallback, byte_level, byte_level_json};

    const TEXTS: [&str; 5] = [
        "Hello there, friend",
        "naïve café",
        "你好，世界",
        "a 🙂 and 👩‍🚀!",
        "e\u{301}clair\n\n  two",
    ];

    #[test]
    fn ids_decode_to_the_text() {
        for tokenizer in [byte_level(), byte_fallback()] {
            for text in TEXTS {
                let ids = tokenizer.encode(text, false).unwrap();
                assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            }
        }
    }

    #[test]
    fn special_tokens_are_added_on_demand() {
        let tokenizer = byte_fallback();
        let plain = tokenizer.encode("hello", false).unwrap();
        let with_bos = tokenizer.encode("hello", true).unwrap();
        assert_eq!(with_bos[0], 1);
        assert_eq!(with_bos[1..], plain);
        assert!(tokenizer.is_special(1));
        assert!(!tokenizer.is_special(plain[0]));
        let tokens = tokenizer.encode_with_offsets("hello", true).unwrap();
        assert_eq!(
            (tokens[0].text.as_str(), tokens[0].start, tokens[0].stop),
            ("", 0, 0)
        );
    }

    #[test]
    fn offsets_are_bytes_that_slice_the_text() {
        for tokenizer in [byte_level(), byte_fallback()] {
            for text in TEXTS {
                let tokens = tokenizer.encode_with_offsets(text, false).unwrap();
                let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                assert_eq!(ids, tokenizer.encode(text, false).unwrap());
                let mut reached = 0;
                for token in tokens {
                    assert_eq!(
                        text.get(token.start..token.stop),
                        Some(token.text.as_str()),
                        "{text}"
                    );
                    assert!(
                        token.start <= reached && token.stop >= reached,
                        "{text}: gap before {token:?}"
                    );
                    reached = token.stop;
                }
                assert_eq!(reached, text.len(), "{text}");
            }
        }
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_off() {
        let mut json: serde_json::Value = serde_json::from_str(&byte_level_json()).unwrap();
        json["truncation"] = serde_json::json!({
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
        });
        json["padding"] = serde_json::json!({
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"
        });
        let tokenizer = TextTokenizer::from_json(&json.to_string()).unwrap();
        let text = "the quick brown fox jumps over the lazy dog";
        assert_eq!(
            tokenizer.encode(text, false).unwrap(),
            byte_level().encode(text, false).unwrap()
        );
    }

    #[test]
    fn files_that_are_no_tokenizer_are_errors_naming_them() {
        let missing =
            TextTokenizer::from_file(Path::new("/nonexistent/tokenizer.json")).unwrap_err();
        assert!(
            missing.to_string().contains("/nonexistent/tokenizer.json"),
            "{missing}"
        );
        assert!(matches!(
            TextTokenizer::from_json("{}"),
            Err(TokenizerError::Load(_))
        ));
    }

    #[tokio::test]
    async fn the_pool_encodes_like_the_tokenizer() {
        let tokenizer = byte_level();
        let pool = TokenizerPool::new(tokenizer.clone(), 2).unwrap();
        let texts = TEXTS.iter().cycle().take(100);
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
        assert_eq!(tokens, tokenizer.encode_with_offsets("naïve", false));
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_text_only() {
        let pool = TokenizerPool::new(byte_level(), 1).unwrap();
        let failed: Result<(), _> = pool.run(|_| panic!("as a library might")).await;
        assert!(matches!(failed, Err(TokenizerError::Encode(_))));
        assert!(pool.encode("still here".to_owned(), false).await.is_ok());
    }

    #[tokio::test]
    async fn a_text_nobody_waits_for_is_skipped() {
        let pool = TokenizerPool::new(byte_level(), 1).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let first = tokio::spawn({
            let pool = pool.clone();
            async move {
                pool.run(move |_| held.recv().map_err(|_| TokenizerError::Stopped))
                    .await
            }
        });
        let (ran, was_run) = std::sync::mpsc::channel();
        let mut abandoned =
            Box::pin(pool.run(move |_| ran.send(()).map_err(|_| TokenizerError::Stopped)));
        assert!(futures::poll!(&mut abandoned).is_pending());
        drop(abandoned);
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        pool.encode("after it".to_owned(), false).await.unwrap();
        assert_eq!(was_run.recv(), Err(std::sync::mpsc::RecvError));
    }

    #[tokio::test]
    async fn threads_end_with_the_last_pool() {
        let tokenizer = byte_level();
        let pool = TokenizerPool::new(tokenizer.clone(), 3).unwrap();
        pool.encode("hello".to_owned(), false).await.unwrap();
        drop(pool);
        while Arc::strong_count(&tokenizer.0) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
