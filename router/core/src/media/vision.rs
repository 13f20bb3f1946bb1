//! How this server sees: from the files of a request to its items, and from one token an image to all that stand for it.

mod decoder;
mod expanded;
mod looked;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::try_join_all;
use text_generation_images::{Fetcher, ImageError, ImageSpec, KeySecret, Limits, Pool};

use self::decoder::Known;
pub use self::expanded::Expanded;
pub use self::looked::Looked;
use self::looked::between;
use super::room::Room;
use crate::error::ValidationError;
use crate::tokenize::TextTokenizer;
use crate::types::{GivenImage, ImageFile};

/// Limits of the images of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionLimits {
    pub file: Limits,
    /// Of one request.
    pub max_images: Option<usize>,
    /// Rows of the media pool.
    pub rows: u32,
    /// Bytes of the files of all requests; pixels that wait for their turn may take as many.
    pub memory: usize,
}

/// How images are read for the served model. Clones share it.
#[derive(Debug, Clone)]
pub struct Vision(Arc<Inner>);

struct Inner {
    spec: ImageSpec,
    /// For each of several images of a prompt, where that is another one.
    several: Option<ImageSpec>,
    placeholder: u32,
    /// Of [`Segment::Token`](text_generation_images::Segment::Token), by name.
    tokens: HashMap<&'static str, u32>,
    /// Of [`Segment::Text`](text_generation_images::Segment::Text).
    texts: HashMap<&'static str, Vec<u32>>,
    /// Encodes [`Segment::Number`](text_generation_images::Segment::Number).
    tokenizer: TextTokenizer,
    limits: VisionLimits,
    secret: KeySecret,
    pool: Pool,
    /// Where images are fetched.
    fetcher: Option<Fetcher>,
    known: Mutex<Known>,
    files: Room,
    pixels: Room,
}

impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Vision")
            .field("spec", &self.spec)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Vision {
    /// The tokens of `spec` are looked up in `tokenizer`.
    ///
    /// # Errors
    /// The name of a token that the tokenizer does not have, or a text that it cannot encode.
    pub fn new(
        spec: ImageSpec,
        tokenizer: &TextTokenizer,
        limits: VisionLimits,
        pool: Pool,
        fetcher: Option<Fetcher>,
    ) -> Result<Self, &'static str> {
        let find = |name: &'static str| tokenizer.token_id(name).ok_or(name);
        let placeholder = find(spec.placeholder)?;
        let names = spec.tokens();
        let tokens = names.map(|name| find(name).map(|id| (name, id)));
        let beside = spec.tokens().next();
        let texts = spec.texts().map(|text| {
            let ids = between(tokenizer, beside, text);
            ids.map(|ids| (text, ids)).map_err(|_| text)
        });
        Ok(Self(Arc::new(Inner {
            tokens: tokens.collect::<Result<_, _>>()?,
            texts: texts.collect::<Result<_, _>>()?,
            tokenizer: tokenizer.clone(),
            placeholder,
            several: spec.of_several(),
            spec,
            limits,
            secret: KeySecret::new(rand::random()),
            pool,
            fetcher,
            known: Mutex::default(),
            files: Room::new(limits.memory),
            pixels: Room::new(limits.memory),
        })))
    }

    /// The token that stands for each image before it is expanded, and for each of its rows afterwards.
    pub fn placeholder(&self) -> u32 {
        self.0.placeholder
    }

    /// What the chat template writes for an image.
    pub fn marker(&self) -> &'static str {
        self.0.spec.marker
    }

    /// What stands for an image in a prompt before it is encoded: the placeholder, once, and what the model has around it.
    pub fn text(&self) -> String {
        let spec = &self.0.spec;
        [spec.before, spec.placeholder, spec.after].concat()
    }

    /// What stands for an image in a prompt that no template writes. `number`: of images before this one.
    pub fn whole_text(&self, number: usize) -> String {
        let (before, after) = self.0.spec.around;
        let before = before.replace("{}", &(number + 1).to_string());
        [&before, &self.text(), after].concat()
    }

    pub fn limits(&self) -> &VisionLimits {
        &self.0.limits
    }

    /// Whether images may be sent by URL.
    pub fn fetches(&self) -> bool {
        self.0.fetcher.is_some()
    }

    /// The file of an image, which counts as memory of images for as long as anybody has it.
    ///
    /// # Errors
    /// Where other requests hold too much of that.
    pub fn hold(&self, file: Bytes) -> Result<Bytes, ValidationError> {
        let held = self.0.files.hold(file);
        held.ok_or(ValidationError::ImageMemory)
    }

    /// Does `work` on the threads that decode images.
    ///
    /// # Errors
    /// Where the server stops.
    pub async fn on_threads<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ValidationError> {
        let done = self.0.pool.run(work).await;
        done.map_err(ValidationError::ImageFile)
    }

    /// Looks at the images of a prompt that has one token for each: fetches those that were sent by URL, reads their
    /// headers, and plans what the model sees of them. Decodes nothing.
    ///
    /// # Errors
    /// Where there are more than may be, one cannot be fetched, is no image or too large, or `ids` name another number of
    /// them.
    pub async fn look(
        &self,
        ids: Vec<u32>,
        mut images: Vec<GivenImage>,
    ) -> Result<Looked, ValidationError> {
        self.check_count(&images)?;
        let tokens = ids.iter().filter(|id| **id == self.0.placeholder).count();
        if tokens != images.len() {
            let images = images.len();
            return Err(ValidationError::ImageTokens { tokens, images });
        }
        if images.is_empty() {
            let images = Vec::new();
            return Ok(Looked { ids, images });
        }
        self.fetch(&mut images).await?;
        let vision = self.clone();
        // There may be thousands.
        aside(move || {
            let spec = vision.spec_of(images.len());
            let seen = images.into_iter().enumerate();
            let seen = seen.map(|(number, given)| vision.see(number, given, spec));
            let images = seen.collect::<Result<_, _>>()?;
            Ok(Looked { ids, images })
        })
        .await
    }

    async fn fetch(&self, images: &mut [GivenImage]) -> Result<(), ValidationError> {
        let fetched = images.iter_mut().map(async |image| {
            let ImageFile::Url(url) = &image.file else {
                return Ok(());
            };
            let path = image.path.clone();
            let Some(fetcher) = &self.0.fetcher else {
                return Err(ValidationError::ImageLink { path });
            };
            let file = fetcher.fetch(url).await;
            let file = file.map_err(|error| ValidationError::ImageFetch { path, error })?;
            image.file = ImageFile::Bytes(self.hold(file)?);
            Ok(())
        });
        try_join_all(fetched).await.map(drop)
    }

    fn check_count(&self, images: &[GivenImage]) -> Result<(), ValidationError> {
        let given = images.len();
        match self.0.limits.max_images {
            Some(max) if given > max => Err(ValidationError::Images { max, given }),
            _ => Ok(()),
        }
    }

    /// How each of so many images of a prompt is seen.
    fn spec_of(&self, images: usize) -> &ImageSpec {
        match &self.0.several {
            Some(spec) if images > 1 => spec,
            _ => &self.0.spec,
        }
    }

    /// Puts into the prompt, in the place of the one token of each image, all that stand for it: as many as
    /// [`Looked::tokens`] says, which the caller has found to be few enough.
    ///
    /// # Errors
    /// Where all images take more rows than there are.
    pub async fn expand(
        &self,
        looked: Looked,
        salt: Option<&str>,
    ) -> Result<Expanded, ValidationError> {
        if looked.is_text() {
            return Ok(Expanded::text(looked.ids));
        }
        let (vision, salt) = (self.clone(), salt.unwrap_or_default().to_owned());
        let expanded = aside(move || Ok(vision.assemble(&looked, &salt))).await?;
        let (given, max) = (expanded.media.rows(), self.0.limits.rows);
        if given > max {
            return Err(ValidationError::ImageRows { max, given });
        }
        Ok(expanded)
    }

    /// Decodes the images that were not decoded before, so that a damaged one is found before its request waits.
    ///
    /// # Errors
    /// Of the first that is damaged.
    pub async fn check(&self, expanded: &Expanded) -> Result<(), ValidationError> {
        for (item, path) in expanded.media.items.iter().zip(&expanded.paths) {
            if self.known().has(&item.key) {
                continue;
            }
            let pixels = item.source.check(item).await;
            pixels.map_err(|error| ValidationError::Image {
                path: path.clone(),
                error,
            })?;
            self.known().insert(item.key);
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does what may take long on a thread that may block.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ValidationError> + Send + 'static,
) -> Result<T, ValidationError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(ValidationError::ImageFile(ImageError::Stopped)))
}
