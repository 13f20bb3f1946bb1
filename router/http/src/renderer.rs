//! Renderer of chats to prompts, on few threads.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use text_generation_chat::{ChatInput, ChatTemplate, ChatTemplateError, Limit};
use text_generation_core::error::{InferError, Overload};
use text_generation_core::tokenize::TextTokenizer;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::bounds::RENDER_THREADS;
use crate::error::ApiError;

/// A rendering is given up after so many times its limit.
const OVERTIME: u32 = 2;

/// How the template of the model is given images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageParts {
    /// As parts of a content, in their places.
    Written,
    /// It reads texts alone: they stand before the text of their message, each on a line.
    Before,
}

/// Renders chats with the template of the model.
#[derive(Debug)]
pub struct ChatRenderer {
    template: Result<ChatTemplate, ChatTemplateError>,
    /// How it is given images, where the model sees.
    images: ImageParts,
    /// Says which texts are special tokens, and whether those of clients are to be text.
    tokenizer: TextTokenizer,
    threads: RenderThreads,
}

impl ChatRenderer {
    /// For the template of the model, or why there is none. At most `waiting` chats wait for those before them.
    pub fn new(
        template: Result<ChatTemplate, ChatTemplateError>,
        tokenizer: TextTokenizer,
        waiting: usize,
    ) -> Self {
        Self {
            template,
            images: ImageParts::Before,
            tokenizer,
            threads: RenderThreads::new(waiting),
        }
    }

    /// The same, of a model that sees: asks the template whether it writes `marker` for an image. `tokenizer` makes text of
    /// markers that clients write.
    pub async fn seeing(mut self, marker: &str, tokenizer: TextTokenizer) -> Self {
        self.tokenizer = tokenizer;
        let input = ChatInput {
            messages: conversation_with_image(),
            images: true,
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        let prompt = self.probe(input).await;
        if prompt.is_ok_and(|prompt| prompt.matches(marker).count() == 1) {
            self.images = ImageParts::Written;
        }
        self
    }

    /// How the template is given images.
    pub fn image_parts(&self) -> ImageParts {
        self.images
    }

    /// The prompt for a conversation, for the tokenizer: [`readable`](Self::readable) is what people should see of it.
    ///
    /// # Errors
    /// 422 when there is no template, when it fails or reaches a limit, or when a field cannot be used. 429 when too
    /// many chats wait.
    pub async fn render(&self, input: ChatInput) -> Result<String, ApiError> {
        self.render_with(self.template.clone()?, input).await
    }

    /// The same for a conversation of a few words, which shows what the template makes of it.
    ///
    /// # Errors
    /// As for [`render`](Self::render).
    pub async fn probe(&self, input: ChatInput) -> Result<String, ApiError> {
        let template = self.template.as_ref().map_err(Clone::clone)?;
        self.render_with(template.for_probes(), input).await
    }

    async fn render_with(
        &self,
        template: ChatTemplate,
        input: ChatInput,
    ) -> Result<String, ApiError> {
        let time = template.limits().time;
        let tokenizer = self.tokenizer.clone();
        let render = move || {
            if tokenizer.escapes_special_tokens() {
                template.render_escaped(&input, &|text| tokenizer.escape(text))
            } else {
                template.render(&input)
            }
        };
        // A template looks at the clock itself. Should one find a way around that, its client still gets an answer.
        let rendered = self.threads.run(render, OVERTIME * time).await?;
        Ok(rendered.unwrap_or(Err(ChatTemplateError::Limit(Limit::Time(time))))?)
    }

    /// Whether the template for conversations, with or without `tools`, reads the variable `name`.
    pub fn reads(&self, name: &str, tools: bool) -> bool {
        let template = self.template.as_ref();
        template.is_ok_and(|template| template.reads(name, tools))
    }

    /// Whether the template for conversations, with or without `tools`, reads thoughts as parts of a content.
    pub fn reads_thinking_parts(&self, tools: bool) -> bool {
        let template = self.template.as_ref();
        template.is_ok_and(|template| template.reads_thinking_parts(tools))
    }

    /// The source of the template; empty where there is none.
    pub fn source(&self) -> &str {
        self.template.as_ref().map_or("", ChatTemplate::source)
    }

    /// The special tokens of the tokenizer, by their text.
    pub fn special_tokens(&self) -> HashMap<String, u32> {
        let special = self.tokenizer.special_ids();
        special
            .map(|id| (self.tokenizer.token_text(id), id))
            .collect()
    }

    /// A prompt without what only the tokenizer reads.
    pub fn readable<'a>(&self, prompt: &'a str) -> Cow<'a, str> {
        self.tokenizer.unescape(prompt)
    }
}

/// A conversation of a few words, which shows whether the template writes `marker` for an image.
fn conversation_with_image() -> Vec<Value> {
    let content = json!([{"type": "image"}, {"type": "text", "text": "ab12cd34ef"}]);
    vec![json!({"role": "user", "content": content})]
}

/// Lets few renderings run: one may take as much time and memory as the limits of templates allow.
#[derive(Debug)]
struct RenderThreads {
    /// What may run; a rendering holds one also when its client has gone.
    running: Arc<Semaphore>,
    /// What may run or wait.
    places: Semaphore,
}

impl RenderThreads {
    fn new(waiting: usize) -> Self {
        let most = Semaphore::MAX_PERMITS;
        Self {
            running: Arc::new(Semaphore::new(RENDER_THREADS)),
            places: Semaphore::new(RENDER_THREADS.saturating_add(waiting).min(most)),
        }
    }

    /// Runs `work` on a thread that may block, when one is free. None where it takes longer than `time`: the thread is
    /// taken until it ends.
    ///
    /// # Errors
    /// 429 where too many wait, or no thread is free within `time`.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        time: Duration,
    ) -> Result<Option<T>, ApiError> {
        let place = self.places.try_acquire();
        let _place = place.map_err(|_| InferError::Overloaded(Overload::Chats))?;
        let thread = timeout(time, self.running.clone().acquire_owned()).await;
        let thread = thread.map_err(|_| InferError::Overloaded(Overload::Chats))?;
        let thread = thread.map_err(|_| ApiError::internal())?;
        let work = move || {
            let result = work();
            drop(thread);
            result
        };
        match timeout(time, tokio::task::spawn_blocking(work)).await {
            Ok(done) => done.map(Some).map_err(|_| ApiError::internal()),
            Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::future::join_all;
    use futures::poll;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// A piece of work that says that it runs and then waits for `release`.
    fn held(running: &mpsc::Sender<()>) -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, released) = mpsc::channel();
        let running = running.clone();
        let work = move || {
            let _ = running.send(());
            let _ = released.recv();
        };
        (release, work)
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_end_is_given_up() {
        let threads = RenderThreads::new(0);
        let (running, _started) = mpsc::channel();
        let (_release, work) = held(&running);
        let mut rendering = Box::pin(threads.run(work, LONG));
        assert!(poll!(&mut rendering).is_pending());
        // The paused clock stands still by itself while a thread is at work.
        tokio::time::advance(2 * LONG).await;
        assert_eq!(rendering.await, Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_for_threads_that_do_not_come_back() {
        let threads = RenderThreads::new(1);
        let (running, _started) = mpsc::channel();
        let (_releases, works): (Vec<_>, Vec<_>) =
            (0..RENDER_THREADS).map(|_| held(&running)).unzip();
        let mut taken: Vec<_> = works
            .into_iter()
            .map(|work| Box::pin(threads.run(work, LONG)))
            .collect();
        for rendering in &mut taken {
            assert!(poll!(rendering).is_pending());
        }
        let mut waiting = Box::pin(threads.run(|| (), LONG));
        assert!(poll!(&mut waiting).is_pending());
        tokio::time::advance(2 * LONG).await;
        assert_eq!(waiting.await.unwrap_err().status, 429);
    }

    #[tokio::test]
    async fn few_run_few_wait_and_others_are_refused() {
        let threads = RenderThreads::new(2);
        let (running, started) = mpsc::channel();
        let (releases, works): (Vec<_>, Vec<_>) =
            (0..RENDER_THREADS + 2).map(|_| held(&running)).unzip();
        let mut renderings: Vec<_> = works
            .into_iter()
            .map(|work| Box::pin(threads.run(work, LONG)))
            .collect();
        for rendering in &mut renderings {
            assert!(poll!(rendering).is_pending());
        }
        (0..RENDER_THREADS).for_each(|_| started.recv().unwrap());
        let refused = threads.run(|| (), LONG).await.unwrap_err();
        assert_eq!(refused.status, 429);
        // The threads of two clients that have gone are still at work, their places are free.
        renderings.drain(..2);
        let mut late = Box::pin(threads.run(|| (), LONG));
        assert!(poll!(&mut late).is_pending());
        assert!(started.try_recv().is_err());
        drop(releases);
        assert!(
            join_all(renderings)
                .await
                .into_iter()
                .all(|done| done.is_ok())
        );
        late.await.unwrap();
    }
}
