//! The ownership of one frame of a pool.

/// One frame, owned: holding it is the right to read and write its bytes.
///
/// Not `Clone`, and without a destructor (so without a reference count): give it back to its pool
/// ([`FrameCache::give`](crate::FrameCache::give)), send it on a queue, or it stays out for good,
/// which the pool's [`counts`](crate::Pool::counts) shows.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is dropped is lost to its pool"]
pub struct Frame {
    pub(crate) index: u32,
    pub(crate) tag: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Whether the pool's record beside the frame is of this packet.
    pub(crate) has_record: bool,
}

impl Frame {
    /// Which frame of its pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tag of its pool; frames of different pools never mix.
    pub fn pool_tag(&self) -> u32 {
        self.tag
    }

    /// First byte of the packet, in bytes from the frame's start.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Bytes of packet in the frame.
    #[allow(
        clippy::len_without_is_empty,
        reason = "an empty frame is an unfilled one, not a case"
    )]
    pub fn len(&self) -> u32 {
        self.len
    }
}
