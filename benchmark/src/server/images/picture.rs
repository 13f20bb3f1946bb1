//! Pictures that cost a server what photographs do: smooth areas, edges, and the grain of a sensor.
//!
//! Noise alone makes files several times as large, and with them decoding slower, than any photograph; plain colours
//! make both too cheap. A JPEG of these has about 0.2 bytes a pixel.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use libjpeg_turbo_rs::{PixelFormat, Subsampling, compress};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{ImageFormat, ImageSize};
use crate::error::{BenchmarkError, Result};
use crate::server::api::DataUrl;

const SHAPES: usize = 24;
/// As cameras and telephones have it.
const JPEG_QUALITY: u8 = 85;

type Colour = [f32; 3];

/// A picture that depends on the seed alone.
pub fn data_url(size: ImageSize, format: ImageFormat, seed: u64) -> Result<DataUrl> {
    let pixels = paint(size, &mut StdRng::seed_from_u64(seed));
    let (kind, bytes) = match format {
        ImageFormat::Jpeg => ("jpeg", jpeg(size, &pixels)?),
        ImageFormat::Png => ("png", png(size, &pixels)?),
    };
    let mut url = format!("data:image/{kind};base64,");
    STANDARD.encode_string(bytes, &mut url);
    Ok(url.into())
}

fn jpeg(size: ImageSize, pixels: &[u8]) -> Result<Vec<u8>> {
    let (width, height) = (size.width as usize, size.height as usize);
    let (format, subsampling) = (PixelFormat::Rgb, Subsampling::S420);
    compress(pixels, width, height, format, JPEG_QUALITY, subsampling)
        .map_err(|error| BenchmarkError::argument("--image-format", error.to_string()))
}

fn png(size: ImageSize, pixels: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes)
        .write_image(pixels, size.width, size.height, ExtendedColorType::Rgb8)
        .map_err(|error| BenchmarkError::argument("--image-format", error.to_string()))?;
    Ok(bytes)
}

/// A disc or a rectangle, in pixels.
struct Shape {
    centre: [f32; 2],
    half: [f32; 2],
    round: bool,
    colour: Colour,
}

impl Shape {
    fn draw(size: ImageSize, rng: &mut StdRng) -> Self {
        let sides = [size.width as f32, size.height as f32];
        let shorter = sides[0].min(sides[1]);
        Self {
            centre: sides.map(|side| rng.random_range(0.0..1.0) * side),
            half: sides.map(|_| rng.random_range(0.02..0.25) * shorter),
            round: rng.random(),
            colour: colour(rng),
        }
    }

    fn covers(&self, x: f32, y: f32) -> bool {
        let [dx, dy] = [
            (x - self.centre[0]) / self.half[0],
            (y - self.centre[1]) / self.half[1],
        ];
        if self.round {
            dx * dx + dy * dy <= 1.0
        } else {
            dx.abs().max(dy.abs()) <= 1.0
        }
    }
}

fn colour(rng: &mut StdRng) -> Colour {
    [0; 3].map(|_| rng.random_range(20.0..235.0))
}

fn mix(a: Colour, b: Colour, share: f32) -> Colour {
    std::array::from_fn(|channel| a[channel] + (b[channel] - a[channel]) * share)
}

/// RGB, row by row: a gradient between four corners, shapes on it, and grain on all.
fn paint(size: ImageSize, rng: &mut StdRng) -> Vec<u8> {
    let corners = [0; 4].map(|_| colour(rng));
    let shapes: Vec<Shape> = (0..SHAPES).map(|_| Shape::draw(size, rng)).collect();
    let mut grain = Grain(rng.random::<u64>() | 1);
    let mut pixels = Vec::with_capacity(size.width as usize * size.height as usize * 3);
    for row in 0..size.height {
        let y = row as f32;
        let down = y / size.height as f32;
        let (left, right) = (
            mix(corners[0], corners[2], down),
            mix(corners[1], corners[3], down),
        );
        // Most shapes do not reach this row.
        let near: Vec<&Shape> = shapes
            .iter()
            .filter(|shape| (y - shape.centre[1]).abs() <= shape.half[1])
            .collect();
        for column in 0..size.width {
            let x = column as f32;
            let ground = mix(left, right, x / size.width as f32);
            let on_top = near.iter().rfind(|shape| shape.covers(x, y));
            // A shape is lit as the ground is, so that it has a gradient too.
            let lit = on_top.map_or(ground, |shape| mix(shape.colour, ground, 0.3));
            let grain = grain.next();
            // `as` keeps what is beyond a byte at its ends.
            pixels.extend(lit.map(|value| (value + grain) as u8));
        }
    }
    pixels
}

/// Brightness that differs from pixel to pixel (xorshift: Marsaglia, 2003).
struct Grain(u64);

impl Grain {
    /// The sum of two draws: small values are the most likely.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let [a, b, ..] = self.0.to_le_bytes();
        (f32::from(a) + f32::from(b) - 255.0) / 16.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(format: ImageFormat, seed: u64) -> Vec<u8> {
        let size = "320x200".parse().unwrap();
        let url = data_url(size, format, seed).unwrap();
        let (kind, base64) = url.split_once(";base64,").unwrap();
        let named = match format {
            ImageFormat::Jpeg => "data:image/jpeg",
            ImageFormat::Png => "data:image/png",
        };
        assert_eq!(kind, named);
        STANDARD.decode(base64).unwrap()
    }

    #[test]
    fn both_formats_hold_the_same_picture() {
        let png = image::load_from_memory(&file(ImageFormat::Png, 1)).unwrap();
        let jpeg = libjpeg_turbo_rs::decompress(&file(ImageFormat::Jpeg, 1)).unwrap();
        assert_eq!((png.width(), png.height()), (320, 200));
        assert_eq!((jpeg.width, jpeg.height), (320, 200));
        let png = png.into_rgb8().into_raw();
        let off: u64 = png
            .iter()
            .zip(&jpeg.data)
            .map(|(a, b)| u64::from(a.abs_diff(*b)))
            .sum();
        assert!(off / (png.len() as u64) < 6);
        let different: std::collections::HashSet<&u8> = png.iter().collect();
        assert!(different.len() > 100, "not one colour");
    }

    #[test]
    fn files_are_as_large_as_those_of_photographs() {
        let size: ImageSize = "512x512".parse().unwrap();
        for seed in 0..3 {
            let url = data_url(size, ImageFormat::Jpeg, seed).unwrap();
            let per_pixel = url.len() as f64 * 0.75 / f64::from(512 * 512);
            assert!(
                (0.15..0.3).contains(&per_pixel),
                "{per_pixel} bytes a pixel"
            );
        }
    }

    #[test]
    fn the_smallest_picture_is_one() {
        let size = "1x1".parse().unwrap();
        for format in [ImageFormat::Jpeg, ImageFormat::Png] {
            assert!(data_url(size, format, 1).unwrap().len() > 50);
        }
    }
}
