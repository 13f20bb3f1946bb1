//! Threads that decode and resize, and the memory that they may take together.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::decode::{Rgb, decode};
use crate::error::ImageError;
use crate::header::Header;
use crate::resize::{Filter, Size, Squared, Window, resize, resize_squared};
use crate::spec::{ImageSpec, Plan, View};

/// The budget is counted in units of so many bytes.
const UNIT: u64 = 1 << 10;

/// How much work is done at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    pub threads: usize,
    /// Bytes of all pictures that are decoded at a time. A picture that takes more is decoded alone.
    pub memory: u64,
}

/// Decodes pictures on few threads at a time, so that neither HTTP nor tokenisation waits for pixels.
#[derive(Debug)]
pub struct Pool {
    threads: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    units: u32,
}

impl Pool {
    pub fn new(options: PoolOptions) -> Self {
        let units = units(options.memory);
        Self {
            threads: Arc::new(Semaphore::new(options.threads)),
            memory: Arc::new(Semaphore::new(units as usize)),
            units,
        }
    }

    /// Decodes a picture and makes the views of `plan`, one after the other in one buffer. A caller that stops waiting
    /// takes its place back, unless decoding has begun.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], and [`ImageError::Stopped`] where the server stops.
    pub async fn prepare(
        &self,
        spec: &ImageSpec,
        file: Bytes,
        header: Header,
        plan: Plan,
    ) -> Result<Bytes, ImageError> {
        let wanted = units(header.decode_bytes() + plan.pixels() * 4).min(self.units);
        let memory = Arc::clone(&self.memory);
        let permit = memory.acquire_many_owned(wanted).await;
        let permit = permit.map_err(|_| ImageError::Stopped)?;
        let filter = spec.filter();
        self.run(move || {
            let _held = permit;
            let image = decode(&file, &header)?;
            Ok(pixels(image, &plan, filter).into())
        })
        .await?
    }

    /// Does `work` when a thread is free. It goes on where its caller has stopped waiting.
    ///
    /// # Errors
    /// [`ImageError::Stopped`] where the server stops.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ImageError> {
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        let thread = thread.map_err(|_| ImageError::Stopped)?;
        let work = move || {
            let done = work();
            drop(thread);
            done
        };
        spawn_blocking(work).await.map_err(|_| ImageError::Stopped)
    }
}

/// The pixels of all views, one after the other.
fn pixels(image: Rgb, plan: &Plan, filter: Filter) -> Vec<u8> {
    let mut all = Vec::new();
    let mut steps = Steps {
        image,
        squared: None,
        done: Vec::new(),
        filter,
    };
    for view in &plan.views {
        all.extend_from_slice(&steps.view(view).pixels);
    }
    all
}

/// A picture at the sizes that views begin with. Those of views that follow each other are the same, or begin so.
struct Steps {
    image: Rgb,
    /// How what is done began.
    squared: Option<Squared>,
    done: Vec<(Size, Rgb)>,
    filter: Filter,
}

impl Steps {
    fn view(&mut self, view: &View) -> Rgb {
        let filter = self.filter;
        let image = match view.squared {
            Some(squared) if view.before.is_empty() => {
                &resize_squared(&self.image, squared, view.resized, filter)
            }
            squared => self.after(&view.before, squared),
        };
        let part = resize(image, view.resized, view.window, filter);
        match view.last {
            Some(last) if last != view.window.size => {
                resize(&part, last, Window::whole(last), filter)
            }
            _ => part,
        }
    }

    fn after(&mut self, sizes: &[Size], squared: Option<Squared>) -> &Rgb {
        if self.squared != squared {
            self.done.clear();
            self.squared = squared;
        }
        let same = self.done.iter().zip(sizes);
        let same = same.take_while(|((done, _), size)| done == *size).count();
        self.done.truncate(same);
        for size in &sizes[same..] {
            let image = match (self.done.last(), squared) {
                (Some((_, from)), _) => resize(from, *size, Window::whole(*size), self.filter),
                (None, Some(squared)) => resize_squared(&self.image, squared, *size, self.filter),
                (None, None) => resize(&self.image, *size, Window::whole(*size), self.filter),
            };
            self.done.push((*size, image));
        }
        self.done.last().map_or(&self.image, |(_, image)| image)
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT))
        .unwrap_or(u32::MAX)
        .clamp(1, u32::MAX >> 4)
}
