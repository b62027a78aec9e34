//! Files: consecutive messages (RFC 5655 §7), or lines of text unchanged; or rotated files, each of
//! which appears when it is complete.
//!
//! A file always ends with a whole message: when the disk is full, a message that did not fit is
//! removed again, and later ones are tried.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sys::create::CreateOptions;
use sys::{Error, ErrorKind, Result};

use crate::packing::Packing;
use crate::part::Part;
use crate::rotation::{Pattern, Rotation};
use crate::sink::{Sent, Sink};
use crate::target::{Place, Target};
use crate::worker::now_ns;

/// A single file.
struct Whole {
    file: File,
    packing: Packing,
    packed: Vec<u8>,
    /// Bytes of whole messages.
    len: u64,
    /// Nothing can be removed from a pipe or a terminal.
    is_regular: bool,
    is_stdout: bool,
    /// The error with which standard output failed.
    over: Option<io::ErrorKind>,
}

/// Opens the destination of a target. The file is created here: before privileges are dropped, and
/// so that a wrong path is reported at once.
pub(crate) fn open(target: &Target) -> Result<Box<dyn Sink>> {
    let what = || format!("export to {:?}", target.text);
    let invalid = |why: String| Error::new(ErrorKind::InvalidInput, what(), why);
    let Place::Path(path) = &target.place else {
        return Err(invalid("a path is required".into()));
    };
    if let Some(why) = Packing::refusal(path) {
        return Err(invalid(why.into()));
    }
    let packing = Packing::of(path);
    if target.options.rotation.is_some() {
        let pattern = path.to_str().map(Pattern::parse);
        let pattern = pattern.unwrap_or_else(|| Err("the file name is not UTF-8".into()));
        let rotating = Rotating {
            rotation: target.options.rotation,
            pattern: pattern.map_err(invalid)?,
            packing,
            packed: Vec::new(),
            part: None,
            number: 0,
        };
        // Checks that the first file can be created; it is deleted at once.
        let first = rotating.pattern.name(now_ns(), 1);
        Part::create(&first)
            .map_err(|e| Error::from_io(format!("write {}", first.display()), e))?;
        return Ok(Box::new(rotating));
    }
    open_one(path, packing)
}

fn open_one(path: &Path, packing: Packing) -> Result<Box<dyn Sink>> {
    let is_stdout = path == Path::new("-");
    let opened = if is_stdout {
        // Its own descriptor, without another buffer.
        use std::os::fd::AsFd;
        io::stdout().as_fd().try_clone_to_owned().map(File::from)
    } else {
        CreateOptions::BY_UMASK.create(path)
    };
    let file = opened.map_err(|e| Error::from_io(format!("write {}", path.display()), e))?;
    let kind = file
        .metadata()
        .map_err(|e| Error::from_io(format!("write {}", path.display()), e))?;
    Ok(Box::new(Whole {
        is_regular: kind.is_file() && !is_stdout,
        is_stdout,
        over: None,
        file,
        packing,
        packed: Vec::new(),
        len: 0,
    }))
}

impl Sink for Whole {
    fn connect(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        let bytes = match self.packing {
            Packing::Plain => message,
            packing => match packing.pack(message, &mut self.packed) {
                Ok(()) => &self.packed,
                Err(error) => return Sent::Lost(error),
            },
        };
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Sent::Done
            }
            Err(error) => {
                self.over = self.is_stdout.then(|| error.kind());
                match self.take_back() {
                    Ok(()) => Sent::Lost(error),
                    Err(worse) => Sent::Lost(worse),
                }
            }
        }
    }

    fn over(&self) -> Option<io::ErrorKind> {
        self.over
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
    /// Removes what was written of a message.
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

/// Rotated files.
struct Rotating {
    rotation: Rotation,
    pattern: Pattern,
    packing: Packing,
    packed: Vec<u8>,
    /// The current file, and when it was started.
    part: Option<(Part, u64)>,
    /// Number of files started.
    number: u64,
}

impl Sink for Rotating {
    fn connect(&mut self) -> io::Result<()> {
        let time_ns = now_ns();
        let path: PathBuf = self.pattern.name(time_ns, self.number + 1);
        self.part = Some((Part::create(&path)?, time_ns));
        self.number += 1;
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Sent {
        let Some((part, _)) = &mut self.part else {
            return Sent::Broken(io::ErrorKind::NotConnected.into());
        };
        let packed = &mut self.packed;
        let packing = self.packing;
        match packing
            .pack(message, packed)
            .and_then(|()| part.append(packed))
        {
            Ok(()) => Sent::Done,
            Err(error) => Sent::Lost(error),
        }
    }

    fn is_staged(&self) -> bool {
        true
    }

    fn is_due(&self, now_ns: u64) -> bool {
        let part = self.part.as_ref();
        part.is_some_and(|(part, began_ns)| self.rotation.is_due(*began_ns, now_ns, part.len()))
    }

    fn close(&mut self) -> io::Result<()> {
        match self.part.take() {
            Some((part, _)) => part.complete().map(|_| ()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
