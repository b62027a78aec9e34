//! The network of a device: `pcap_lookupnet`.

use std::ffi::{c_char, c_int};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;

use port::BACKENDS;

use super::raw::{bytes, put_error};
use crate::failure::{ERROR, system_text};
use sys::boundary::guard;

/// The interface of a device, by which the kernel is asked; `None` for a device that has no
/// network: `any`, other kinds of devices, and ports that are not interfaces.
fn interface(device: &str) -> Option<&str> {
    // As the original: these words anywhere in the name.
    if device == "any" || device.contains("bluetooth") || device.contains("usbmon") {
        return None;
    }
    // barewire's names have a scheme before the interface, and a queue or options after it.
    let (scheme, rest) = device.split_once(':').unwrap_or_default();
    if !BACKENDS.iter().any(|row| row.scheme == scheme) {
        return Some(device);
    }
    let name = rest.split(['/', '?']).next().unwrap_or_default();
    let is_interface = matches!(scheme, "afpacket" | "afxdp" | "xdplive");
    (is_interface && name != "any").then_some(name)
}

/// Asks the kernel for an address of an interface, by ioctl(2): it also knows labels of addresses
/// (`eth0:1`).
fn ask(socket: &UdpSocket, code: u64, interface: &str) -> std::io::Result<u32> {
    // SAFETY: a structure of numbers and bytes.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // Truncated to what the kernel's names can be, with a zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: a request with a name and room for an address.
    unsafe {
        request.ifr_ifru.ifru_addr.sa_family = libc::AF_INET as libc::sa_family_t;
        if libc::ioctl(socket.as_raw_fd(), code, &raw mut request) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let address = (&raw const request.ifr_ifru.ifru_addr).cast::<libc::sockaddr_in>();
        Ok(u32::from_be((*address).sin_addr.s_addr))
    }
}

/// The netmask of the time before there were any: by the first bits of the address.
fn mask_of_class(address: u32) -> Option<u32> {
    match address.leading_ones() {
        0 => Some(0xff00_0000),
        1 => Some(0xffff_0000),
        2 => Some(0xffff_ff00),
        _ => None,
    }
}

/// Network and mask of a device's first IPv4 address.
fn network(device: &str) -> Result<(u32, u32), String> {
    let Some(interface) = interface(device) else {
        return Ok((0, 0));
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let socket = socket.map_err(|error| format!("socket: {}", text(&error)))?;
    let failed = |name: &str, error: &std::io::Error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => format!("{device}: no IPv4 address assigned"),
        _ => format!("{name}: {device}: {}", text(error)),
    };
    let address = ask(&socket, libc::SIOCGIFADDR, interface);
    let address = address.map_err(|error| failed("SIOCGIFADDR", &error))?;
    let mask = ask(&socket, libc::SIOCGIFNETMASK, interface);
    let mask = match mask.map_err(|error| failed("SIOCGIFNETMASK", &error))? {
        0 => mask_of_class(address).ok_or(format!("inet class for 0x{address:x} unknown"))?,
        mask => mask,
    };
    Ok((address & mask, mask))
}

fn text(error: &std::io::Error) -> String {
    system_text(error.raw_os_error().unwrap_or(0))
}

/// Stores network and mask in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupnet(
    device: *const c_char,
    network_place: *mut u32,
    mask_place: *mut u32,
    errors: *mut c_char,
) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a text and places for the numbers; the buffer that pcap.h asks for.
        unsafe {
            let found = match bytes(device) {
                Some(device) => network(&String::from_utf8_lossy(device)),
                None => Ok((0, 0)),
            };
            match found {
                Ok((network, mask)) => {
                    let places = (network_place.as_mut(), mask_place.as_mut());
                    if let (Some(network_to), Some(mask_to)) = places {
                        (*network_to, *mask_to) = (network.to_be(), mask.to_be());
                    }
                    0
                }
                // The places stay as they are.
                Err(text) => {
                    put_error(errors, &text);
                    ERROR
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_interfaces() {
        for (device, expected) in [
            ("lo", Some("lo")),
            ("lo:1", Some("lo:1")),
            ("afpacket:lo", Some("lo")),
            ("afxdp:lo/2?attach=generic", Some("lo")),
            ("afpacket:", Some("")),
            ("nosuch:lo", Some("nosuch:lo")),
            (":1", Some(":1")),
            ("any", None),
            ("afpacket:any", None),
            ("ring:ids/0", None),
            ("file:lo", None),
            ("usbmon3", None),
            ("bluetooth-monitor", None),
        ] {
            assert_eq!(interface(device), expected, "{device}");
        }
        // In a new network namespace, `lo` has no address.
        for device in ["lo", "afpacket:lo"] {
            let unassigned = Err(format!("{device}: no IPv4 address assigned"));
            let found = network(device);
            let is_right = found == Ok((0x7f00_0000, 0xff00_0000)) || found == unassigned;
            assert!(is_right, "{device}: {found:?}");
        }
        let text = |device| network(device).unwrap_err();
        assert_eq!(text("afpacket:"), "SIOCGIFADDR: afpacket:: No such device");
        assert_eq!(
            text("afpacket:no9"),
            "SIOCGIFADDR: afpacket:no9: No such device"
        );
        assert_eq!(text("lo:9"), "lo:9: no IPv4 address assigned");
        for (address, mask) in [
            (0x0a00_0001, Some(0xff00_0000)),
            (0xac10_0001, Some(0xffff_0000)),
            (0xc000_0201, Some(0xffff_ff00)),
            (0xe000_0001, None),
        ] {
            assert_eq!(mask_of_class(address), mask);
        }
    }
}
