//! The two passes of resizing, with the widest instructions that the processor has.
//!
//! Both add up lines of [`LANES`] values, each line with its weight. So that these are neighbours in the horizontal pass
//! too, [`LINES`] lines are transposed into columns first.

use pulp::{Arch, NullaryFnOnce};

use super::{BITS, Taps};

/// Lines that are computed at once in the horizontal pass.
const LINES: usize = 16;
/// Values that are.
const LANES: usize = 3 * LINES;
const HALF: i32 = 1 << (BITS - 1);

/// Lines of a picture within longer ones of one colour.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub pixels: &'a [u8],
    /// Pixels of a line of the picture.
    pub width: usize,
    /// Pixels of the longer ones before it.
    pub left: usize,
    pub colour: [u8; 3],
    /// Pixels of a longer one.
    pub canvas: usize,
}

/// The lines, a pixel for each of `columns`.
pub(super) fn horizontal(lines: &Lines<'_>, columns: &[Taps]) -> Vec<u8> {
    Arch::new().dispatch(Horizontal { lines, columns })
}

/// Lines of `width` bytes, one for each of `rows`; `line` gives what is read from the beginning of an input line on.
pub(super) fn vertical<'a>(
    line: impl Fn(usize) -> &'a [u8],
    width: usize,
    rows: &[Taps],
) -> Vec<u8> {
    Arch::new().dispatch(Vertical { line, width, rows })
}

struct Horizontal<'a> {
    lines: &'a Lines<'a>,
    columns: &'a [Taps],
}

struct Vertical<'a, L> {
    line: L,
    width: usize,
    rows: &'a [Taps],
}

impl NullaryFnOnce for Horizontal<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        let Self { lines, columns } = self;
        let (from, to) = (lines.width * 3, columns.len() * 3);
        let mut out = vec![0; lines.pixels.len() / from * to];
        let mut turned = vec![repeated(lines.colour); lines.canvas];
        let blocks = lines.pixels.chunks(from * LINES);
        for (block, out) in blocks.zip(out.chunks_mut(to * LINES)) {
            for (place, line) in block.chunks_exact(from).enumerate() {
                let pixels = line.as_chunks::<3>().0;
                for (column, pixel) in turned[lines.left..].iter_mut().zip(pixels) {
                    column[place * 3..place * 3 + 3].copy_from_slice(pixel);
                }
            }
            for (at, taps) in columns.iter().enumerate() {
                let mut sums = [0; LANES];
                weigh(taps, |input| &turned[input], &mut sums);
                for (line, pixel) in out.chunks_exact_mut(to).zip(sums.as_chunks::<3>().0) {
                    line[at * 3..at * 3 + 3].copy_from_slice(pixel);
                }
            }
        }
        out
    }
}

impl<'a, L: Fn(usize) -> &'a [u8]> NullaryFnOnce for Vertical<'_, L> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        let mut out = vec![0; self.rows.len() * self.width];
        for (taps, out) in self.rows.iter().zip(out.chunks_exact_mut(self.width)) {
            let (parts, rest) = out.as_chunks_mut::<LANES>();
            let behind = parts.len() * LANES;
            for (part, out) in parts.iter_mut().enumerate() {
                weigh(taps, |input| &(self.line)(input)[part * LANES..], out);
            }
            weigh(taps, |input| &(self.line)(input)[behind..], rest);
        }
        out
    }
}

fn repeated(colour: [u8; 3]) -> [u8; LANES] {
    std::array::from_fn(|lane| colour[lane % 3])
}

/// Adds up the beginnings of input lines by their weights.
#[inline(always)]
fn weigh<'a>(taps: &Taps, line: impl Fn(usize) -> &'a [u8], out: &mut [u8]) {
    let mut sums = [HALF; LANES];
    let sums = &mut sums[..out.len()];
    for (input, weight) in (taps.first..).zip(&taps.weights) {
        for (sum, value) in sums.iter_mut().zip(&line(input)[..out.len()]) {
            *sum += weight * i32::from(*value);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = u8::try_from((*sum >> BITS).clamp(0, 255)).unwrap_or(u8::MAX);
    }
}
