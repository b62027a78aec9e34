//! A buffer for records until they are written: filled by slices, because the length is checked
//! once per record and not once per part of it.

/// Bytes gathered so far, with room after them.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Fully initialised; bytes after `len` are stale.
    memory: Vec<u8>,
    len: usize,
}

impl Gather {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            memory: vec![0; capacity],
            len: 0,
        }
    }

    /// The gathered bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// The next `need` bytes of room.
    #[inline]
    pub(super) fn room(&mut self, need: usize) -> &mut [u8] {
        let end = self.len + need;
        if end > self.memory.len() {
            self.grow(end);
        }
        &mut self.memory[self.len..end]
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        self.memory.resize(end, 0);
    }

    /// Marks bytes of the room as gathered.
    #[inline]
    pub(super) fn advance(&mut self, count: usize) {
        debug_assert!(self.len + count <= self.memory.len());
        self.len += count;
    }

    /// Appends bytes.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.advance(bytes.len());
    }
}
