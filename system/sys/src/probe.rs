//! Tests what this process can do: each probe creates an object and drops it.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::bpf::{Map, MapSpec, MapType};
use crate::{Error, Result};

fn socket(family: i32, name: &str) -> Result<()> {
    // SAFETY: a plain system call.
    let raw = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(Error::last_os(format!("open a socket of {name}")));
    }
    // SAFETY: just returned to us, owned by nothing else.
    drop(unsafe { OwnedFd::from_raw_fd(raw) });
    Ok(())
}

/// Opens an AF_PACKET socket. Needs CAP_NET_RAW.
pub fn af_packet() -> Result<()> {
    socket(libc::AF_PACKET, "AF_PACKET")
}

/// Opens an AF_XDP socket. Needs CAP_NET_RAW; since Linux 4.18.
pub fn af_xdp() -> Result<()> {
    socket(libc::AF_XDP, "AF_XDP")
}

/// Creates a map. Needs CAP_BPF if unprivileged BPF is off, as is usual.
pub fn bpf() -> Result<()> {
    let spec = MapSpec {
        kind: MapType::Array,
        name: "probe",
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        mappable: false,
    };
    Map::create(&spec).map(drop)
}
