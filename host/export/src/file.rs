//! Files: messages one behind the other (RFC 5655 §7), lines of text as they are.
//!
//! A file is whole at any time: when the disk is full, the message that did not fit is taken back,
//! and those that come later are tried again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use sys::{Error, ErrorKind, Result};

use crate::sink::{Sent, Sink};
use crate::target::{Place, Target};

/// Messages are gathered up to here before they are written.
struct Whole {
    file: File,
    /// Bytes of whole messages.
    len: u64,
    /// Of a pipe or a terminal nothing can be taken back.
    is_regular: bool,
}

/// The destination of a target. The file is made here: before rights are given up, and so that a
/// wrong path is told at once.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let Place::Path(path) = &target.place else {
        let what = format!("export to {:?}", target.text);
        return Err(Error::new(
            ErrorKind::InvalidInput,
            what,
            "a path is wanted",
        ));
    };
    let is_stdout = path == &PathBuf::from("-");
    let opened = if is_stdout {
        // A descriptor of its own: nobody else's buffer is in between.
        use std::os::fd::AsFd;
        io::stdout().as_fd().try_clone_to_owned().map(File::from)
    } else {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).open(path)
    };
    let file = opened.map_err(|e| Error::from_io(format!("write {}", path.display()), e))?;
    let kind = file
        .metadata()
        .map_err(|e| Error::from_io(format!("write {}", path.display()), e))?;
    Ok(Box::new(Whole {
        is_regular: kind.is_file() && !is_stdout,
        file,
        len: 0,
    }))
}

impl Sink for Whole {
    fn connect(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        match self.file.write_all(message) {
            Ok(()) => {
                self.len += message.len() as u64;
                Sent::Done
            }
            Err(error) => match self.take_back() {
                Ok(()) => Sent::Lost(error),
                Err(worse) => Sent::Lost(worse),
            },
        }
    }

    fn close(&mut self) -> io::Result<()> {
        if self.is_regular {
            self.file.sync_data()
        } else {
            Ok(())
        }
    }
}

impl Whole {
    /// Cuts what was written of a message.
    fn take_back(&mut self) -> io::Result<()> {
        use std::io::Seek;
        if !self.is_regular {
            return Ok(());
        }
        self.file.set_len(self.len)?;
        self.file.seek(io::SeekFrom::Start(self.len))?;
        Ok(())
    }
}
