//! Aria: the picture in its own form, as long as the model sees. The processor fills it up to a square and says what is
//! no filling; here the filling is left out, but for what completes the last patches.

use super::numbers::{area, square, whole};
use super::{Plan, View, one};
use crate::resize::{Size, Window};

#[derive(Debug, Clone, PartialEq)]
pub(in crate::spec) struct Filled {
    /// Pixels along the longer side.
    pub longest: u32,
    /// The shorter side has at least so many, even where that changes the form.
    pub shortest: u32,
    pub patch: u32,
    pub rows: u32,
}

impl Filled {
    pub(super) fn plan(&self, size: Size) -> Plan {
        let (h, w) = (f64::from(size.height), f64::from(size.width));
        let scale = f64::from(self.longest) / h.max(w);
        let shorter = |side: f64| whole(side * scale).max(self.shortest);
        let resized = if w >= h {
            Size {
                height: shorter(h),
                width: self.longest,
            }
        } else {
            Size {
                height: self.longest,
                width: shorter(w),
            }
        };
        let window = Window::whole(Size {
            height: resized.height.next_multiple_of(self.patch),
            width: resized.width.next_multiple_of(self.patch),
        });
        one(View::part(resized, window), self.rows)
    }

    pub(super) fn largest(&self) -> (u64, u32) {
        (area(square(self.longest)), self.rows)
    }
}
