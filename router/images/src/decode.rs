//! From files to 8-bit RGB.
//!
//! JPEG is decoded by a port of libjpeg-turbo, because models were trained on what that library makes of it: other
//! decoders differ by up to 5 of 255, mostly in colours of subsampled files. The port is built without its SIMD code,
//! where most of its `unsafe` is.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, RgbImage, codecs};
use libjpeg_turbo_rs::{DecodeLimits, Decoder, PixelFormat};

use crate::error::ImageError;
use crate::header::{Format, Header, unpanicked};

/// Memory that a decoder may take for each pixel: 16-bit RGBA, and as much again for what it works with.
const BYTES_A_PIXEL: u64 = 16;
/// Of one JPEG file. Progressive files of cameras and of the web have about ten.
const MAX_SCANS: usize = 200;

/// Pixels, row by row, a byte each for red, green and blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb {
    pub height: u32,
    pub width: u32,
    pub pixels: Vec<u8>,
}

impl Header {
    /// At most so many bytes are taken while the picture is decoded.
    pub fn decode_bytes(&self) -> u64 {
        u64::from(self.height) * u64::from(self.width) * BYTES_A_PIXEL
    }
}

/// Decodes the picture whose header is `header`: its first frame, upright, and on white where it is transparent.
///
/// # Errors
/// [`ImageError::Damaged`], also where a decoder panics.
pub fn decode(bytes: &[u8], header: &Header) -> Result<Rgb, ImageError> {
    let decoded = unpanicked(|| pixels(bytes, header));
    decoded.ok_or(ImageError::Damaged(header.format.name()))
}

fn pixels(bytes: &[u8], header: &Header) -> Option<Rgb> {
    let reader = Cursor::new(bytes);
    let mut image = match header.format {
        Format::Jpeg => jpeg(bytes, header)?,
        Format::Png => stored(codecs::png::PngDecoder::new(reader).ok()?, header)?,
        Format::WebP => stored(codecs::webp::WebPDecoder::new(reader).ok()?, header)?,
        Format::Gif => stored(codecs::gif::GifDecoder::new(reader).ok()?, header)?,
    };
    image.apply_orientation(header.orientation);
    let image = if image.color().has_alpha() {
        on_white(&image.into_rgba8())
    } else {
        image.into_rgb8()
    };
    Some(Rgb {
        height: image.height(),
        width: image.width(),
        pixels: image.into_raw(),
    })
}

fn jpeg(bytes: &[u8], header: &Header) -> Option<DynamicImage> {
    let limits = DecodeLimits {
        max_scans: MAX_SCANS,
        max_memory: Some(header.decode_bytes().max(1 << 20)),
        ..DecodeLimits::default()
    };
    let decoder = Decoder::new_with_limits(bytes, limits).ok()?;
    let image = decoder
        .with_output_format(PixelFormat::Rgb)
        .decode_image()
        .ok()?;
    let (width, height) = (image.width.try_into().ok()?, image.height.try_into().ok()?);
    RgbImage::from_raw(width, height, image.data).map(DynamicImage::ImageRgb8)
}

fn stored(mut decoder: impl ImageDecoder, header: &Header) -> Option<DynamicImage> {
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(header.decode_bytes().max(1 << 20));
    decoder.set_limits(limits).ok()?;
    DynamicImage::from_decoder(decoder).ok()
}

/// Blends as Pillow pastes: rounded, in whole numbers.
fn on_white(image: &image::RgbaImage) -> RgbImage {
    let mut out = RgbImage::new(image.width(), image.height());
    for (to, from) in out.pixels_mut().zip(image.pixels()) {
        let [.., alpha] = from.0;
        for (to, from) in to.0.iter_mut().zip(from.0) {
            let sum = u32::from(from) * u32::from(alpha) + 255 * u32::from(255 - alpha) + 128;
            let byte = ((sum >> 8) + sum) >> 8;
            *to = u8::try_from(byte).unwrap_or(u8::MAX);
        }
    }
    out
}
