//! Images of a prompt whose headers were read: how many tokens they are is known, and nothing was decoded.

use std::fmt;

use bytes::Bytes;
use text_generation_images::{Detail, Header, ImageSpec, Plan, Segment, Size, probe};

use super::Vision;
use crate::error::ValidationError;
use crate::tokenize::{TextTokenizer, TokenizerError};
use crate::types::{GivenImage, ImageFile};

/// An image whose header was read.
pub(super) struct Seen {
    pub path: String,
    pub file: Bytes,
    pub detail: Detail,
    pub header: Header,
    pub plan: Plan,
    /// The ids of [`Segment::Number`](text_generation_images::Segment::Number), where the plan has it.
    pub number: Vec<u32>,
    /// In the prompt.
    pub tokens: usize,
}

/// A prompt with one token for each of its images, which were looked at.
pub struct Looked {
    pub(super) ids: Vec<u32>,
    pub(super) images: Vec<Seen>,
}

/// Nothing of its contents.
impl fmt::Debug for Looked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Looked")
            .field("images", &self.images.len())
            .finish_non_exhaustive()
    }
}

impl Looked {
    /// Whether it has no images.
    pub fn is_text(&self) -> bool {
        self.images.is_empty()
    }

    /// Of the prompt, once all tokens of its images are in it.
    pub fn tokens(&self) -> usize {
        let more = self.images.iter().map(|image| image.tokens);
        more.fold(self.ids.len() - self.images.len(), usize::saturating_add)
    }

    /// How many tokens the prompt has of each image, in their order.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.images.iter().map(|image| image.tokens)
    }
}

impl Vision {
    /// The ids of [`Segment::Number`].
    fn number(&self, number: usize, spec: &ImageSpec) -> Result<Vec<u32>, ValidationError> {
        let beside = spec.tokens().next();
        let ids = between(&self.0.tokenizer, beside, &number.to_string());
        ids.map_err(|error| ValidationError::Tokenizer(error.to_string()))
    }

    /// `number`: of images before this one.
    pub(super) fn see(
        &self,
        number: usize,
        given: GivenImage,
        spec: &ImageSpec,
    ) -> Result<Seen, ValidationError> {
        let path = given.path;
        let ImageFile::Bytes(file) = given.file else {
            return Err(ValidationError::ImageLink { path });
        };
        let fails = |error| ValidationError::Image {
            path: path.clone(),
            error,
        };
        let header = probe(&file, self.0.limits.file).map_err(fails)?;
        let size = Size {
            height: header.height,
            width: header.width,
        };
        let plan = spec.plan(size, given.detail).map_err(fails)?;
        let number = match plan.segments.contains(&Segment::Number) {
            true => self.number(number, spec)?,
            false => Vec::new(),
        };
        let lengths = plan.segments.iter().map(|segment| match segment {
            Segment::Rows(count) => *count as usize,
            Segment::Token(_) => 1,
            Segment::Text(text) => self.0.texts.get(text).map_or(0, Vec::len),
            Segment::Number => number.len(),
        });
        Ok(Seen {
            tokens: lengths.sum(),
            path,
            file,
            detail: given.detail,
            header,
            plan,
            number,
        })
    }
}

/// The ids of `text` where it stands between special tokens, as `beside` is one.
pub(super) fn between(
    tokenizer: &TextTokenizer,
    beside: Option<&str>,
    text: &str,
) -> Result<Vec<u32>, TokenizerError> {
    let beside = beside.unwrap_or_default();
    let mut ids = tokenizer.encode(&[beside, text, beside].concat(), false)?;
    if let Some(id) = tokenizer.token_id(beside) {
        ids.retain(|each| *each != id);
    }
    Ok(ids)
}
