//! Choice of the layers of an encoder of images that a step computes beside its tokens.

use std::time::Duration;

/// Where nobody decodes, a step encodes items as long as they take this long together: the requests whose images come
/// first start then.
const ALONE: Duration = Duration::from_millis(50);

/// An item that waits to be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// That are left to compute.
    pub layers: u32,
    /// How long one of them takes, beside those of the items before it.
    pub layer: Duration,
    /// It is encoded together with the items before it, and so in this step whole or not at all.
    pub packed: bool,
}

/// How many layers of each item the step computes, from the first item on: whole items, and of the last perhaps a part.
/// At least one layer, so that every image gets on.
///
/// `room` is what the running streams' inter-token latency leaves beside their decodes; `None` where nobody decodes or
/// nothing is promised.
pub fn layers(items: &[Item], room: Option<Duration>) -> Vec<u32> {
    let mut left = room.unwrap_or(ALONE);
    let mut chosen = Vec::new();
    for item in items {
        let fit = match item.layer.as_nanos() {
            0 => item.layers,
            layer => u32::try_from(left.as_nanos() / layer).unwrap_or(u32::MAX),
        };
        let is_first = chosen.is_empty();
        let count = match room {
            // Cut nowhere: nobody waits for the end of the step.
            None if is_first || fit >= item.layers => item.layers,
            None => 0,
            Some(_) if item.packed && fit < item.layers => 0,
            Some(_) => fit.max(u32::from(is_first)).min(item.layers),
        };
        if count == 0 {
            break;
        }
        chosen.push(count);
        left = left.saturating_sub(item.layer * count);
        if count < item.layers {
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn item(layers: u32, micros: u64) -> Item {
        Item {
            layers,
            layer: Duration::from_micros(micros),
            packed: false,
        }
    }

    #[test]
    fn layers_fill_what_the_latency_leaves_and_one_always_goes() {
        let room = |micros| Some(Duration::from_micros(micros));
        let items = [item(10, 1000), item(4, 500), item(4, 500)];
        assert_eq!(layers(&items, room(3500)), [3]);
        assert_eq!(layers(&items, room(10_000)), [10]);
        assert_eq!(layers(&items, room(11_200)), [10, 2]);
        assert_eq!(layers(&items, room(100_000)), [10, 4, 4]);
        assert_eq!(layers(&items, room(0)), [1]);
        assert_eq!(layers(&[], room(100)), [0; 0]);
        assert_eq!(layers(&[item(7, 0)], room(0)), [7]);
    }

    #[test]
    fn an_item_that_is_packed_is_not_cut() {
        let packed = Item {
            packed: true,
            ..item(10, 200)
        };
        let room = |micros| Some(Duration::from_micros(micros));
        assert_eq!(layers(&[item(10, 1000), packed], room(11_900)), [10]);
        assert_eq!(layers(&[item(10, 1000), packed], room(12_000)), [10, 10]);
    }

    #[test]
    fn where_nobody_decodes_items_are_whole_and_few() {
        let items = [item(10, 9000), item(10, 9000)];
        assert_eq!(layers(&items, None), [10]);
        assert_eq!(layers(&[item(4, 1000), item(4, 1000)], None), [4, 4]);
    }
}
