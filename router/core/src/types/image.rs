//! Images of requests, as the front end hands them over.

use std::fmt;

use bytes::Bytes;
use text_generation_images::Detail;

/// An image of a request.
#[derive(Clone, PartialEq, Eq)]
pub struct GivenImage {
    /// Where it stands in the request, for messages.
    pub path: String,
    pub file: ImageFile,
    pub detail: Detail,
}

/// The file of an image, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageFile {
    Bytes(Bytes),
    /// Of http or https.
    Url(String),
}

/// Nothing of its contents.
impl fmt::Debug for GivenImage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GivenImage")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Nothing of its contents.
impl fmt::Debug for ImageFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(file) => write!(out, "{} bytes", file.len()),
            Self::Url(_) => out.write_str("a URL"),
        }
    }
}
