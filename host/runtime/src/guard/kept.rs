//! A program that stays attached when the process is killed, on request: its link has a name in the
//! BPF file system.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use sys::{Error, ErrorKind, Result};
use xdp::GuardLink;

use super::iptables::pinned::{FOLDER, namespace};

/// The name of the link, removed on drop.
#[derive(Debug)]
pub(super) struct Kept {
    path: String,
    /// Held as long as the process lives.
    _owner: UnixDatagram,
}

impl Kept {
    /// Gives the link its name.
    ///
    /// # Errors
    /// `Busy` if the link of another process has it.
    pub fn keep(interface: &str, link: &GuardLink) -> Result<Self> {
        let owner = own(interface)?;
        let path = path(interface)?;
        link.pin(&path).map_err(|error| {
            let hint = format!("mount the BPF file system: mount -t bpf bpf {FOLDER}");
            error.with_hint(hint)
        })?;
        Ok(Self {
            path,
            _owner: owner,
        })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = xdp::remove_pinned(&self.path);
    }
}

/// The directory with the names of links.
pub fn folder() -> &'static Path {
    Path::new(FOLDER)
}

/// Detaches the program that a killed process has left on an interface. Returns whether there was
/// one.
///
/// # Errors
/// `Busy` if the process still runs; those of the file system.
pub fn remove(interface: &str) -> Result<bool> {
    let path = path(interface)?;
    if !Path::new(&path).exists() {
        return Ok(false);
    }
    let _owner = own(interface)?;
    xdp::remove_pinned(&path)
}

fn path(interface: &str) -> Result<String> {
    // The file system has no names with dots, and no interface has a colon in its name.
    let interface = interface.replace('.', ":");
    Ok(format!(
        "{FOLDER}/bwguard-{}-link-{interface}",
        namespace()?
    ))
}

/// A name that only one process of the namespace can have.
fn own(interface: &str) -> Result<UnixDatagram> {
    let name = format!("barewire guard keep {interface}");
    let address = SocketAddr::from_abstract_name(name);
    let bound = address.and_then(|address| UnixDatagram::bind_addr(&address));
    bound.map_err(|error| {
        let what = format!("guard {interface}");
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let why = "another barewire guard keeps its program there";
                Error::new(ErrorKind::Busy, what, why).with_hint("stop it first")
            }
            _ => Error::from_io(what, error),
        }
    })
}
