//! Images of a prompt whose headers were read: how many tokens they are is known, and nothing was decoded.

use std::fmt;

use bytes::Bytes;
use text_generation_images::{Detail, Header, Plan};

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
