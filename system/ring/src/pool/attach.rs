//! Attaches to a pool that another process created.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use sys::memfd::{self, Access, MemoryFile};
use sys::{Error, ErrorKind, Result};

use super::header::{self, HEADER_LEN};
use super::tables::Tables;
use super::{Owner, Pool};

/// Name of the operation in errors.
pub(super) const ATTACH: &str = "attach to a frame pool";

impl Pool {
    /// Returns a descriptor with which another process can [`attach`](Self::attach) to the pool.
    ///
    /// The first call decides: after `Access::Read` no process, not even root's, can get write
    /// access to the frames any more. Give write access only to a process that is trusted with the
    /// contents of all frames. It cannot access the tables in either case.
    ///
    /// # Errors
    /// `Permission` for `Access::Write` after `Access::Read`.
    pub fn share(&self, access: Access) -> Result<OwnedFd> {
        self.0.memory.share(access)
    }

    /// Maps the frames of a pool that another process has shared.
    ///
    /// At first [`Owner::Peer`] owns all frames. The owner table is this process's own: it records
    /// which frames were handed to this process, and the creator's table records which process each
    /// frame was handed to.
    ///
    /// Everything in the memory file is checked as untrusted input; its length is sealed, so that
    /// accesses cannot fault later.
    ///
    /// # Errors
    /// `InvalidInput` for a descriptor or a header that does not belong to a pool, `Unsupported`
    /// for a pool of another version, `Permission` for more access than it was shared with.
    pub fn attach(fd: OwnedFd, access: Access) -> Result<Self> {
        let measured = memfd::measure(fd.as_fd())?;
        let Some(at) = measured.len.checked_sub(HEADER_LEN) else {
            let why = "the memory file has no room for a header";
            return Err(Error::new(ErrorKind::InvalidInput, ATTACH, why));
        };
        // Read before mapping: page tables are filled only for a file of the right length.
        let file = File::from(fd);
        let mut bytes = [0; HEADER_LEN];
        file.read_exact_at(&mut bytes, at as u64)
            .map_err(|error| Error::from_io(ATTACH, error))?;
        let geometry = header::decode(&bytes, measured.len, measured.page_len)?;
        let memory = MemoryFile::open(file.into(), measured.len, access)?;
        let tables = Tables::new(geometry.frame_count, Owner::Peer)?;
        Ok(Self::over(
            memory,
            tables,
            geometry,
            access == Access::Write,
        ))
    }

    /// Whether this process may write the frames.
    pub fn is_writable(&self) -> bool {
        self.0.is_writable
    }
}
