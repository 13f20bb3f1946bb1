//! Chats to prompts, on few threads.

use std::sync::Arc;

use text_generation_chat::{ChatInput, ChatTemplate, ChatTemplateError};
use text_generation_core::error::InferError;
use tokio::sync::Semaphore;

use crate::bounds::RENDER_THREADS;
use crate::error::ApiError;

/// Renders chats, a few at a time: one may take as much time and memory as the limits of templates allow.
#[derive(Debug)]
pub struct ChatRenderer {
    template: Result<ChatTemplate, ChatTemplateError>,
    /// What may run; a rendering holds one also when its client has gone.
    threads: Arc<Semaphore>,
    /// What may run or wait.
    places: Semaphore,
}

impl ChatRenderer {
    /// For the template of the model, or why there is none. Further chats wait, at most `waiting` of them.
    pub fn new(template: Result<ChatTemplate, ChatTemplateError>, waiting: usize) -> Self {
        Self {
            template,
            threads: Arc::new(Semaphore::new(RENDER_THREADS)),
            places: Semaphore::new(RENDER_THREADS.saturating_add(waiting)),
        }
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// 422 when there is no template, when it fails or reaches a limit, or when a field cannot be used. 429 when too
    /// many chats wait.
    pub async fn render(&self, input: ChatInput) -> Result<String, ApiError> {
        let template = self.template.clone()?;
        Ok(self.run(move || template.render(&input)).await??)
    }

    /// Runs `work` on a thread that may block, when one is free.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.places.try_acquire();
        let _place = place.map_err(|_| InferError::Overloaded)?;
        let thread = self.threads.clone().acquire_owned().await;
        let thread = thread.map_err(|_| ApiError::internal())?;
        let work = move || {
            let result = work();
            drop(thread);
            result
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|_| ApiError::internal())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::future::join_all;
    use futures::poll;

    use super::*;

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

    #[tokio::test]
    async fn few_run_few_wait_and_others_are_refused() {
        let renderer = ChatRenderer::new(Err(ChatTemplateError::Missing), 2);
        let (running, started) = mpsc::channel();
        let (releases, works): (Vec<_>, Vec<_>) =
            (0..RENDER_THREADS + 2).map(|_| held(&running)).unzip();
        let mut renderings: Vec<_> = works
            .into_iter()
            .map(|work| Box::pin(renderer.run(work)))
            .collect();
        for rendering in &mut renderings {
            assert!(poll!(rendering).is_pending());
        }
        (0..RENDER_THREADS).for_each(|_| started.recv().unwrap());
        let refused = renderer.run(|| ()).await.unwrap_err();
        assert_eq!(refused.status, 429);
        // The threads of two clients that have gone are still at work, their places are free.
        renderings.drain(..2);
        let mut late = Box::pin(renderer.run(|| ()));
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
