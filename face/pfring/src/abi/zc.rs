//! PF_RING ZC: clusters, pools, buffers, and what other processes attach to.
//!
//! What callers must ensure, as with the original: handles are null or valid; those of queues and
//! pools are valid until `pfring_zc_destroy_cluster` or the detaching call; a buffer is used by one
//! thread at a time, and no more after it was released.

use std::ffi::{c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use sys::boundary::guard;

use super::{bytes, or_errno, with_errno};
use crate::ring::Outcome;
use crate::status::{GENERIC, INVALID_ARGUMENT};
use crate::zc::buffer::{Buffer, Buffers};
use crate::zc::queue::{DeviceTerms, Mode, Queue};
use crate::zc::{Cluster, attached};

/// `PF_RING_ZC_DEVICE_CAPTURE_TX`.
const WITH_SENT: u32 = 1 << 7;
/// `PF_RING_ZC_DEVICE_NOT_PROMISC`.
const NOT_PROMISCUOUS: u32 = 1 << 9;

/// Buffers that a process may take from a pool that it attached to.
const ATTACHED_COUNT: u32 = 1 << 16;
/// Their length: every packet fits. Memory that no packet has used costs nothing.
const ATTACHED_LEN: u32 = 65_535;

/// `pfring_zc_queue_mode`.
pub(super) fn mode(number: u32) -> Outcome<Mode> {
    match number {
        0 => Ok(Mode::Receive),
        1 => Ok(Mode::Send),
        // `management_only`, since PF_RING 8.4.
        2 => Ok(Mode::Manage),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Creates a cluster, and offers its queues to other processes. Its buffers are in the process's
/// own memory; NUMA node and mount point are not used. (PF_RING 8 has a further argument, flags,
/// which is not used either.)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_create_cluster(
    id: u32,
    buffer_len: u32,
    metadata_len: u32,
    count: u32,
    _numa_node: i32,
    _mount_point: *const c_char,
) -> *mut Cluster {
    guard(null_mut(), || {
        let made = Cluster::new(id, buffer_len, metadata_len, count).and_then(Cluster::offer);
        or_errno(made.map(|cluster| Box::into_raw(Box::new(cluster)).cast_const()))
    })
}

/// Destroys a cluster, with its queues, devices and pools, once workers that use them have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_destroy_cluster(cluster: *mut Cluster) {
    guard((), || {
        // SAFETY: null, or of pfring_zc_create_cluster.
        if unsafe { cluster.as_ref() }.is_some_and(Cluster::is_own) {
            // SAFETY: as above, and used no more.
            drop(unsafe { Box::from_raw(cluster) });
        }
    });
}

/// Runs `body` with a cluster, and returns its handle.
///
/// # Safety
/// `cluster` is null or valid.
unsafe fn of_cluster<T>(
    cluster: *const Cluster,
    body: impl FnOnce(&Cluster) -> Outcome<*const T>,
) -> *mut T {
    guard(null_mut(), || {
        // SAFETY: the caller's promise; all of its state is behind locks or atomic.
        let cluster = unsafe { cluster.as_ref() };
        or_errno(cluster.ok_or(INVALID_ARGUMENT).and_then(body))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_open_device(
    cluster: *mut Cluster,
    device: *const c_char,
    direction: u32,
    flags: u32,
) -> *mut Queue {
    let body = |cluster: &Cluster| {
        // SAFETY: null or a text.
        let name = unsafe { bytes(device) }.map(String::from_utf8_lossy);
        let terms = DeviceTerms {
            is_promiscuous: flags & NOT_PROMISCUOUS == 0,
            has_sent: flags & WITH_SENT != 0,
        };
        cluster.device(&name.ok_or(INVALID_ARGUMENT)?, mode(direction)?, terms)
    };
    // SAFETY: null or a cluster.
    unsafe { of_cluster(cluster, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_create_queue(cluster: *mut Cluster, len: u32) -> *mut Queue {
    // SAFETY: null or a cluster.
    unsafe { of_cluster(cluster, |cluster| cluster.queue(len)) }
}

/// Creates a queue and a pool with the same number. An error also sets `errno`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_create_queue_pool_pair(
    cluster: *mut Cluster,
    queue_len: u32,
    pool_len: u32,
    queue: *mut *mut Queue,
    pool: *mut *mut Buffers,
) -> c_int {
    guard(GENERIC, || {
        // SAFETY: null or a cluster; null or places of the program.
        let (cluster, places) = unsafe { (cluster.as_ref(), (queue.as_mut(), pool.as_mut())) };
        let (Some(cluster), (Some(queue), Some(pool))) = (cluster, places) else {
            return with_errno(INVALID_ARGUMENT);
        };
        let made = cluster.pair(queue_len, pool_len);
        let (new_queue, new_pool) = made.unwrap_or((null(), null()));
        (*queue, *pool) = (new_queue.cast_mut(), new_pool.cast_mut());
        made.map_or_else(with_errno, |_| 0)
    })
}

/// Closes a device. Its handle stays valid, but calls fail. Does nothing in a child that was forked
/// after opening.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_close_device(queue: *mut Queue) {
    guard((), || {
        // SAFETY: null or a queue.
        if let Some(queue) = unsafe { queue.as_ref() } {
            queue.close();
        }
    });
}

/// The number of a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_pool_id(pool: *mut Buffers) -> u32 {
    // SAFETY: null or a pool.
    guard(0, || unsafe { pool.as_ref() }.map_or(0, |pool| pool.id))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_create_buffer_pool(
    cluster: *mut Cluster,
    count: u32,
) -> *mut Buffers {
    // SAFETY: null or a cluster.
    unsafe { of_cluster(cluster, |cluster| cluster.pool(count)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_packet_handle(cluster: *mut Cluster) -> *mut Buffer {
    // SAFETY: null or a cluster.
    unsafe {
        pfring_zc_get_packet_handle_from_pool(match cluster.as_ref() {
            Some(cluster) => Arc::as_ptr(cluster.buffers()).cast_mut(),
            None => null_mut(),
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_release_packet_handle(
    cluster: *mut Cluster,
    buffer: *mut Buffer,
) {
    // SAFETY: null or a cluster, null or a buffer.
    unsafe {
        if let Some(cluster) = cluster.as_ref() {
            let pool = Arc::as_ptr(cluster.buffers()).cast_mut();
            pfring_zc_release_packet_handle_to_pool(pool, buffer);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_packet_handle_from_pool(pool: *mut Buffers) -> *mut Buffer {
    guard(null_mut(), || {
        // SAFETY: null or a pool, whose state is behind locks.
        let buffer = unsafe { pool.as_ref() }.and_then(Buffers::take);
        buffer.map_or(null_mut(), Box::into_raw)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_release_packet_handle_to_pool(
    pool: *mut Buffers,
    buffer: *mut Buffer,
) {
    guard((), || {
        // SAFETY: null or a pool; null or a buffer, which the program uses no more.
        unsafe {
            if let Some(pool) = pool.as_ref()
                && !buffer.is_null()
            {
                pool.give(Box::from_raw(buffer));
            }
        }
    });
}

/// The packet in a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_pkt_buff_data(
    buffer: *mut Buffer,
    _queue: *mut Queue,
) -> *mut u8 {
    guard(null_mut(), || {
        // SAFETY: null or a buffer of the program.
        let buffer = unsafe { buffer.as_mut() };
        buffer.map_or(null_mut(), |buffer| buffer.data().as_mut_ptr())
    })
}

/// The packet in a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_pkt_buff_data_from_cluster(
    buffer: *mut Buffer,
    _cluster: *mut Cluster,
) -> *mut u8 {
    // SAFETY: null or a buffer.
    unsafe { pfring_zc_pkt_buff_data(buffer, null_mut()) }
}

/// The buffer in whose memory this place is; null if it is no buffer of the cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_pkt_data_buff(
    data: *mut u8,
    cluster: *mut Cluster,
) -> *mut Buffer {
    guard(null_mut(), || {
        // SAFETY: null or a cluster.
        let cluster = unsafe { cluster.as_ref() };
        let found = cluster.and_then(|cluster| cluster.buffers().of_data(data.addr()));
        found.map_or(null_mut(), std::ptr::with_exposed_provenance_mut)
    })
}

/// Removes bytes from the start of a packet; null if it has fewer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_pkt_buff_pull(
    buffer: *mut Buffer,
    _queue: *mut Queue,
    len: u16,
) -> *mut u8 {
    guard(null_mut(), || {
        // SAFETY: null or a buffer of the program.
        let buffer = unsafe { buffer.as_mut() };
        let start = buffer.and_then(|buffer| buffer.pull(len));
        start.map_or(null_mut(), <[u8]>::as_mut_ptr)
    })
}

/// Removes bytes from the start of a packet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_pkt_buff_pull_only(buffer: *mut Buffer, len: u16) {
    // SAFETY: null or a buffer of the program.
    unsafe { pfring_zc_pkt_buff_pull(buffer, null_mut(), len) };
}

/// Adds bytes at the start of a packet; null without room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_pkt_buff_push(
    buffer: *mut Buffer,
    _queue: *mut Queue,
    len: u16,
) -> *mut u8 {
    guard(null_mut(), || {
        // SAFETY: null or a buffer of the program.
        let buffer = unsafe { buffer.as_mut() };
        let start = buffer.and_then(|buffer| buffer.push(len));
        start.map_or(null_mut(), <[u8]>::as_mut_ptr)
    })
}

/// Nothing needs a preparation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_ipc_init(_mount_point: *const c_char) {}

/// Attaches to queue `queue` of a cluster of another process: to receive (also from one of
/// `barewire cluster run`), or to send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_ipc_attach_queue(
    cluster: u32,
    queue: u32,
    direction: u32,
) -> *mut Queue {
    guard(null_mut(), || {
        let attach = || Queue::attach(cluster, queue, mode(direction)?, (ATTACHED_LEN, 0));
        or_errno(attach().map(|queue| Arc::into_raw(Arc::new(queue))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_ipc_detach_queue(queue: *mut Queue) {
    guard((), || {
        if !queue.is_null() {
            // SAFETY: of pfring_zc_ipc_attach_queue, and used no more.
            drop(unsafe { Arc::from_raw(queue.cast_const()) });
        }
    });
}

/// Buffers of this process for packets of a cluster to which it attaches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_ipc_attach_buffer_pool(
    cluster: u32,
    _pool: u32,
) -> *mut Buffers {
    guard(null_mut(), || {
        let pool = || Arc::into_raw(Arc::new(Buffers::new(ATTACHED_LEN, ATTACHED_COUNT)));
        or_errno(attached::exists(cluster).map(|()| pool()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_ipc_detach_buffer_pool(pool: *mut Buffers) {
    guard((), || {
        if !pool.is_null() {
            // SAFETY: of pfring_zc_ipc_attach_buffer_pool, and used no more.
            drop(unsafe { Arc::from_raw(pool.cast_const()) });
        }
    });
}
