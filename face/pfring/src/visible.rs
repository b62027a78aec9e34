//! What programs read of a ring without a call: `struct __pfring` is in `pfring.h` (PF_RING 8.9),
//! and some of PF_RING's examples look at its fields. The others are zero.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::settings::{LONG_HEADER, Mode, PROMISCUOUS, REENTRANT, UNPARSED, Wanted};

/// Number of functions of a module, which are fields of the structure.
pub const FUNCTION_COUNT: usize = 71;
/// Length of a `pthread_rwlock_t`.
const LOCK_LEN: usize = 56;

/// The structure. Names are those of `pfring.h` where a field is filled.
#[repr(C)]
pub struct Visible {
    initialized: u8,
    enabled: AtomicU8,
    long_header: u8,
    force_timestamp: u8,
    strip_hw_timestamp: u8,
    disable_parsing: u8,
    others: [u8; 6],
    zc_device: u8,
    is_shutting_down: u8,
    socket_default_accept_policy: u8,
    break_recv_loop_ext: u8,
    rss_mode: u32,
    direction: AtomicU32,
    mode: AtomicU32,
    filter: [u64; 2],
    hardware_time: [u64; 3],
    sending: [u64; 2],
    private: u64,
    /// Functions of the module; null for those that are not supported.
    pub functions: [usize; FUNCTION_COUNT],
    redirector: [u8; 4],
    filter_mode: u32,
    device_type: u32,
    buffer: u64,
    slots: u64,
    device_name: AtomicPtr<c_char>,
    flags: u32,
    caplen: u32,
    slot_header_len: u16,
    mtu: u16,
    sampling: [u32; 3],
    slicing: [u32; 2],
    fd: i32,
    device_id: i32,
    slots_info: u64,
    poll_sleep: u32,
    poll_duration: u16,
    promisc: u8,
    ft_enabled: u8,
    reentrant: u8,
    break_recv_loop: u8,
    num_poll_calls: u32,
    locks: [[u64; LOCK_LEN / 8]; 2],
    flow_table: u64,
    sock_tx: [u32; 5],
    last: [u64; 3],
}

/// The length of the structure of PF_RING 8.9.
const _: () = assert!(size_of::<Visible>() == 936);

impl Visible {
    /// The structure of a ring that is not enabled.
    /// Its name must live as long as it.
    pub fn new(device: &CStr, is_bypass: bool, mtu: u32, caplen: u32, flags: u32) -> Self {
        let has = |flag: u32| u8::from(flags & flag != 0);
        Self {
            initialized: 1,
            enabled: AtomicU8::new(0),
            long_header: has(LONG_HEADER),
            force_timestamp: 0,
            strip_hw_timestamp: 0,
            disable_parsing: has(UNPARSED),
            others: [0; 6],
            zc_device: is_bypass.into(),
            is_shutting_down: 0,
            socket_default_accept_policy: 1,
            break_recv_loop_ext: 0,
            rss_mode: 0,
            direction: AtomicU32::new(0),
            mode: AtomicU32::new(0),
            filter: [0; 2],
            hardware_time: [0; 3],
            sending: [0; 2],
            private: 0,
            functions: [0; FUNCTION_COUNT],
            redirector: [0; 4],
            filter_mode: 0,
            device_type: 0,
            buffer: 0,
            slots: 0,
            device_name: AtomicPtr::new(device.as_ptr().cast_mut()),
            flags,
            caplen,
            slot_header_len: 0,
            mtu: mtu.min(u16::MAX.into()) as u16,
            sampling: [1, 0, 0],
            slicing: [0; 2],
            fd: -1,
            device_id: -1,
            slots_info: 0,
            poll_sleep: 0,
            poll_duration: crate::settings::POLL_MS as u16,
            promisc: has(PROMISCUOUS),
            ft_enabled: 0,
            reentrant: has(REENTRANT),
            break_recv_loop: 0,
            num_poll_calls: 0,
            locks: [[0; LOCK_LEN / 8]; 2],
            flow_table: 0,
            sock_tx: [0; 5],
            last: [0; 3],
        }
    }

    /// Shows whether the ring is enabled.
    pub fn set_enabled(&self, is_enabled: bool) {
        self.enabled.store(is_enabled.into(), Ordering::Relaxed);
    }

    /// Shows the direction.
    pub fn set_direction(&self, wanted: Wanted) {
        self.direction.store(wanted as u32, Ordering::Relaxed);
    }

    /// Shows the mode.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u32, Ordering::Relaxed);
    }
}
