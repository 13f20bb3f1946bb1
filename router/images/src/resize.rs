//! Resizing as Pillow does it, to the bit: separable filters in whole numbers of 22 bits, the horizontal pass first.
//!
//! Processors of models are written for Pillow or for torchvision, which differ by 1 or 2 of 255 in few pixels. Pillow
//! from 13 on takes the vertical pass first where a picture becomes wider and lower.

mod passes;

use self::passes::{Lines, horizontal, vertical};
use crate::decode::Rgb;

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub height: u32,
    pub width: u32,
}

/// A part of a picture: `size` pixels from row `top` and column `left` on. It may reach beyond the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub top: i64,
    pub left: i64,
    pub size: Size,
}

impl Window {
    /// All of a picture.
    pub fn whole(size: Size) -> Self {
        Self {
            top: 0,
            left: 0,
            size,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            // Keys' kernel with a = -0.5.
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

const BITS: u32 = 22;

/// Weights of input pixels `first ..` for one output pixel.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// Taps of the output pixels `part` of `to`, from `of` input pixels.
fn taps(filter: Filter, of: u32, to: u32, part: Part) -> Vec<Taps> {
    let scale = f64::from(of) / f64::from(to);
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let one = f64::from(1 << BITS);
    (part.first..part.first + part.count)
        .map(|out| {
            let centre = (f64::from(out) + 0.5) * scale;
            let first = truncated(centre - support + 0.5, of);
            let end = truncated(centre + support + 0.5, of);
            let weights: Vec<f64> = (first..end)
                .map(|x| filter.weight((f64::from(x) - centre + 0.5) * stretch.recip()))
                .collect();
            let sum: f64 = weights.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            let whole = |weight: f64| {
                let scaled = weight / sum * one;
                #[expect(clippy::cast_possible_truncation, reason = "as Pillow rounds")]
                let rounded = (scaled + 0.5_f64.copysign(scaled)) as i32;
                rounded
            };
            Taps {
                first: first as usize,
                weights: weights.into_iter().map(whole).collect(),
            }
        })
        .collect()
}

/// Towards zero, within `0 ..= max`.
fn truncated(x: f64, max: u32) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion saturates"
    )]
    let whole = x as u32;
    whole.min(max)
}

/// Rows or columns of a picture: `count` from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    first: u32,
    count: u32,
}

impl Part {
    /// What of `count` rows or columns from `first` on is within `0 .. of`, and how many of them come before that.
    fn within(first: i64, count: u32, of: u32) -> (Self, u32) {
        let clamped = |at: i64| u32::try_from(at.clamp(0, of.into())).unwrap_or(of);
        let (start, end) = (clamped(first), clamped(first.saturating_add(count.into())));
        let before = u32::try_from(i64::from(start).saturating_sub(first)).unwrap_or(count);
        let part = Self {
            first: start,
            count: end - start,
        };
        (part, before.min(count))
    }
}

/// Returns `window` of the picture at size `to`, as if the whole had been resized. Nothing outside of it is computed.
/// What of the window is beyond `to` is black. No size is 0.
pub fn resize(image: &Rgb, to: Size, window: Window, filter: Filter) -> Rgb {
    let Size { height, width } = window.size;
    let (down, top) = Part::within(window.top, height, to.height);
    let (across, left) = Part::within(window.left, width, to.width);
    let inner = resize_part(image, to, down, across, filter);
    let pixels = if (down.count, across.count) == (height, width) {
        inner
    } else {
        on_black(&inner, across.count, (top, left), window.size)
    };
    Rgb {
        height,
        width,
        pixels,
    }
}

/// Pixels of `width` columns on a black picture of `size`, from row and column `at` on.
fn on_black(pixels: &[u8], width: u32, at: (u32, u32), size: Size) -> Vec<u8> {
    let (width, stride) = (width as usize * 3, size.width as usize * 3);
    let (top, left) = (at.0 as usize, at.1 as usize * 3);
    let mut out = vec![0; size.height as usize * stride];
    let lines = out.chunks_exact_mut(stride.max(1)).skip(top);
    for (to, from) in lines.zip(pixels.chunks_exact(width.max(1))) {
        to[left..left + width].copy_from_slice(from);
    }
    out
}

fn resize_part(image: &Rgb, to: Size, down: Part, across: Part, filter: Filter) -> Vec<u8> {
    if down.count == 0 || across.count == 0 {
        return Vec::new();
    }
    let (stride, width) = (image.width as usize * 3, across.count as usize * 3);
    let rows = taps(filter, image.height, to.height, down);
    let same = to.height == image.height;
    if to.width == image.width {
        let left = across.first as usize * 3;
        let line = |row| &image.pixels[row * stride + left..];
        return match same {
            true => {
                let rows = down.first as usize..(down.first + down.count) as usize;
                rows.map(|row| &line(row)[..width])
                    .collect::<Vec<_>>()
                    .concat()
            }
            false => vertical(line, width, &rows),
        };
    }
    let (first, end) = if same {
        let first = down.first as usize;
        (first, first + down.count as usize)
    } else {
        let first = rows.iter().map(|row| row.first).min().unwrap_or(0);
        let end = rows.iter().map(|row| row.first + row.weights.len());
        (first, end.max().unwrap_or(0))
    };
    let lines = Lines {
        pixels: &image.pixels[first * stride..end * stride],
        width: image.width as usize,
        left: 0,
        colour: [0; 3],
        canvas: image.width as usize,
    };
    let lines = horizontal(&lines, &taps(filter, image.width, to.width, across));
    if same {
        return lines;
    }
    vertical(|row| &lines[(row - first) * width..], width, &rows)
}

/// Where a picture stands in a square that is as long as its longer side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squared {
    /// In the middle, with this colour around it.
    Middle([u8; 3]),
    /// At the top and left of a black one.
    Corner,
}

/// Returns the picture at size `to`, as if it had been put into a square before. That square may be far larger than the
/// picture, so there is never one.
pub(crate) fn resize_squared(image: &Rgb, squared: Squared, to: Size, filter: Filter) -> Rgb {
    let side = image.height.max(image.width);
    let (top, left, colour) = match squared {
        Squared::Middle(colour) => ((side - image.height) / 2, (side - image.width) / 2, colour),
        Squared::Corner => (0, 0, [0; 3]),
    };
    let lines = Lines {
        pixels: &image.pixels,
        width: image.width as usize,
        left: left as usize,
        colour,
        canvas: side as usize,
    };
    let nothing = Lines {
        pixels: &colour,
        width: 1,
        ..lines
    };
    let part = |count| Part { first: 0, count };
    let columns = taps(filter, side, to.width, part(to.width));
    let rows = taps(filter, side, to.height, part(to.height));
    let (inside, beyond) = (horizontal(&lines, &columns), horizontal(&nothing, &columns));
    let width = beyond.len();
    let line = |row: usize| {
        let row = row.checked_sub(top as usize);
        row.and_then(|row| inside.get(row * width..).filter(|rest| !rest.is_empty()))
            .unwrap_or(&beyond)
    };
    let pixels = vertical(line, width, &rows);
    Rgb {
        height: to.height,
        width: to.width,
        pixels,
    }
}
