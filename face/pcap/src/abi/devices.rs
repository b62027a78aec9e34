//! Devices: their list, and their networks.

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::IpAddr;
use std::ptr::null_mut;

use sys::address::InterfaceAddress;
use sys::link::Link;

use super::raw::{bytes, free, put_error};
use crate::failure::ERROR;
use sys::boundary::guard;

/// `PCAP_IF_LOOPBACK`, `PCAP_IF_UP`, `PCAP_IF_RUNNING`.
const LOOPBACK: u32 = 1;
const UP: u32 = 2;
const RUNNING: u32 = 4;
/// `PCAP_IF_CONNECTION_STATUS_` of interfaces with and without carrier, and where it does not
/// apply.
const CONNECTED: u32 = 0x10;
const DISCONNECTED: u32 = 0x20;
const NOT_APPLICABLE: u32 = 0x30;

/// `struct pcap_if`.
#[repr(C)]
pub struct Device {
    next: *mut Device,
    name: *mut c_char,
    description: *mut c_char,
    addresses: *mut Address,
    flags: u32,
}

/// `struct pcap_addr`.
#[repr(C)]
pub struct Address {
    next: *mut Address,
    address: *mut libc::sockaddr_storage,
    netmask: *mut libc::sockaddr_storage,
    broadcast: *mut libc::sockaddr_storage,
    destination: *mut libc::sockaddr_storage,
}

/// Allocates a value with malloc; null if there is none.
fn place<T>(value: T) -> *mut T {
    // SAFETY: room for the value.
    unsafe {
        let memory = libc::malloc(size_of::<T>()).cast::<T>();
        if !memory.is_null() {
            memory.write(value);
        }
        memory
    }
}

fn text(text: &str) -> *mut c_char {
    match CString::new(text) {
        // SAFETY: it ends with a zero.
        Ok(text) => unsafe { libc::strdup(text.as_ptr()) },
        Err(_) => null_mut(),
    }
}

/// A socket address allocated with malloc; port and scope are 0.
fn socket_address(address: IpAddr) -> *mut libc::sockaddr_storage {
    // SAFETY: all zeros is such an address, which is large enough for both kinds.
    unsafe {
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let to = &raw mut storage;
        match address {
            IpAddr::V4(address) => {
                let to = &mut *to.cast::<libc::sockaddr_in>();
                to.sin_family = libc::AF_INET as u16;
                to.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
            }
            IpAddr::V6(address) => {
                let to = &mut *to.cast::<libc::sockaddr_in6>();
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_addr.s6_addr = address.octets();
            }
        }
        place(storage)
    }
}

fn netmask(address: &InterfaceAddress) -> IpAddr {
    let len = u32::from(address.prefix_len);
    match address.addr {
        IpAddr::V4(_) => IpAddr::V4(u32::MAX.checked_shl(32 - len.min(32)).unwrap_or(0).into()),
        IpAddr::V6(_) => IpAddr::V6(
            u128::MAX
                .checked_shl(128 - len.min(128))
                .unwrap_or(0)
                .into(),
        ),
    }
}

fn addresses(of: &[InterfaceAddress]) -> *mut Address {
    let mut first = null_mut();
    for address in of.iter().rev() {
        first = place(Address {
            next: first,
            address: socket_address(address.addr),
            netmask: socket_address(netmask(address)),
            broadcast: null_mut(),
            destination: null_mut(),
        });
    }
    first
}

fn flags(link: &Link) -> u32 {
    let is_loopback = link.flags & libc::IFF_LOOPBACK as u32 != 0;
    let status = match (is_loopback, link.is_running()) {
        (true, _) => NOT_APPLICABLE,
        (false, true) => CONNECTED,
        (false, false) => DISCONNECTED,
    };
    let mut flags = status;
    for (is_set, flag) in [
        (is_loopback, LOOPBACK),
        (link.is_up(), UP),
        (link.is_running(), RUNNING),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    flags
}

/// The interfaces, those that are up first and loopback last.
fn links() -> sys::Result<Vec<Link>> {
    let mut links = Link::all()?;
    links.sort_by_key(|link| {
        let flags = flags(link);
        (flags & UP == 0, flags & RUNNING == 0, flags & LOOPBACK != 0)
    });
    Ok(links)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_findalldevs(list: *mut *mut Device, errors: *mut c_char) -> c_int {
    guard(ERROR, || {
        // SAFETY: null or a place for the list.
        let Some(list) = (unsafe { list.as_mut() }) else {
            return ERROR;
        };
        *list = null_mut();
        let links = match links() {
            Ok(links) => links,
            Err(error) => {
                // SAFETY: the buffer that pcap.h asks for.
                unsafe { put_error(errors, &error.to_string()) };
                return ERROR;
            }
        };
        let any = Device {
            next: null_mut(),
            name: text("any"),
            description: text("Pseudo-device that captures on all interfaces"),
            addresses: null_mut(),
            flags: UP | RUNNING | NOT_APPLICABLE,
        };
        // `any` comes before interfaces that are down and before loopback, as in the original.
        let is_before = |link: &Link| flags(link) & (UP | RUNNING | LOOPBACK) == UP | RUNNING;
        let mut first = null_mut();
        let mut any = Some(any);
        let mut push = |mut device: Device| {
            device.next = first;
            first = place(device);
        };
        for link in links.iter().rev() {
            if is_before(link)
                && let Some(any) = any.take()
            {
                push(any);
            }
            let found = sys::address::of(link.index).unwrap_or_default();
            push(Device {
                next: null_mut(),
                name: text(&link.name),
                description: null_mut(),
                addresses: addresses(&found),
                flags: flags(link),
            });
        }
        any.map(push);
        *list = first;
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_freealldevs(list: *mut Device) {
    let mut device = list;
    while !device.is_null() {
        // SAFETY: a list from pcap_findalldevs, each part of it from malloc.
        unsafe {
            let mut address = (*device).addresses;
            while !address.is_null() {
                let this = address;
                address = (*this).next;
                free((*this).address);
                free((*this).netmask);
                free(this);
            }
            let this = device;
            device = (*this).next;
            free((*this).name);
            free((*this).description);
            free(this);
        }
    }
}

thread_local! {
    static FIRST: std::cell::RefCell<CString> = std::cell::RefCell::default();
}

/// The first device that is not loopback. The text is valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_lookupdev(errors: *mut c_char) -> *mut c_char {
    guard(null_mut(), || {
        if super::open::is_initialized() {
            let text = "pcap_lookupdev() is deprecated and is not supported in programs calling \
                        pcap_init()";
            // SAFETY: the buffer that pcap.h asks for.
            unsafe { put_error(errors, text) };
            return null_mut();
        }
        let links = links().unwrap_or_default();
        let first = links
            .iter()
            .find(|link| flags(link) & (UP | LOOPBACK) == UP);
        match first.and_then(|link| CString::new(link.name.as_str()).ok()) {
            Some(name) => FIRST.with_borrow_mut(|first| {
                *first = name;
                first.as_ptr().cast_mut()
            }),
            None => {
                // SAFETY: the buffer that pcap.h asks for.
                unsafe { put_error(errors, "no suitable device found") };
                null_mut()
            }
        }
    })
}

/// Network and mask of a device's first IPv4 address, in network byte order.
fn network(device: &CStr) -> Result<(u32, u32), String> {
    let name = device.to_string_lossy();
    // barewire's names have a scheme before the interface, and a queue after it.
    let name = name.rsplit(':').next().unwrap_or_default();
    let name = name.split(['/', '?']).next().unwrap_or_default();
    if name == "any" {
        return Ok((0, 0));
    }
    let link = Link::by_name(name).map_err(|error| error.to_string())?;
    let found = sys::address::of(link.index).map_err(|error| error.to_string())?;
    let first = found
        .iter()
        .find_map(|address| match (address.addr, netmask(address)) {
            (IpAddr::V4(addr), IpAddr::V4(mask)) => {
                Some((addr.to_bits() & mask.to_bits(), mask.to_bits()))
            }
            _ => None,
        });
    let (network, mask) = first.ok_or_else(|| format!("{name}: no IPv4 address assigned"))?;
    Ok((network.to_be(), mask.to_be()))
}

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
                Some(_) => network(CStr::from_ptr(device)),
                None => Ok((0, 0)),
            };
            let (network, mask) = *found.as_ref().unwrap_or(&(0, 0));
            if let (Some(to), Some(mask_to)) = (network_place.as_mut(), mask_place.as_mut()) {
                (*to, *mask_to) = (network, mask);
            }
            match found {
                Ok(_) => 0,
                Err(text) => {
                    put_error(errors, &text);
                    ERROR
                }
            }
        }
    })
}
