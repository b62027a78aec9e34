//! Status codes and timestamp types as text, as libpcap 1.10 has them.

use std::ffi::CStr;

/// The text of a status code.
pub fn text(code: i32) -> Option<&'static CStr> {
    Some(match code {
        1 => c"Generic warning",
        2 => c"That device doesn't support promiscuous mode",
        3 => c"That type of time stamp is not supported by that device",
        -1 => c"Generic error",
        -2 => c"Loop terminated by pcap_breakloop",
        -3 => c"The pcap_t has not been activated",
        -4 => c"The setting can't be changed after the pcap_t is activated",
        -5 => c"No such device exists",
        -6 => c"That device doesn't support monitor mode",
        -7 => c"That operation is supported only in monitor mode",
        -8 => c"You don't have permission to perform this capture on that device",
        -9 => c"That device is not up",
        -10 => c"That device doesn't support setting the time stamp type",
        -11 => c"You don't have permission to capture in promiscuous mode on that device",
        -12 => c"That device doesn't support that time stamp precision",
        _ => return None,
    })
}

/// The timestamp types by number: name, description.
pub const TIMESTAMP_TYPES: [(&CStr, &CStr); 6] = [
    (c"host", c"Host"),
    (c"host_lowprec", c"Host, low precision"),
    (c"host_hiprec", c"Host, high precision"),
    (c"adapter", c"Adapter"),
    (c"adapter_unsynced", c"Adapter, not synced with system time"),
    (
        c"host_hiprec_unsynced",
        c"Host, high precision, not synced with system time",
    ),
];
