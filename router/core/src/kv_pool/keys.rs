//! What the tree compares: a key for each position of a request.

/// Keys of positions, as a view of a request's ids.
///
/// The key of a token is its id. That of a position of an image is 63 bits of a keyed hash of the image and of its place
/// within it, with the highest bit set: no token has it, another image has another one.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    /// Of the first positions, where a request has images. Those that follow have the keys of their ids.
    first: &'a [u64],
    ids: &'a [u32],
}

impl<'a> Keys<'a> {
    /// `first` has at most as many keys as there are ids.
    pub fn new(first: &'a [u64], ids: &'a [u32]) -> Self {
        Self { first, ids }
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The key of the first position.
    pub(super) fn head(&self) -> Option<u64> {
        let id = self.ids.first()?;
        Some(self.first.first().copied().unwrap_or(u64::from(*id)))
    }

    /// At most the first `count` positions.
    pub(crate) fn until(self, count: usize) -> Self {
        Self {
            first: &self.first[..self.first.len().min(count)],
            ids: &self.ids[..self.ids.len().min(count)],
        }
    }

    /// The positions behind the first `count`; `None` where there are fewer.
    pub(super) fn behind(self, count: usize) -> Option<Self> {
        Some(Self {
            first: self.first.get(count..).unwrap_or_default(),
            ids: self.ids.get(count..)?,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let rest = self.ids.iter().skip(self.first.len());
        let rest = rest.map(|id| u64::from(*id));
        self.first.iter().copied().chain(rest)
    }

    /// Whether both have at least `count` keys and begin with the same.
    pub(crate) fn share(&self, other: &Self, count: usize) -> bool {
        let is_text = self.first.is_empty() && other.first.is_empty();
        match (self.ids.get(..count), other.ids.get(..count)) {
            (Some(own), Some(others)) if is_text => own == others,
            (Some(_), Some(_)) => self.until(count).iter().eq(other.until(count).iter()),
            _ => false,
        }
    }

    /// How many keys are those of `keys` at the start.
    pub(super) fn common(&self, keys: &[u64]) -> usize {
        let mixed = self.first.len().min(keys.len());
        let same = equal(&keys[..mixed], self.first);
        if same < mixed {
            return same;
        }
        // Whole blocks are compared at once, several times as fast as one by one.
        const BLOCK: usize = 64;
        let (keys, ids) = (&keys[mixed..], &self.ids[mixed..]);
        let blocks = keys.as_chunks::<BLOCK>().0.iter();
        let blocks = blocks.zip(ids.as_chunks::<BLOCK>().0);
        let alike = |(keys, ids): &(&[u64; BLOCK], &[u32; BLOCK])| {
            let differences = keys.iter().zip(ids.iter());
            differences.fold(0, |all, (key, id)| all | (key ^ u64::from(*id))) == 0
        };
        let start = BLOCK * blocks.take_while(alike).count();
        let rest = keys[start..].iter().zip(&ids[start..]);
        let rest = rest.take_while(|(key, id)| **key == u64::from(**id));
        mixed + start + rest.count()
    }
}

fn equal(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<'a> From<&'a [u32]> for Keys<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self::new(&[], ids)
    }
}

impl<'a> From<&'a Vec<u32>> for Keys<'a> {
    fn from(ids: &'a Vec<u32>) -> Self {
        Self::new(&[], ids)
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Keys<'a> {
    fn from(ids: &'a [u32; N]) -> Self {
        Self::new(&[], ids)
    }
}
