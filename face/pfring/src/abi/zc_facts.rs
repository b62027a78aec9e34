//! PF_RING ZC: facts about clusters and queues, and what barewire has no use for.

use std::ffi::{c_char, c_int, c_void};

use sys::boundary::guard;

use super::with_errno;
use crate::status::{GENERIC, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::zc::Cluster;
use crate::zc::buffer::Buffer;
use crate::zc::queue::Queue;

/// `UNDEFINED_QUEUEID`.
const NO_QUEUE: u32 = u32::MAX;

/// `pfring_zc_queue_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Lens {
    buffer: u32,
    metadata: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_cluster_id(cluster: *mut Cluster) -> u32 {
    guard(0, || {
        // SAFETY: null or a cluster.
        unsafe { cluster.as_ref() }.map_or(0, |cluster| cluster.id)
    })
}

/// The number of a queue of the cluster, from 0 in the order of their creation, or the index of
/// the interface, shifted by 16 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_queue_id(queue: *mut Queue) -> u32 {
    guard(NO_QUEUE, || {
        // SAFETY: null or a queue.
        unsafe { queue.as_ref() }.map_or(NO_QUEUE, Queue::id)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_queue_settings(queue: *mut Queue, place: *mut Lens) {
    // SAFETY: null or a queue, null or a structure of the program.
    guard((), || unsafe {
        if let Some(queue) = queue.as_ref()
            && !place.is_null()
        {
            let (buffer, metadata) = queue.lens();
            place.write_unaligned(Lens { buffer, metadata });
        }
    });
}

/// `pfring_zc_cluster_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Needs {
    memory_len: u64,
    buffer: u32,
    real_buffer: u32,
}

/// The memory that a cluster uses at most. An error also sets `errno`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_precompute_cluster_settings(
    place: *mut Needs,
    buffer_len: u32,
    metadata_len: u32,
    count: u32,
    _flags: u32,
) -> c_int {
    guard(GENERIC, || {
        if place.is_null() || Cluster::new(0, buffer_len, metadata_len, count).is_err() {
            return with_errno(INVALID_ARGUMENT);
        }
        let real_buffer = buffer_len + size_of::<Buffer>() as u32;
        let needs = Needs {
            memory_len: u64::from(real_buffer) * u64::from(count),
            buffer: buffer_len,
            real_buffer,
        };
        // SAFETY: a structure of the program.
        unsafe { place.write_unaligned(needs) };
        0
    })
}

/// Buffers are not in one area.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_memory_info(
    _cluster: *mut Cluster,
    _place: *mut c_void,
) -> c_int {
    NOT_SUPPORTED
}

/// The library prints nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_debug() {}

/// The speed of a device in Mbit/s; 0 if it is unknown, and for a queue of a cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_queue_speed(queue: *mut Queue) -> u32 {
    // SAFETY: null or a queue.
    let speed = || unsafe { queue.as_ref() }.and_then(Queue::speed_mbps);
    guard(0, || speed().unwrap_or(0))
}

/// The clocks of cards are set by ptp4l and phc_ctl.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_get_device_clock(
    _queue: *mut Queue,
    _time: *mut libc::timespec,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_device_clock(
    _queue: *mut Queue,
    _time: *const libc::timespec,
) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_adjust_device_clock(
    _queue: *mut Queue,
    _offset: *const libc::timespec,
    _sign: i8,
) -> c_int {
    NOT_SUPPORTED
}

/// The node of a processor, -1 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_numa_get_cpu_node(cpu: c_int) -> c_int {
    guard(-1, || {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let node = |name: &str| name.strip_prefix("node")?.parse().ok();
        let mut nodes = entries.filter_map(|entry| node(&entry.file_name().to_string_lossy()));
        nodes.next().unwrap_or(-1)
    })
}

/// Memory is where the kernel puts it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_numa_set_numa_affinity(_node: c_int) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_version() -> *const c_char {
    c"8.0.0 (barewire)".as_ptr()
}

/// There is no licence, and no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_check_license() -> c_int {
    1
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_check_device_license(
    _queue: *mut Queue,
    until: *mut u32,
) -> c_int {
    // SAFETY: null or a place of the program.
    unsafe { unlimited(until) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_check_device_license_by_name(
    _device: *const c_char,
    until: *mut u32,
) -> c_int {
    // SAFETY: null or a place of the program.
    unsafe { unlimited(until) }
}

/// # Safety
/// `until` is null or a place of the program.
unsafe fn unlimited(until: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    if let Some(until) = unsafe { until.as_mut() } {
        *until = u32::MAX;
    }
    1
}

/// There is no /proc/net/pf_ring: names and statistics are not kept anywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_proc_stats(
    _cluster: *mut Cluster,
    _text: *const c_char,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_app_name(
    _cluster: *mut Cluster,
    _name: *const c_char,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_device_proc_stats(
    _queue: *mut Queue,
    _text: *const c_char,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_device_app_name(
    _queue: *mut Queue,
    _name: *const c_char,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_add_hw_rule(_queue: *mut Queue, _rule: *const c_void) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_remove_hw_rule(_queue: *mut Queue, _rule: u16) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_set_rxfh_indir(_queue: *mut Queue, _table: *const u8) {}

/// Virtual machines read `vm:` ports instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_vm_register(
    cluster: *mut Cluster,
    _socket: *const c_char,
) -> c_int {
    if cluster.is_null() {
        INVALID_ARGUMENT
    } else {
        NOT_SUPPORTED
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_vm_backend_enable(_cluster: *mut Cluster) -> c_int {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_zc_vm_guest_init(_device: *const c_char) {}
