//! Reads captures that are not mapped: pipes, compressed files, files that change.
//!
//! Only [`Input::wait`] blocks: an empty pipe returns `WouldBlock`, which passes through the
//! decompressors and leaves their state unchanged.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use flate2::bufread::GzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

/// Number of bytes read ahead for a decompressor, and to identify a file.
const READ_AHEAD_LEN: usize = 128 << 10;

/// Maximum memory for a zstd frame, as a power of two: as for `zstd --long` (RFC 8878 requires at
/// least 8 MiB; 128 MiB is the limit of the reference implementation).
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// A descriptor that is read without blocking.
#[derive(Debug)]
pub(super) struct Input {
    file: File,
    /// Read position in a regular file; `None` for pipes, which have none.
    position: Option<u64>,
    /// Bytes read ahead: `ahead[start..end]`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    /// Reads from `position` on, if the file has positions; otherwise from its current one.
    pub(super) fn new(file: File, position: Option<u64>) -> Self {
        Self {
            file,
            position,
            ahead: Box::default(),
            start: 0,
            end: 0,
        }
    }

    /// Sleeps until there may be something to read; false after the timeout or a signal.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        if self.position.is_some() || self.start < self.end {
            return true;
        }
        let mut entry = libc::pollfd {
            fd: self.file.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // At least a millisecond, so that a short timeout does not become a busy loop.
        let timeout_ms = timeout.as_nanos().div_ceil(1_000_000);
        let timeout_ms = libc::c_int::try_from(timeout_ms).unwrap_or(libc::c_int::MAX);
        // SAFETY: one entry, which lives through the call.
        unsafe { libc::poll(&mut entry, 1, timeout_ms) > 0 }
    }

    fn read_now(&mut self, into: Place<'_>) -> io::Result<usize> {
        if !self.wait(Duration::ZERO) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let into = match into {
            Place::Ahead => &mut self.ahead[self.end..],
            Place::Slice(slice) => slice,
        };
        let count = loop {
            let result = match self.position {
                Some(position) => self.file.read_at(into, position),
                None => self.file.read(into),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if let Some(position) = &mut self.position {
            *position += count as u64;
        }
        Ok(count)
    }

    /// Peeks at the next bytes, `count` if the file has as many. Sleeps on a pipe.
    ///
    /// # Errors
    /// `Interrupted` when a signal ends the sleep, unless it only requests totals: it may be a
    /// request to stop.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        self.reserve();
        while self.end - self.start < count {
            match self.read_now(Place::Ahead) {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(Duration::MAX) && !sys::signal::is_totals_only() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(&self.ahead[self.start..self.end])
    }

    fn reserve(&mut self) {
        if self.ahead.is_empty() {
            self.ahead = vec![0; READ_AHEAD_LEN].into();
        }
    }
}

/// Destination of bytes.
enum Place<'a> {
    /// After those read ahead.
    Ahead,
    /// Into this slice, past those read ahead.
    Slice(&'a mut [u8]),
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            return self.read_now(Place::Slice(into));
        }
        let count = into.len().min(self.end - self.start);
        into[..count].copy_from_slice(&self.ahead[self.start..][..count]);
        self.start += count;
        Ok(count)
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.reserve();
            (self.start, self.end) = (0, 0);
            self.end = self.read_now(Place::Ahead)?;
        }
        Ok(&self.ahead[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }
}

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    /// None.
    None,
    /// gzip: RFC 1952, any number of members.
    Gzip,
    /// zstd: RFC 8878, any number of frames.
    Zstd,
}

/// A compression that is known but not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsupported {
    /// Its name.
    name: &'static str,
    /// The command that decompresses it to standard output.
    pub(super) command: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it is compressed with {}, which is not supported",
            self.name
        )
    }
}

impl std::error::Error for Unsupported {}

impl Compression {
    /// Identifies the compression by the first bytes.
    pub(super) fn of(start: &[u8]) -> Result<Self, Unsupported> {
        let unsupported = |name, command| Err(Unsupported { name, command });
        match *start {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            // The second is a skippable frame, with which a file may begin.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', ..] => unsupported("xz", "xz -dc"),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => unsupported("bzip2", "bzip2 -dc"),
            [0x04, 0x22, 0x4d, 0x18, ..] => unsupported("lz4", "lz4 -dc"),
            [b'P', b'K', 3, 4, ..] => unsupported("zip", "unzip -p"),
            [b'7', b'z', 0xbc, 0xaf, ..] => unsupported("7-Zip", "7z x -so"),
            [0x1f, 0x9d, ..] => unsupported("compress", "gzip -dc"),
            _ => Ok(Self::None),
        }
    }

    /// The name for users.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// A gzip file: any number of members one after another (RFC 1952 §2.2).
///
/// Not `MultiGzDecoder`, which reports bytes after the last member as a truncated file or an
/// invalid header, although they are neither.
pub(super) struct Gzip {
    /// The current member; `None` only while the next is opened.
    member: Option<GzDecoder<Input>>,
    /// Whether the member has ended.
    ended: bool,
    /// Whether it is not the first member and has produced nothing yet: an invalid header is then
    /// trailing garbage.
    fresh: bool,
}

impl Gzip {
    fn new(input: Input) -> Self {
        Self {
            member: Some(GzDecoder::new(input)),
            ended: false,
            fresh: false,
        }
    }

    fn input(&self) -> Option<&Input> {
        self.member.as_ref().map(GzDecoder::get_ref)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else {
                return Ok(0);
            };
            if !self.ended {
                match member.read(into) {
                    Ok(0) => self.ended = true,
                    Err(error) if self.fresh && error.kind() == io::ErrorKind::InvalidInput => {
                        return Err(garbage());
                    }
                    other => {
                        self.fresh &= other.is_err();
                        return other;
                    }
                }
            }
            let input = member.get_mut();
            let bytes = input.fill_buf()?;
            match bytes.first() {
                None => return Ok(0),
                // gzip(1) accepts zeros as padding, as on tapes.
                Some(0) => {
                    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
                    input.consume(zeros);
                }
                Some(0x1f) => {
                    let input = self.member.take().map(GzDecoder::into_inner);
                    self.member = input.map(GzDecoder::new);
                    (self.ended, self.fresh) = (false, true);
                }
                Some(_) => return Err(garbage()),
            }
        }
    }
}

/// The error for garbage after the last member.
fn garbage() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "trailing garbage behind the compressed data, all of which was read",
    )
}

/// The uncompressed bytes of an input.
pub(super) enum Stream {
    Plain(Input),
    Gzip(Box<Gzip>),
    Zstd(Box<ZstdDecoder<'static, Input>>),
}

impl Stream {
    pub(super) fn new(input: Input, compression: Compression) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Self::Plain(input),
            Compression::Gzip => Self::Gzip(Box::new(Gzip::new(input))),
            Compression::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(input)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Self::Zstd(Box::new(decoder))
            }
        })
    }

    /// Reads the next bytes; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if there are none yet. Any other error is final: a disk error, or a damaged
    /// compressed stream.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(into),
            Self::Gzip(decoder) => decoder.read(into),
            Self::Zstd(decoder) => decoder.read(into),
        }
    }

    /// As [`Input::wait`].
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        match self {
            Self::Plain(input) => input.wait(timeout),
            Self::Gzip(gzip) => gzip.input().is_none_or(|input| input.wait(timeout)),
            Self::Zstd(decoder) => decoder.get_ref().wait(timeout),
        }
    }
}
