//! Functions of other headers of PF_RING that its examples call.

use std::ffi::{c_char, c_int, c_void};

use super::or_errno;
use crate::status::NOT_SUPPORTED;

/// The name of an event of sysdig (`pfring_mod_sysdig.h`), whose device is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysdig_event2name(_kind: c_int) -> *mut c_char {
    c"unknown".as_ptr().cast_mut()
}

/// Events of sysdig are not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysdig_event2info(_kind: c_int) -> *const c_void {
    or_errno(Err(NOT_SUPPORTED))
}

/// Of PF_RING's libpcap: the name is for /proc/net/pf_ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_application_name(_p: *mut c_void, _name: *const c_char) -> c_int {
    0
}

/// Of PF_RING's libpcap: packets are gathered by time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_watermark(_p: *mut c_void, _packets: u32) -> c_int {
    0
}
