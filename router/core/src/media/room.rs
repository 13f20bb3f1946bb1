//! Memory for what images bring: their files, and pixels that nobody has asked for yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// So many bytes may be held at a time. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    left: Arc<AtomicUsize>,
}

/// Bytes that give back their room.
struct Held {
    bytes: Bytes,
    room: Room,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        let left = Arc::new(AtomicUsize::new(bytes));
        Self { left }
    }

    /// The same bytes, which take room until their last clone is gone. `None` where there is too little.
    pub(crate) fn hold(&self, bytes: Bytes) -> Option<Bytes> {
        let order = Ordering::Relaxed;
        let taken = self
            .left
            .fetch_update(order, order, |left| left.checked_sub(bytes.len()));
        taken.ok()?;
        let room = self.clone();
        Some(Bytes::from_owner(Held { bytes, room }))
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let len = self.bytes.len();
        self.room.left.fetch_add(len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_room_until_nobody_has_them() {
        let room = Room::new(10);
        let file = room.hold(Bytes::from_static(b"a file")).unwrap();
        let part = file.slice(2..);
        assert_eq!(part, "file");
        assert_eq!(room.hold(Bytes::from_static(b"other")), None);
        drop(file);
        assert_eq!(room.hold(Bytes::from_static(b"other")), None);
        drop(part);
        assert!(room.hold(Bytes::from_static(b"other file")).is_some());
    }
}
