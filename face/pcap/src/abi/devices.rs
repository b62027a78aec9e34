//! The list of devices.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr::null_mut;

use runtime::cluster;
use sys::link::Link;

use super::raw::{free, put_error};
use crate::failure::ERROR;
use sys::boundary::guard;

/// `PCAP_IF_WIRELESS`.
const WIRELESS: u32 = 8;
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

/// A copy of a socket address, allocated with malloc; null for null.
///
/// # Safety
/// Null, or an address that is as long as its family says.
unsafe fn socket_address(from: *const libc::sockaddr) -> *mut libc::sockaddr_storage {
    // SAFETY: the caller's promise; the storage is large enough for each of them.
    unsafe {
        let Some(family) = from.as_ref().map(|from| c_int::from(from.sa_family)) else {
            return null_mut();
        };
        let len = match family {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            libc::AF_PACKET => size_of::<libc::sockaddr_ll>(),
            _ => size_of::<libc::sockaddr>(),
        };
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let to = (&raw mut storage).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, len);
        place(storage)
    }
}

/// The addresses of all interfaces (getifaddrs(3)).
struct Addresses(*mut libc::ifaddrs);

impl Addresses {
    fn new() -> Self {
        let mut first = null_mut();
        // SAFETY: a place for the list.
        match unsafe { libc::getifaddrs(&raw mut first) } {
            0 => Self(first),
            _ => Self(null_mut()),
        }
    }

    /// Copies those of an interface.
    fn of(&self, interface: &str) -> *mut Address {
        let mut first: *mut Address = null_mut();
        let mut last = null_mut::<Address>();
        let mut at = self.0;
        // SAFETY: the list is alive, and its pointers are null or to what their names say.
        while let Some(entry) = unsafe { at.as_ref() } {
            at = entry.ifa_next;
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes();
            // The name may be that of an alias: `eth0:1`.
            let name = name.split(|byte| *byte == b':').next().unwrap_or_default();
            if name != interface.as_bytes() || entry.ifa_addr.is_null() {
                continue;
            }
            let has = |flag: c_int| entry.ifa_flags & flag as c_uint != 0;
            let other = |flag| match has(flag) {
                // SAFETY: as above.
                true => unsafe { socket_address(entry.ifa_ifu) },
                false => null_mut(),
            };
            // SAFETY: as above.
            let (address, netmask) = unsafe {
                let address = socket_address(entry.ifa_addr);
                (address, socket_address(entry.ifa_netmask))
            };
            let new = place(Address {
                next: null_mut(),
                address,
                netmask,
                broadcast: other(libc::IFF_BROADCAST),
                destination: other(libc::IFF_POINTOPOINT),
            });
            // SAFETY: null or the previous one of this list.
            match unsafe { last.as_mut() } {
                Some(last) => last.next = new,
                None => first = new,
            }
            last = new;
        }
        first
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: a list of getifaddrs, which nothing refers to.
            unsafe { libc::freeifaddrs(self.0) };
        }
    }
}

fn flags(link: &Link) -> u32 {
    let is_loopback = link.flags & libc::IFF_LOOPBACK as u32 != 0;
    let status = match (is_loopback, link.is_running()) {
        (true, _) => NOT_APPLICABLE,
        (false, true) => CONNECTED,
        (false, false) => DISCONNECTED,
    };
    let mut flags = status;
    let wireless = format!("/sys/class/net/{}/wireless", link.name);
    for (is_set, flag) in [
        (is_loopback, LOOPBACK),
        (link.is_up(), UP),
        (link.is_running(), RUNNING),
        (std::path::Path::new(&wireless).exists(), WIRELESS),
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
        let all = Addresses::new();
        let mut first = null_mut();
        let mut any = Some(any);
        let queues = cluster::openable();
        let mut push = |mut device: Device| {
            device.next = first;
            first = place(device);
        };
        // The list grows at its start: what barewire adds comes last.
        for queue in queues.iter().rev() {
            push(Device {
                next: null_mut(),
                name: text(&queue.port),
                description: text(&queue.description),
                addresses: null_mut(),
                flags: UP | RUNNING | NOT_APPLICABLE,
            });
        }
        for link in links.iter().rev() {
            if is_before(link)
                && let Some(any) = any.take()
            {
                push(any);
            }
            push(Device {
                next: null_mut(),
                name: text(&link.name),
                description: null_mut(),
                addresses: all.of(&link.name),
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
                free((*this).broadcast);
                free((*this).destination);
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
