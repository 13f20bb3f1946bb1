//! What a picture says of itself before it is decoded, and the limits that it must keep.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::metadata::Orientation;
use image::{ImageDecoder, codecs};

use crate::error::ImageError;

/// Formats that are read. All others are refused, however well a library could read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
}

impl Format {
    /// By the first bytes alone: names and types that clients give are not looked at.
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(Self::Png),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
        }
    }
}

/// What is decoded at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of the file.
    pub max_bytes: usize,
    /// Width times height of the picture as it is stored.
    pub max_pixels: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 20_000_000,
            max_pixels: 25_000_000,
        }
    }
}

/// A picture before it is decoded. Sizes are those that a viewer shows: the orientation of EXIF is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub format: Format,
    pub height: u32,
    pub width: u32,
    pub(crate) orientation: Orientation,
}

/// Reads the header, without decoding any pixel, and checks `limits`.
///
/// # Errors
/// For every picture that is not of a [`Format`], is larger than the limits, or whose header is damaged.
pub fn probe(bytes: &[u8], limits: Limits) -> Result<Header, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if bytes.len() > limits.max_bytes {
        let (len, max) = (bytes.len(), limits.max_bytes);
        return Err(ImageError::Bytes { len, max });
    }
    let format = Format::of(bytes).ok_or(ImageError::Format)?;
    let (width, height, orientation) =
        unpanicked(|| stored(format, bytes)).ok_or(ImageError::Damaged(format.name()))?;
    if width == 0 || height == 0 {
        return Err(ImageError::Damaged(format.name()));
    }
    let max = limits.max_pixels;
    if u64::from(width) * u64::from(height) > max {
        return Err(ImageError::Pixels { width, height, max });
    }
    let is_turned = matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    );
    let (height, width) = if is_turned {
        (width, height)
    } else {
        (height, width)
    };
    Ok(Header {
        format,
        height,
        width,
        orientation,
    })
}

/// What a decoder returns; `None` where it panics.
pub(crate) fn unpanicked<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok().flatten()
}

fn stored(format: Format, bytes: &[u8]) -> Option<(u32, u32, Orientation)> {
    let reader = Cursor::new(bytes);
    match format {
        Format::Jpeg => {
            let info = libjpeg_turbo_rs::probe(bytes).ok()?;
            let orientation = info.exif_orientation.and_then(Orientation::from_exif);
            let (width, height) = (info.width.try_into().ok()?, info.height.try_into().ok()?);
            Some((
                width,
                height,
                orientation.unwrap_or(Orientation::NoTransforms),
            ))
        }
        Format::Png => of_decoder(codecs::png::PngDecoder::new(reader).ok()?),
        Format::WebP => of_decoder(codecs::webp::WebPDecoder::new(reader).ok()?),
        Format::Gif => of_decoder(codecs::gif::GifDecoder::new(reader).ok()?),
    }
}

fn of_decoder(mut decoder: impl ImageDecoder) -> Option<(u32, u32, Orientation)> {
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Some((width, height, orientation))
}
