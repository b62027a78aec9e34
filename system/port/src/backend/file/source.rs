//! The bytes of a capture file, piece by piece: from a mapping if the file is uncompressed and
//! regular, otherwise from a buffer in which each packet is contiguous.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::time::Duration;

use sys::mmap::Mapping;
use sys::{Error, ErrorKind, Result};
use wire::file::USUAL_NEED;

use super::input::{Compression, Input, Stream, Unsupported};
use super::mapping::FileMapping;

/// Number of bytes per read: enough to amortize the call, few enough to stay in the cache.
const READ_LEN: usize = 256 << 10;

/// Length of the buffer: what a reader usually needs at once, plus one read. It grows for longer
/// blocks.
const BUFFER_LEN: usize = buffer_len(USUAL_NEED);

const fn buffer_len(need: usize) -> usize {
    (need + READ_LEN).next_multiple_of(4096)
}

/// An open capture file, and its read position.
pub(super) struct Source {
    bytes: Bytes,
    /// Number of bytes to skip after those in the buffer.
    skip: usize,
    compression: Compression,
    memory_len: usize,
}

enum Bytes {
    Mapped {
        mapping: FileMapping,
        file: File,
        at: usize,
    },
    Buffered(Buffered),
}

struct Buffered {
    stream: Stream,
    memory: Mapping,
    start: usize,
    end: usize,
    /// Whether the last read filled the available room: there may be more.
    full: bool,
}

/// A file's name for messages.
pub(super) fn shown(path: &str) -> &str {
    match path {
        "-" => "standard input",
        path => path,
    }
}

/// Result of reading more bytes.
#[derive(Debug)]
pub(super) enum More {
    /// More bytes are available.
    Bytes,
    /// None yet.
    Later,
    /// End of the file; this many skipped bytes were missing.
    End(usize),
    /// Read error.
    Failed(io::Error),
}

impl Source {
    /// Opens a file by name, or standard input as `-`.
    ///
    /// # Errors
    /// Those of opening and of the first read; `Unsupported` for an unsupported compression.
    pub(super) fn open(path: &str, may_map: bool) -> Result<Self> {
        let what = || format!("open {}", shown(path));
        let open = || match path {
            // A separate descriptor for the same open file: closing it leaves standard input open.
            "-" => {
                use std::os::fd::AsFd;
                Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
            }
            // Without O_NONBLOCK a named pipe would wait here for its writer, ignoring Ctrl-C.
            _ => File::options()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open(path),
        };
        let file = open().map_err(|error| {
            let hint = match error.kind() {
                _ if error.raw_os_error() == Some(libc::EMFILE) => {
                    "raise the limit of open files: ulimit -n (at most that of ulimit -Hn)"
                }
                io::ErrorKind::NotFound => {
                    "check the path; a name without a slash or a known extension is an interface"
                }
                io::ErrorKind::PermissionDenied => {
                    "the user that runs barewire needs read permission"
                }
                _ => "",
            };
            let error = Error::from_io(what(), error);
            if hint.is_empty() {
                error
            } else {
                error.with_hint(hint)
            }
        })?;
        let kind = file
            .metadata()
            .map_err(|e| Error::from_io(what(), e))?
            .file_type();
        if kind.is_dir() {
            return Err(
                Error::new(ErrorKind::InvalidInput, what(), "it is a directory")
                    .with_hint("name one capture file"),
            );
        }
        // Block devices have positions too, but no length to map.
        let position = match kind.is_file() || kind.is_block_device() {
            true => {
                Some(io::Seek::stream_position(&mut &file).map_err(|e| Error::from_io(what(), e))?)
            }
            false => None,
        };
        Self::at(file, position, path, may_map)
    }

    /// Reads an open regular file from its start.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub(super) fn over(file: File, path: &str, may_map: bool) -> Result<Self> {
        Self::at(file, Some(0), path, may_map)
    }

    fn at(file: File, position: Option<u64>, path: &str, may_map: bool) -> Result<Self> {
        let what = || format!("open {}", shown(path));
        Self::new(file, position, may_map).map_err(|error| {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            let Some(Unsupported { command, .. }) = inner else {
                return Error::from_io(what(), error);
            };
            let hint =
                format!("decompress it and read standard input (-): {command} FILE | barewire …");
            Error::new(ErrorKind::Unsupported, what(), error.to_string()).with_hint(hint)
        })
    }

    fn new(file: File, position: Option<u64>, may_map: bool) -> io::Result<Self> {
        let mut input = Input::new(file.try_clone()?, position);
        let compression = Compression::of(input.peek(4)?).map_err(io::Error::other)?;
        if compression == Compression::None
            && may_map
            && position == Some(0)
            && let Some(mapping) = FileMapping::new(&file)
        {
            let memory_len = 0;
            let bytes = Bytes::Mapped {
                mapping,
                file,
                at: 0,
            };
            return Ok(Self {
                bytes,
                skip: 0,
                compression,
                memory_len,
            });
        }
        let stream = Stream::new(input, compression)?;
        let bytes = Bytes::Buffered(Buffered::new(stream)?);
        Ok(Self {
            bytes,
            skip: 0,
            compression,
            memory_len: BUFFER_LEN,
        })
    }

    /// Whether slots point into a mapping of the file.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped { .. })
    }

    /// Compression of the file.
    pub(super) fn compression(&self) -> Compression {
        self.compression
    }

    /// Memory allocated by it in bytes.
    pub(super) fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// Called when no slot is in use, before the next batch.
    ///
    /// # Errors
    /// `Damaged` if the data of the last batch were truncated meanwhile.
    pub(super) fn begin_batch(&mut self, path: &str) -> Result<()> {
        let Bytes::Mapped { mapping, file, at } = &mut self.bytes else {
            return Ok(());
        };
        mapping.check(path, *at as u64)?;
        if mapping.advance(*at) && mapping.is_unchanged(file, *at) {
            return Ok(());
        }
        // The file grows, shrinks or fails: from here on its bytes are copied, one read at a time,
        // so that what was checked stays unchanged.
        self.bytes = buffered_from(file, *at)
            .map_err(|e| Error::from_io(format!("read {}", shown(path)), e))?;
        self.memory_len = BUFFER_LEN;
        Ok(())
    }

    /// The available bytes from the reader's position on.
    #[inline]
    pub(super) fn rest(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { mapping, at, .. } => mapping.rest(*at),
            Bytes::Buffered(buffered) => buffered.rest(),
        }
    }

    /// Address of byte `offset` of [`Source::rest`], for reading and writing.
    #[inline]
    pub(super) fn pointer(&self, offset: usize) -> NonNull<u8> {
        let (base, at) = match &self.bytes {
            Bytes::Mapped { mapping, at, .. } => (mapping.base(), *at),
            Bytes::Buffered(buffered) => (buffered.memory.base(), buffered.start),
        };
        debug_assert!(offset <= self.rest().len());
        // SAFETY: within the memory or one past it, as asserted; the offset comes from a range that
        // the reader checked against `rest`.
        unsafe { base.add(at + offset) }
    }

    /// Advances the reader; bytes not yet in the buffer are skipped when they arrive.
    #[inline]
    pub(super) fn take(&mut self, count: usize) {
        let (at, end) = match &mut self.bytes {
            Bytes::Mapped { mapping, at, .. } => (at, mapping.len()),
            Bytes::Buffered(buffered) => (&mut buffered.start, buffered.end),
        };
        let here = count.min(end - *at);
        *at += here;
        self.skip += count - here;
    }

    /// Reads more bytes until `need` are available. No slot may be in use.
    pub(super) fn more(&mut self, need: usize) -> More {
        if let Bytes::Mapped { mapping, file, at } = &self.bytes {
            // The end of a growing file is checked before each batch, but for a long block not as
            // far before the end as it begins.
            if need <= USUAL_NEED || mapping.is_as_mapped(file) {
                return More::End(self.skip);
            }
            match buffered_from(file, *at) {
                Ok(bytes) => self.bytes = bytes,
                Err(error) => return More::Failed(error),
            }
        }
        let Bytes::Buffered(buffered) = &mut self.bytes else {
            return More::End(self.skip);
        };
        if let Err(error) = buffered.reserve(need) {
            return More::Failed(error);
        }
        self.memory_len = buffered.memory.len();
        loop {
            let more = buffered.more();
            let skipped = self.skip.min(buffered.end - buffered.start);
            buffered.start += skipped;
            self.skip -= skipped;
            match more {
                Ok(0) => return More::End(self.skip),
                Ok(_) if buffered.end - buffered.start >= need => return More::Bytes,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return More::Later,
                Err(error) => return More::Failed(error),
            }
        }
    }

    /// Sleeps until there may be more, at most `timeout`; false if there is none.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        match &self.bytes {
            Bytes::Mapped { .. } => true,
            Bytes::Buffered(buffered) => buffered.full || buffered.stream.wait(timeout),
        }
    }
}

/// The bytes of a file from a position on, copied one read at a time.
fn buffered_from(file: &File, at: usize) -> io::Result<Bytes> {
    let input = Input::new(file.try_clone()?, Some(at as u64));
    Ok(Bytes::Buffered(Buffered::new(Stream::Plain(input))?))
}

impl Buffered {
    fn new(stream: Stream) -> io::Result<Self> {
        let memory = Mapping::anonymous(BUFFER_LEN).map_err(io::Error::other)?;
        Ok(Self {
            stream,
            memory,
            start: 0,
            end: 0,
            full: false,
        })
    }

    #[inline]
    fn rest(&self) -> &[u8] {
        // SAFETY: start <= end <= its length, and the memory is zeroed or was read into. It is
        // written only in `more`, when no slot is out, and through slots when this borrow is over.
        unsafe {
            let start = self.memory.base().as_ptr().add(self.start);
            std::slice::from_raw_parts(start, self.end - self.start)
        }
    }

    /// Makes room for `need` bytes at once, and one read.
    fn reserve(&mut self, need: usize) -> io::Result<()> {
        if buffer_len(need) <= self.memory.len() {
            return Ok(());
        }
        let memory = Mapping::anonymous(buffer_len(need)).map_err(io::Error::other)?;
        let rest = self.rest();
        // SAFETY: the new memory is longer than the old, and apart from it; no slot is out, as the
        // caller guarantees.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), memory.base().as_ptr(), rest.len()) };
        (self.start, self.end) = (0, rest.len());
        self.memory = memory;
        Ok(())
    }

    /// Reads once, after moving the remaining bytes to the front: usually less than one packet, so
    /// that the same cached memory is reused.
    fn more(&mut self) -> io::Result<usize> {
        let base = self.memory.base().as_ptr();
        if self.start != 0 {
            // SAFETY: both ranges lie in the memory; no slot is out, as the caller guarantees.
            unsafe { std::ptr::copy(base.add(self.start), base, self.end - self.start) };
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = READ_LEN.min(self.memory.len() - self.end);
        // SAFETY: the range lies in the memory, after all that `rest` gives.
        let into = unsafe { std::slice::from_raw_parts_mut(base.add(self.end), room) };
        self.full = false;
        let count = self.stream.read(into)?;
        self.full = count == room;
        self.end += count;
        Ok(count)
    }
}
