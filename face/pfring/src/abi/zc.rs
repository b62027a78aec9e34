//! PF_RING ZC: clusters, pools, buffers, and what other processes attach to.
//!
//! What callers must ensure, as with the original: handles are null or valid; those of queues and
//! pools are valid until `pfring_zc_destroy_cluster` or the detaching call; a buffer is used by one
//! thread at a time, and no more after it was released.

use std::ffi::c_char;
use std::ptr::null_mut;
use std::sync::Arc;

use sys::boundary::guard;

use super::{bytes, or_errno};
use crate::ring::Outcome;
use crate::status::INVALID_ARGUMENT;
use crate::zc::buffer::{Buffer, Buffers};
use crate::zc::queue::{Mode, Queue};
use crate::zc::{Cluster, attached};

/// `PF_RING_ZC_DEVICE_NOT_PROMISC`.
const NOT_PROMISCUOUS: u32 = 1 << 9;

/// Buffers that a process may take from a pool that it attached to.
const ATTACHED_COUNT: u32 = 1 << 16;
/// Their length: jumbo frames fit.
const ATTACHED_LEN: u32 = 9_728;

/// `pfring_zc_queue_mode`.
pub(super) fn mode(number: u32) -> Outcome<Mode> {
    match number {
        0 => Ok(Mode::Receive),
        1 => Ok(Mode::Send),
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
        let is_promiscuous = flags & NOT_PROMISCUOUS == 0;
        cluster.device(
            &name.ok_or(INVALID_ARGUMENT)?,
            mode(direction)?,
            is_promiscuous,
        )
    };
    // SAFETY: null or a cluster.
    unsafe { of_cluster(cluster, body) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_create_queue(cluster: *mut Cluster, len: u32) -> *mut Queue {
    // SAFETY: null or a cluster.
    unsafe { of_cluster(cluster, |cluster| cluster.queue(len)) }
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
