//! Slots in the order of the positions whose K and V they hold.

use text_generation_client::types::SlotRange;

/// One slot for each of `length` consecutive positions. Ranges that continue each other are merged.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotList {
    ranges: Vec<SlotRange>,
    length: u32,
}

/// A place between two positions of a [`SlotList`], which stays valid while the list grows at its end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    range: usize,
    /// Slots of that range which lie before the place.
    offset: u32,
}

impl SlotList {
    pub(super) fn len(&self) -> u32 {
        self.length
    }

    pub(super) fn ranges(&self) -> &[SlotRange] {
        &self.ranges
    }

    pub(super) fn extend(&mut self, ranges: &[SlotRange]) {
        for &range in ranges.iter().filter(|range| range.length > 0) {
            self.length += range.length;
            match self.ranges.last_mut() {
                Some(last) if last.start + last.length == range.start => {
                    last.length += range.length;
                }
                _ => self.ranges.push(range),
            }
        }
    }

    /// Keeps the slots of the first `count` positions and returns those of the others. Walks from the end.
    pub(super) fn split_off(&mut self, count: u32) -> Self {
        let mut tail = Vec::new();
        let mut excess = self.length.saturating_sub(count);
        let length = excess;
        while excess > 0
            && let Some(last) = self.ranges.last_mut()
        {
            let taken = last.length.min(excess);
            last.length -= taken;
            excess -= taken;
            tail.push(SlotRange {
                start: last.start + last.length,
                length: taken,
            });
            if last.length == 0 {
                self.ranges.pop();
            }
        }
        tail.reverse();
        self.length -= length;
        Self {
            ranges: tail,
            length,
        }
    }

    /// The slots of the next `count` positions behind `cursor`, which moves behind them; fewer at the end of the list.
    pub(super) fn read(&self, cursor: &mut Cursor, count: u32) -> Self {
        let mut list = Self::default();
        while list.length < count
            && let Some(range) = self.ranges.get(cursor.range)
        {
            let length = (range.length - cursor.offset).min(count - list.length);
            list.extend(&[SlotRange {
                start: range.start + cursor.offset,
                length,
            }]);
            cursor.offset += length;
            // The last range may still become longer.
            if cursor.offset == range.length {
                if cursor.range + 1 == self.ranges.len() {
                    break;
                }
                *cursor = Cursor {
                    range: cursor.range + 1,
                    offset: 0,
                };
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expand(list: &SlotList) -> Vec<u32> {
        let slots = |range: &SlotRange| range.start..range.start + range.length;
        list.ranges.iter().flat_map(slots).collect()
    }

    proptest! {
        #[test]
        fn a_list_grows_splits_and_is_read_as_its_slots_written_out(
            starts in prop::collection::vec((0u32..6, 0u32..4), 0..12), reads in prop::collection::vec(0u32..5, 12), at in 0u32..40,
        ) {
            let (mut list, mut plain) = (SlotList::default(), Vec::new());
            let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
            for (&(start, length), &count) in starts.iter().zip(&reads) {
                list.extend(&[SlotRange { start, length }]);
                plain.extend(start..start + length);
                let read = list.read(&mut cursor, count);
                prop_assert_eq!(read.len() as usize, (count as usize).min(plain.len() - seen.len()));
                seen.extend(expand(&read));
                prop_assert_eq!(&seen[..], &plain[..seen.len()]);
            }
            prop_assert_eq!(expand(&list), &plain[..]);
            let tail = list.split_off(at);
            let (first, second) = plain.split_at(plain.len().min(at as usize));
            prop_assert_eq!(expand(&list), first);
            prop_assert_eq!(expand(&tail), second);
            prop_assert_eq!((list.len() as usize, tail.len() as usize), (first.len(), second.len()));
        }
    }
}
