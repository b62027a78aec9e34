//! TAP interfaces: packets written to the descriptor arrive at the host as received from the
//! interface (`Documentation/networking/tuntap.rst`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::{Error, Result};

/// `TUNSETIFF` of `if_tun.h`.
const TUNSETIFF: u64 = 0x4004_54ca;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
/// Fail if the interface exists: another process may hold it, or keep it for later.
const IFF_TUN_EXCL: u16 = 0x8000;
/// `ARPHRD_ETHER`.
const ETHERNET: u16 = 1;

/// A TAP interface, deleted on drop and when the process dies.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// Creates an interface in this network namespace and sets it up, for packets that `of` has
    /// received: with this hardware address and MTU. It sends no packets by itself: no neighbour
    /// discovery, router solicitation or link-local address. Where the kernel filters the sources
    /// of `of` by their route back, it checks on this interface only that there is one
    /// (`rp_filter=2`), for which the interface needs an address: 192.0.0.8 (RFC 7600).
    ///
    /// # Errors
    /// `Busy` for a name in use; `Permission` without CAP_NET_ADMIN.
    pub fn create(name: &str, address: [u8; 6], mtu: u32, of: &str) -> Result<Self> {
        let what = || format!("create the TAP interface {name}");
        let failed = |error| Error::from_io(what(), error);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .map_err(|error| {
                failed(error).with_hint("the kernel module tun provides /dev/net/tun")
            })?;
        let mut request = Request::new(name);
        request.value[..2].copy_from_slice(&(IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL).to_ne_bytes());
        request.call(&file, TUNSETIFF).map_err(failed)?;
        // The kernel may have completed it: "bw%d".
        let name = &*request.name();
        let tap = Self {
            file,
            name: name.to_owned(),
        };
        let socket = control_socket().map_err(failed)?;
        let mut request = Request::new(name);
        request.value[..2].copy_from_slice(&ETHERNET.to_ne_bytes());
        request.value[2..8].copy_from_slice(&address);
        let set_address = u64::from(libc::SIOCSIFHWADDR as u32);
        request.call(&socket, set_address).map_err(failed)?;
        let mut request = Request::new(name);
        request.value[..4].copy_from_slice(&mtu.to_ne_bytes());
        let set_mtu = u64::from(libc::SIOCSIFMTU as u32);
        request.call(&socket, set_mtu).map_err(failed)?;
        tap.configure(&socket, of).map_err(failed)?;
        let mut request = Request::new(name);
        let flags = (libc::IFF_UP | libc::IFF_NOARP) as i16;
        request.value[..2].copy_from_slice(&flags.to_ne_bytes());
        let set_flags = u64::from(libc::SIOCSIFFLAGS as u32);
        request.call(&socket, set_flags).map_err(failed)?;
        Ok(tap)
    }

    /// Settings that it must have before it is up.
    fn configure(&self, socket: &UdpSocket, of: &str) -> io::Result<()> {
        let path = |family: &str, name: &str, setting: &str| {
            format!("/proc/sys/net/{family}/conf/{name}/{setting}")
        };
        // IPv6 may be off.
        for (setting, value) in [
            ("addr_gen_mode", "1"),
            ("accept_ra", "0"),
            ("router_solicitations", "0"),
        ] {
            let _ = fs::write(path("ipv6", &self.name, setting), value);
        }
        let filters = |name: &str| {
            let text = fs::read_to_string(path("ipv4", name, "rp_filter"));
            text.is_ok_and(|text| text.trim() != "0")
        };
        let is_filtered = filters("all") || filters(of);
        let value = if is_filtered { "2" } else { "0" };
        fs::write(path("ipv4", &self.name, "rp_filter"), value)?;
        if is_filtered {
            // Without an address, the kernel drops every packet whose source has another route.
            for (call, [a, b, c, d]) in [
                (libc::SIOCSIFADDR, [192, 0, 0, 8]),
                (libc::SIOCSIFNETMASK, [255, 255, 255, 255]),
            ] {
                let mut request = Request::new(&self.name);
                let family = libc::AF_INET as u16;
                request.value[..2].copy_from_slice(&family.to_ne_bytes());
                request.value[4..8].copy_from_slice(&[a, b, c, d]);
                request.call(socket, u64::from(call as u32))?;
            }
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Passes a packet to the host, from its Ethernet header on.
    ///
    /// # Errors
    /// Those of write(2): `EIO` when the interface is down, `EINVAL` for a packet without a header.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }
}

/// `struct ifreq`.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl Request {
    fn new(name: &str) -> Self {
        let mut request = Self {
            name: [0; libc::IFNAMSIZ],
            value: [0; 24],
        };
        let len = name.len().min(libc::IFNAMSIZ - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        request
    }

    fn name(&self) -> String {
        let len = self.name.iter().position(|&byte| byte == 0);
        let len = len.unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    fn call(&mut self, file: &impl AsRawFd, request: u64) -> io::Result<()> {
        let this: *mut Self = self;
        // SAFETY: `this` has the layout and length of `struct ifreq`, and lives over the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, this) };
        match result {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A socket for requests about interfaces.
fn control_socket() -> io::Result<UdpSocket> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
}
