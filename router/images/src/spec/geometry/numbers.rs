//! Arithmetic that families share.

use crate::resize::{Size, Window};

pub(super) fn area(size: Size) -> u64 {
    u64::from(size.height) * u64::from(size.width)
}

pub(super) fn square(side: u32) -> Size {
    Size {
        height: side,
        width: side,
    }
}

pub(super) fn narrowed(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Cut off, as Python's `int` of a number that is not negative. Numbers here are far below 2^52, so they are whole in
/// `f64`.
pub(super) fn whole(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion saturates"
    )]
    let whole = x as u32;
    whole
}

/// For limits, which are far below 2^52.
pub(super) fn float(x: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^52")]
    let float = x as f64;
    float
}

/// Scaled down to fit into a square, never up.
pub(super) fn within(size: Size, side: u32) -> Size {
    let longer = size.height.max(size.width);
    if longer <= side {
        return size;
    }
    let scaled = |length: u32| {
        let scaled =
            (u64::from(length) * u64::from(side) + u64::from(longer) / 2) / u64::from(longer);
        narrowed(scaled).max(1)
    };
    Size {
        height: scaled(size.height),
        width: scaled(size.width),
    }
}

/// The shorter side becomes `shortest`, the longer one is cut off to a whole number. Sides saturate far above what any
/// window reaches into: a picture of 1 x 25,000,000 has its middle as any other.
pub(super) fn shortest_side(size: Size, shortest: u32) -> Size {
    let (short, long) = (size.height.min(size.width), size.height.max(size.width));
    let long = narrowed(u64::from(shortest) * u64::from(long) / u64::from(short));
    if size.width <= size.height {
        Size {
            height: long,
            width: shortest,
        }
    } else {
        Size {
            height: shortest,
            width: long,
        }
    }
}

/// The crop is at most as large as the picture: [`super::super::reading`] checks that of every file.
pub(super) fn middle(resized: Size, crop: Size) -> Window {
    Window {
        top: (resized.height.saturating_sub(crop.height) / 2).into(),
        left: (resized.width.saturating_sub(crop.width) / 2).into(),
        size: crop,
    }
}
