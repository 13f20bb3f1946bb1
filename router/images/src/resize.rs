//! Resizing as Pillow does it, to the bit: separable filters in whole numbers of 22 bits, the horizontal pass first.
//!
//! Processors of models are written for Pillow or for torchvision, which differ by 1 or 2 of 255 in few pixels. Pillow
//! from 13 on takes the vertical pass first where a picture becomes wider and lower.

use crate::decode::Rgb;

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub height: u32,
    pub width: u32,
}

/// A part of a picture: `size` pixels from row `top` and column `left` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub top: u32,
    pub left: u32,
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

/// Taps of output pixels `from .. from + count` of `to`, from `of` input pixels.
fn taps(filter: Filter, of: u32, to: u32, from: u32, count: u32) -> Vec<Taps> {
    let scale = f64::from(of) / f64::from(to);
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    let one = f64::from(1 << BITS);
    (from..from + count)
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

fn byte(sum: i32) -> u8 {
    u8::try_from((sum >> BITS).clamp(0, 255)).unwrap_or(u8::MAX)
}

const HALF: i32 = 1 << (BITS - 1);

/// Returns `window` of the picture at size `to`, as if the whole had been resized. Nothing outside of it is computed.
/// The window lies within `to`, and no size is 0.
pub fn resize(image: &Rgb, to: Size, window: Window, filter: Filter) -> Rgb {
    let columns = taps(
        filter,
        image.width,
        to.width,
        window.left,
        window.size.width,
    );
    let rows = taps(
        filter,
        image.height,
        to.height,
        window.top,
        window.size.height,
    );
    let (first, end) = if to.height == image.height {
        let first = window.top as usize;
        (first, first + window.size.height as usize)
    } else {
        let first = rows.iter().map(|row| row.first).min().unwrap_or(0);
        let end = rows.iter().map(|row| row.first + row.weights.len());
        (first, end.max().unwrap_or(0))
    };
    let across = if to.width == image.width {
        cut(image, first, end, window)
    } else {
        horizontal(image, first, end, &columns)
    };
    let width = window.size.width as usize * 3;
    let pixels = if to.height == image.height {
        across
    } else {
        vertical(&across, width, first, &rows)
    };
    Rgb {
        height: window.size.height,
        width: window.size.width,
        pixels,
    }
}

/// Columns of `window` in rows `first .. end`.
fn cut(image: &Rgb, first: usize, end: usize, window: Window) -> Vec<u8> {
    let stride = image.width as usize * 3;
    let (left, width) = (window.left as usize * 3, window.size.width as usize * 3);
    let lines = image.pixels.chunks_exact(stride.max(1));
    lines
        .skip(first)
        .take(end - first)
        .flat_map(|line| line[left..left + width].iter().copied())
        .collect()
}

fn horizontal(image: &Rgb, first: usize, end: usize, columns: &[Taps]) -> Vec<u8> {
    let stride = image.width as usize * 3;
    let mut out = vec![0; (end - first) * columns.len() * 3];
    let lines = image.pixels.chunks_exact(stride).skip(first);
    for (line, to) in lines.zip(out.chunks_exact_mut(columns.len() * 3)) {
        for (taps, to) in columns.iter().zip(to.as_chunks_mut::<3>().0) {
            let from = line[taps.first * 3..].as_chunks::<3>().0;
            let mut sums = [HALF; 3];
            for (weight, pixel) in taps.weights.iter().zip(from) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += weight * i32::from(*value);
                }
            }
            *to = sums.map(byte);
        }
    }
    out
}

/// `lines` begin at row `first` of the input and have `width` bytes each.
fn vertical(lines: &[u8], width: usize, first: usize, rows: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * width);
    let mut sums = vec![0; width];
    for row in rows {
        sums.fill(HALF);
        let from = lines[(row.first - first) * width..].chunks_exact(width);
        for (weight, line) in row.weights.iter().zip(from) {
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += weight * i32::from(*value);
            }
        }
        out.extend(sums.iter().map(|sum| byte(*sum)));
    }
    out
}
