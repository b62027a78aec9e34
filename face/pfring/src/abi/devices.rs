//! The list of devices.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr::null_mut;

use sys::boundary::guard;
use sys::link::Link;

/// `pfring_if_t`.
#[repr(C)]
pub struct Interface {
    name: *mut c_char,
    system_name: *mut c_char,
    module: *mut c_char,
    module_version: *mut c_char,
    serial: *mut c_char,
    mac: [u8; 6],
    /// Domain, bus, device and function on the PCI bus.
    bus: [c_int; 4],
    if_index: c_int,
    /// 1 if it is up.
    status: c_int,
    /// 1: valid.
    license: c_int,
    license_expiration: libc::time_t,
    next: *mut Interface,
}

/// A text allocated with malloc, as the program would free it.
fn text(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: it ends with a zero.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// The place of a card on the PCI bus, from the name of its folder (`0000:03:00.0`); zeros for an
/// interface without one.
fn bus_of(interface: &str) -> [c_int; 4] {
    let link = Path::new("/sys/class/net").join(interface).join("device");
    let target = std::fs::canonicalize(link).unwrap_or_default();
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    bus(&name).unwrap_or_default()
}

fn bus(name: &str) -> Option<[c_int; 4]> {
    let (rest, function) = name.split_once('.')?;
    let mut parts = rest.split(':').chain([function]);
    let mut bus = [0; 4];
    for number in &mut bus {
        *number = c_int::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(bus)
}

/// A list of the interfaces, and of the queues of clusters that nobody reads; null if there is
/// none. It is freed by [`pfring_freealldevs`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_findalldevs() -> *mut Interface {
    guard(null_mut(), || {
        let mut first = null_mut();
        // The list grows at its start.
        let queues = runtime::cluster::openable();
        for queue in queues.iter().rev() {
            first = push(first, &queue_name(&queue.port), "pf_ring-zc", None);
        }
        for link in Link::all().unwrap_or_default().iter().rev() {
            first = push(first, &link.name, "pf_ring", Some(link));
        }
        first
    })
}

/// The name of a queue as PF_RING writes it (`zc:99@3`), where its cluster has a number.
fn queue_name(port: &str) -> String {
    let parts = port.strip_prefix("ring:").and_then(|it| it.split_once('/'));
    match parts {
        Some((cluster, queue)) if cluster.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("zc:{cluster}@{queue}")
        }
        _ => port.to_owned(),
    }
}

fn push(next: *mut Interface, name: &str, module: &str, link: Option<&Link>) -> *mut Interface {
    let address = link.and_then(|link| link.address.first_chunk().copied());
    Box::into_raw(Box::new(Interface {
        name: text(name),
        system_name: link.map_or(null_mut(), |link| text(&link.name)),
        module: text(module),
        module_version: text(concat!("barewire ", env!("CARGO_PKG_VERSION"))),
        serial: null_mut(),
        mac: address.unwrap_or_default(),
        bus: link.map_or([0; 4], |link| bus_of(&link.name)),
        if_index: link.map_or(0, |link| link.index.cast_signed()),
        status: link.map_or(1, |link| link.is_up().into()),
        license: 1,
        license_expiration: 0,
        next,
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_freealldevs(list: *mut Interface) {
    guard((), || {
        let mut next = list;
        while !next.is_null() {
            // SAFETY: a list of pfring_findalldevs, which nothing uses any more.
            unsafe {
                let device = Box::from_raw(next);
                next = device.next;
                for text in [
                    device.name,
                    device.system_name,
                    device.module,
                    device.module_version,
                ] {
                    libc::free(text.cast());
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_found_on_its_bus() {
        assert_eq!(bus("0000:03:00.0"), Some([0, 3, 0, 0]));
        assert_eq!(bus("0001:af:1f.7"), Some([1, 0xaf, 0x1f, 7]));
        for name in [
            "",
            "virtio0",
            "0000:03:00",
            "0000:03:00:01.0",
            "0000:zz:00.0",
        ] {
            assert_eq!(bus(name), None, "{name}");
        }
        assert_eq!(bus_of("no-such-interface"), [0; 4]);
    }

    #[test]
    fn queues_have_the_names_of_pf_ring() {
        assert_eq!(queue_name("ring:99/3"), "zc:99@3");
        assert_eq!(queue_name("ring:ids/0"), "ring:ids/0");
        assert_eq!(size_of::<Interface>(), 96);
        // SAFETY: the list is used before it is freed.
        unsafe {
            let list = pfring_findalldevs();
            let mut names = Vec::new();
            let mut at = list;
            while let Some(device) = at.as_ref() {
                names.push(std::ffi::CStr::from_ptr(device.name).to_owned());
                at = device.next;
            }
            assert!(
                names.iter().any(|name| name.as_c_str() == c"lo"),
                "{names:?}"
            );
            pfring_freealldevs(list);
            pfring_freealldevs(null_mut());
        }
    }
}
