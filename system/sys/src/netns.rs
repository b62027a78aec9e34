//! Network namespaces: unnamed ones, which are deleted when the last descriptor is closed, and the
//! original one of a thread.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::thread;

use crate::{Error, ErrorKind, Result};

/// The network namespace of the calling thread.
const OF_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace that can be entered again later.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// The calling thread's.
    ///
    /// # Errors
    /// Those of opening a file of `/proc`.
    pub fn current() -> Result<Self> {
        let file =
            File::open(OF_THREAD).map_err(|e| Error::from_io("open the network namespace", e))?;
        Ok(Self { file })
    }

    /// Runs `body` in it: on the calling thread if that is in it already, otherwise on a new
    /// thread.
    ///
    /// # Errors
    /// `Permission` where it has to be entered, without CAP_SYS_ADMIN.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        let what = "enter a network namespace";
        let id = |file: &File| file.metadata().map(|data| (data.dev(), data.ino()));
        let here = Self::current()?;
        let is_here = match (id(&here.file), id(&self.file)) {
            (Ok(here), Ok(there)) => here == there,
            (Err(error), _) | (_, Err(error)) => return Err(Error::from_io(what, error)),
        };
        if is_here {
            return Ok(body());
        }
        on_a_thread(what, || {
            // SAFETY: no memory is involved; only this thread, which ends here, is moved.
            if unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                return Err(Error::last_os(what));
            }
            Ok(body())
        })
    }
}

fn on_a_thread<T: Send>(what: &str, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .spawn_scoped(scope, body)
            .map_err(|e| Error::from_io(what, e))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, what, "the thread panicked")))
    })
}

/// Runs `body` in a new network namespace, which has only a loopback interface that is down. The
/// namespace exists as long as its handle. The calling thread stays in its own namespace.
///
/// # Errors
/// `Permission` without CAP_SYS_ADMIN.
pub fn in_new<T: Send>(body: impl FnOnce() -> T + Send) -> Result<(T, OwnedFd)> {
    let what = "create a network namespace";
    on_a_thread(what, || {
        // SAFETY: no memory is involved; only this thread, which ends here, is moved.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return Err(Error::last_os(what));
        }
        let handle = File::open(OF_THREAD).map_err(|e| Error::from_io(what, e))?;
        Ok((body(), handle.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;

    #[test]
    fn it_has_loopback_alone_and_leaves_us_where_we_are() {
        let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        match in_new(|| {
            let links = Link::all().unwrap();
            (
                std::fs::read_link("/proc/thread-self/ns/net").unwrap(),
                links,
            )
        }) {
            Ok(((inside, links), handle)) => {
                assert_ne!(inside, before);
                assert!(links.iter().all(|link| !link.is_up()), "{links:?}");
                assert!(
                    links
                        .iter()
                        .any(|link| link.name == "lo" && link.index == 1)
                );
                let there = Namespace {
                    file: File::from(handle),
                };
                let again = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
                assert_eq!(there.run(again).unwrap(), inside);
                assert_eq!(Namespace::current().unwrap().run(again).unwrap(), before);
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Permission, "{e}");
                skip::record("it_has_loopback_alone_and_leaves_us_where_we_are", e);
            }
        }
        assert_eq!(
            std::fs::read_link("/proc/thread-self/ns/net").unwrap(),
            before
        );
    }
}
