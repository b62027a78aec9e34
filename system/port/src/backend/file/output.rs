//! The output of a capture: a file that is valid at any time, or standard output.
//!
//! Bytes are written in pieces of whole records. A piece is written with one call if possible; if
//! not (the disk is full), the file is truncated after the last whole record.
//!
//! A compressed piece is a separate gzip member, or some whole blocks of the single zstd frame: the
//! library that Wireshark reads with joins members, but stops after the first frame. A frame that
//! could not be ended as planned gets an empty last block instead (RFC 8878 §3.1.1.2), which is all
//! that is missing without a checksum.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::Duration;

use sys::create::CreateOptions;
use zstd::stream::write::Encoder as ZstdEncoder;

use super::input::Compression;

/// Level 1 of zstd and zlib: a capture must keep up with its port.
const LEVEL: u32 = 1;

/// An empty last block of a zstd frame.
const ZSTD_LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// An open output.
pub(super) struct Output {
    file: File,
    /// Number of bytes written, all in whole pieces, since it was opened.
    len: u64,
    /// Offset of the first of them, if the file can be truncated.
    base: Option<u64>,
    /// Whether it is a pipe or a socket.
    is_stream: bool,
    packer: Packer,
}

/// Compression of pieces.
enum Packer {
    None,
    Gzip(Vec<u8>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, len, .. } = self;
        f.debug_struct("Output")
            .field("file", file)
            .field("len", len)
            .finish()
    }
}

impl Output {
    /// Creates or truncates a file; `-` is standard output.
    pub(super) fn create(
        path: &Path,
        compression: Compression,
        making: CreateOptions<'_>,
    ) -> io::Result<Self> {
        let file = if path.as_os_str() == "-" {
            File::from(io::stdout().as_fd().try_clone_to_owned()?)
        } else {
            making.create(path)?
        };
        // SAFETY: a plain system call on a descriptor we own.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        // Data appended by others to the same file must not be truncated.
        let kind = file.metadata()?.file_type();
        let base = match kind.is_file() && flags & libc::O_APPEND == 0 {
            true => Some(io::Seek::stream_position(&mut &file)?),
            false => None,
        };
        let packer = match compression {
            Compression::None => Packer::None,
            Compression::Gzip => Packer::Gzip(Vec::new()),
            Compression::Zstd => Packer::Zstd(ZstdEncoder::new(Vec::new(), LEVEL as i32)?),
        };
        Ok(Self {
            file,
            len: 0,
            base,
            is_stream: kind.is_fifo() || kind.is_socket(),
            packer,
        })
    }

    /// Number of bytes written, as they are in the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has a reader that may stall: a pipe or a socket.
    pub(super) fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Gives the file to a user, so that they can read it once privileges are dropped.
    pub(super) fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        if self.base.is_none() {
            return Ok(());
        }
        std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid))
    }

    /// Writes a piece. On failure: returns how many bytes of the piece are in the file (all or none
    /// of a compressed one), which is truncated after the last whole record, as determined by
    /// `whole`.
    pub(super) fn write(
        &mut self,
        piece: &[u8],
        whole: impl Fn(&[u8]) -> usize,
    ) -> Result<(), (io::Error, usize)> {
        let packed = self.packer.pack(piece).map_err(|error| (error, 0))?;
        let Err((error, written)) = put(&self.file, packed) else {
            self.len += packed.len() as u64;
            return Ok(());
        };
        let keep = match self.packer {
            Packer::None => whole(&piece[..written]),
            _ => 0,
        };
        self.len += keep as u64;
        if let Some(base) = self.base {
            // If even this fails, the first error is still the one to report.
            let _ = self.file.set_len(base + self.len);
            if let (Packer::Zstd(_), 1..) = (&self.packer, self.len)
                && self
                    .file
                    .write_all_at(&ZSTD_LAST_BLOCK, base + self.len)
                    .is_ok()
            {
                self.len += ZSTD_LAST_BLOCK.len() as u64;
            }
        }
        Err((error, keep))
    }

    /// Ends the compressed stream: called after the last piece, unless a write failed.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let Packer::Zstd(mut encoder) = std::mem::replace(&mut self.packer, Packer::None) else {
            return Ok(());
        };
        encoder.get_mut().clear();
        let last = encoder.finish()?;
        put(&self.file, &last).map_err(|(error, _)| error)?;
        self.len += last.len() as u64;
        Ok(())
    }

    /// Closes it; some file systems report a failed write only now.
    pub(super) fn close(self) -> io::Result<()> {
        let fd = self.file.into_raw_fd();
        // SAFETY: the descriptor was ours and is closed here for good.
        if unsafe { libc::close(fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Packer {
    /// The bytes to write for a piece.
    fn pack<'p>(&'p mut self, piece: &'p [u8]) -> io::Result<&'p [u8]> {
        match self {
            Self::None => Ok(piece),
            Self::Gzip(packed) => {
                packed.clear();
                let level = flate2::Compression::new(LEVEL);
                flate2::read::GzEncoder::new(piece, level).read_to_end(packed)?;
                Ok(packed)
            }
            Self::Zstd(encoder) => {
                encoder.get_mut().clear();
                encoder.write_all(piece)?;
                // Ends the block, so that the piece is complete in the file.
                encoder.flush()?;
                Ok(encoder.get_ref())
            }
        }
    }
}

/// Writes all of `bytes`, waiting if the other side does not accept them (a non-blocking pipe).
fn put(mut file: &File, bytes: &[u8]) -> Result<usize, (io::Error, usize)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), written)),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(file, Duration::from_secs(1));
            }
            Err(error) => return Err((error, written)),
        }
    }
    Ok(written)
}

/// Sleeps until the file accepts bytes.
fn wait(file: &File, timeout: Duration) {
    let mut entry = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut entry, 1, timeout.as_millis() as libc::c_int) };
}
