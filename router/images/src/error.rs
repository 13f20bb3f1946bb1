//! What is wrong with a picture, or with the files that say how a model sees. Messages name no field of a request: the
//! caller puts the path of the part before them.

use thiserror::Error;

/// A picture that cannot be taken. The texts are ours: those of decoders may tell about memory or code.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ImageError {
    #[error("is empty; send the bytes of a JPEG, PNG, WebP or GIF file")]
    Empty,
    #[error("is not a JPEG, PNG, WebP or GIF file")]
    Format,
    #[error("has {len} bytes, more than the {max} that --max-image-bytes allows")]
    Bytes { len: usize, max: usize },
    #[error(
        "has {width} x {height} pixels, more than the {max} that --max-image-pixels allows; send a smaller picture"
    )]
    Pixels { width: u32, height: u32, max: u64 },
    #[error("is truncated or damaged: its {0} data cannot be decoded")]
    Damaged(&'static str),
    #[error(
        "is {width} x {height}, and one side is more than {max} times as long as the other; crop it"
    )]
    Aspect { width: u32, height: u32, max: u32 },
    #[error("could not be decoded, because the server is stopping")]
    Stopped,
}

/// A data URL that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DataUrlError {
    #[error("is not of the form data:<type>;base64,<data>")]
    Form,
    #[error("has data that are not base64")]
    Base64,
    #[error("holds {len} bytes, more than the {max} that --max-image-bytes allows")]
    Bytes { len: usize, max: usize },
}

/// A model whose pictures cannot be prepared here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    #[error("{file} has no usable `{key}`")]
    Key {
        file: &'static str,
        key: &'static str,
    },
    #[error("{file} has `{key}` {value}, which is not served")]
    Value {
        file: &'static str,
        key: &'static str,
        value: String,
    },
}
