//! Network namespaces of our own, without a name: seen by nobody, gone with their last descriptor.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::thread;

use crate::{Error, ErrorKind, Result};

/// Runs `body` in a new network namespace, which has nothing but a loopback interface that is
/// down. Its handle keeps the namespace alive. The calling thread stays where it is.
///
/// # Errors
/// `Permission` without CAP_SYS_ADMIN.
pub fn in_new<T: Send>(body: impl FnOnce() -> T + Send) -> Result<(T, OwnedFd)> {
    let what = "make a network namespace";
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .spawn_scoped(scope, || {
                // SAFETY: no memory is involved; only this thread, which ends here, is moved.
                if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                    return Err(Error::last_os(what));
                }
                let handle =
                    File::open("/proc/thread-self/ns/net").map_err(|e| Error::from_io(what, e))?;
                Ok((body(), handle.into()))
            })
            .map_err(|e| Error::from_io(what, e))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, what, "the thread panicked")))
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
            Ok(((inside, links), _handle)) => {
                assert_ne!(inside, before);
                assert!(links.iter().all(|link| !link.is_up()), "{links:?}");
                assert!(
                    links
                        .iter()
                        .any(|link| link.name == "lo" && link.index == 1)
                );
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Permission, "{e}");
                eprintln!("SKIPPED it_has_loopback_alone_and_leaves_us_where_we_are: {e}");
            }
        }
        assert_eq!(
            std::fs::read_link("/proc/thread-self/ns/net").unwrap(),
            before
        );
    }
}
