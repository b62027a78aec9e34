//! Settings, filters, clusters.

use std::ffi::{c_char, c_int};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;

use sys::boundary::guard;
use sys::packet::PacketSocket;

use super::{bytes, with};
use crate::ring::Ring;
use crate::settings::{ANY_VLAN, Mode, Wanted};
use crate::status::{GENERIC, INVALID_ARGUMENT, NOT_SUPPORTED};

/// `MAX_CLUSTER_QUEUES`.
const CLUSTER_QUEUE_COUNT_MAX: u16 = 64;
/// Identifiers of VLANs are smaller.
const VLAN_COUNT: u16 = 4096;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_direction(ring: *mut Ring, direction: c_int) -> c_int {
    let body = |ring: &Ring| {
        ring.set_wanted(match direction {
            0 => Wanted::Both,
            1 => Wanted::Received,
            2 => Wanted::Sent,
            _ => return Err(INVALID_ARGUMENT),
        })?;
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_socket_mode(ring: *mut Ring, mode: c_int) -> c_int {
    let body = |ring: &Ring| {
        let mode = match mode {
            0 => Mode::Both,
            1 => Mode::Send,
            2 => Mode::Receive,
            // `management_only_mode`, since PF_RING 8.4.
            3 => Mode::Manage,
            _ => return Err(INVALID_ARGUMENT),
        };
        ring.set(|settings| settings.mode = mode)?;
        ring.visible.set_mode(mode);
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_cluster(ring: *mut Ring, cluster: u32, kind: c_int) -> c_int {
    let kind = u32::try_from(kind).unwrap_or(u32::MAX);
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.set_cluster(cluster, kind).map(|()| 0)) }
}

/// A ring leaves its cluster when it is closed or disabled; before it is enabled it is in none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_from_cluster(ring: *mut Ring) -> c_int {
    let body = |ring: &Ring| ring.set(|settings| settings.cluster = None);
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| body(ring).map(|()| 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_bpf_filter(ring: *mut Ring, text: *const c_char) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a text.
        let text = unsafe { bytes(text) }.ok_or(INVALID_ARGUMENT)?;
        let text = std::str::from_utf8(text).map_err(|_| INVALID_ARGUMENT)?;
        ring.set_filter(Some(text)).map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_bpf_filter(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |ring| ring.set_filter(None).map(|()| 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_application_name(
    ring: *mut Ring,
    name: *const c_char,
) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a text.
        ring.set_application(unsafe { bytes(name) }.ok_or(INVALID_ARGUMENT)?);
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// PF_RING shows this text in /proc; here there is no such place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_application_stats(
    ring: *mut Ring,
    _text: *const c_char,
) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_sampling_rate(ring: *mut Ring, rate: u32) -> c_int {
    if rate == 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: null or a ring.
    unsafe {
        with(ring, |ring| {
            ring.set_sampling(rate);
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_poll_duration(ring: *mut Ring, duration_ms: u32) -> c_int {
    // SAFETY: null or a ring.
    unsafe {
        with(ring, |ring| {
            ring.set_poll_duration(duration_ms);
            Ok(0)
        })
    }
}

/// Accepted without effect: the kernel gathers packets by time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_poll_watermark(ring: *mut Ring, _packets: u16) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Accepted without effect: packets are sent in batches of 32, or after a millisecond.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_tx_watermark(ring: *mut Ring, _packets: u16) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Accepted without effect: the hash of a cluster does not depend on the card.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_enable_rss_rehash(ring: *mut Ring) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Accepted without effect: the kernel delivers what waits after 5 ms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_poll_watermark_timeout(
    ring: *mut Ring,
    _timeout_ms: u16,
) -> c_int {
    // SAFETY: null or a ring.
    unsafe { with(ring, |_| Ok(0)) }
}

/// Makes the ring a member of a cluster. A certain place in it cannot be chosen: `queue` is 64
/// (`MAX_CLUSTER_QUEUES`) or more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_cluster_consumer(
    ring: *mut Ring,
    cluster: u16,
    queue: u16,
    kind: c_int,
    _options: u32,
) -> c_int {
    if queue < CLUSTER_QUEUE_COUNT_MAX {
        return NOT_SUPPORTED;
    }
    // SAFETY: null or a ring.
    unsafe { pfring_set_cluster(ring, cluster.into(), kind) }
}

/// Sets the VLAN of the packets that are returned: 0 for those without a tag, 65535 for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_vlan_id(ring: *mut Ring, vlan: u16) -> c_int {
    let body = |ring: &Ring| {
        if vlan >= VLAN_COUNT && vlan != ANY_VLAN {
            return Err(INVALID_ARGUMENT);
        }
        ring.selection.vlan.store(vlan.into(), Ordering::Relaxed);
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Sets that packets are returned up to the end of layer 2, 3 or 4 and so many bytes more; whole
/// with 0, and if they do not have that layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_packet_slicing(
    ring: *mut Ring,
    layer: c_int,
    more: u32,
) -> c_int {
    let body = |ring: &Ring| {
        let layer = match layer {
            0 | 2..=4 => layer as u8,
            _ => return Err(INVALID_ARGUMENT),
        };
        ring.selection.more.store(more, Ordering::Relaxed);
        ring.selection.layer.store(layer, Ordering::Relaxed);
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Sets whether packets for other stations are received. An enabled ring cannot change that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_promisc(ring: *mut Ring, on: c_int) -> c_int {
    let body = |ring: &Ring| match ring.settings().promiscuous == (on != 0) {
        true => Ok(0),
        false => ring
            .set(|settings| settings.promiscuous = on != 0)
            .map(|()| 0),
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Sets or clears `IFF_PROMISC` of an interface. Returns whether it was set (not 0).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_if_promisc(device: *const c_char, on: c_int) -> c_int {
    guard(GENERIC, || {
        // SAFETY: null or a text.
        let Some(name) = (unsafe { bytes(device) }) else {
            return INVALID_ARGUMENT;
        };
        // The queue number behind a name does not matter.
        let name = name.split(|byte| *byte == b'@').next().unwrap_or(name);
        interface_flag(name, on != 0).unwrap_or(GENERIC)
    })
}

/// Sets or clears the flag by ioctl(2); returns its former value.
fn interface_flag(name: &[u8], on: bool) -> std::io::Result<c_int> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: a structure of numbers and bytes.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    let call = |code: u32, request: &mut libc::ifreq| {
        // SAFETY: a request with the name of an interface and room for its flags.
        match unsafe { libc::ioctl(socket.as_raw_fd(), code.into(), request) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    call(libc::SIOCGIFFLAGS as u32, &mut request)?;
    let flag = libc::IFF_PROMISC as libc::c_short;
    // SAFETY: the flags were stored.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = if on { flags | flag } else { flags & !flag };
    call(libc::SIOCSIFFLAGS as u32, &mut request)?;
    Ok((flags & flag).into())
}

/// Makes the card record the arrival of received packets. The time at which packets leave it is not
/// supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_enable_hw_timestamp(
    _ring: *mut Ring,
    device: *const c_char,
    receiving: u8,
    sending: u8,
) -> c_int {
    guard(GENERIC, || {
        // SAFETY: null or a text.
        let Some(name) = (unsafe { bytes(device) }) else {
            return INVALID_ARGUMENT;
        };
        if receiving == 0 || sending != 0 {
            return NOT_SUPPORTED;
        }
        let set = || {
            PacketSocket::new()
                .ok()?
                .stamp_in_hardware(std::str::from_utf8(name).ok()?)
                .ok()
        };
        set().map_or(NOT_SUPPORTED, |()| 0)
    })
}

/// The library prints nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_enable_hw_timestamp_debug() {}

/// Queues are chosen by name: `zc:eth0@2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_channel_id(_ring: *mut Ring, _channel: u32) -> c_int {
    NOT_SUPPORTED
}

/// Queues are chosen by name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_channel_mask(_ring: *mut Ring, _mask: u64) -> c_int {
    NOT_SUPPORTED
}

/// Each ring has memory of its own; see clusters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_master_id(_ring: *mut Ring, _id: u32) -> c_int {
    NOT_SUPPORTED
}

/// Each ring has memory of its own; see clusters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_master(_ring: *mut Ring, _master: *mut Ring) -> c_int {
    NOT_SUPPORTED
}
