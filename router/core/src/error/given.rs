//! Numbers of a request as messages repeat them.

use std::fmt;

/// A number as a message repeats it. One that has no room in 32 bits was read as an infinity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Given(pub f32);

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0.is_finite() {
            true => self.0.fmt(f),
            false => fmt::LowerExp::fmt(self, f),
        }
    }
}

impl fmt::LowerExp for Given {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let most = f32::MAX.copysign(self.0);
        match self.0 {
            f32::INFINITY => write!(f, "more than {most:e}"),
            f32::NEG_INFINITY => write!(f, "less than {most:e}"),
            given => given.fmt(f),
        }
    }
}
