//! Ownership of one frame of a pool.

/// An owned frame: the holder may read and write its bytes.
///
/// Not `Clone`, and without a destructor (so without a reference count): return it to its pool
/// ([`FrameCache::give`](crate::FrameCache::give)) or send it on a queue; otherwise the frame is
/// leaked, which the pool's [`counts`](crate::Pool::counts) shows.
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
    /// An empty frame of a pool.
    #[inline(always)]
    pub(crate) fn empty(index: u32, tag: u32) -> Self {
        Self {
            index,
            tag,
            offset: 0,
            len: 0,
            has_record: false,
        }
    }

    /// Index of the frame in its pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tag of its pool; frames of different pools never mix.
    pub fn pool_tag(&self) -> u32 {
        self.tag
    }

    /// Offset of the packet's first byte from the frame's start.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Length of the packet in the frame.
    #[allow(
        clippy::len_without_is_empty,
        reason = "an empty frame is an unfilled one, not a case"
    )]
    pub fn len(&self) -> u32 {
        self.len
    }
}
