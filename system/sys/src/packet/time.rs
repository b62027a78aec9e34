//! Timestamps of the card (`include/uapi/linux/net_tstamp.h`).

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;

use super::{PacketSocket, SOL_PACKET};
use crate::Result;

const PACKET_TIMESTAMP: c_int = 17;
const SOF_TIMESTAMPING_RAW_HARDWARE: c_int = 1 << 6;

/// `struct hwtstamp_config`.
#[derive(Default)]
#[repr(C)]
struct HardwareTime {
    flags: c_int,
    tx_type: c_int,
    rx_filter: c_int,
}

impl HardwareTime {
    /// `HWTSTAMP_FILTER_ALL`.
    const ALL: c_int = 1;
}

impl PacketSocket {
    /// Makes the ring contain the card's timestamps instead of the kernel's, for packets with one.
    pub fn hardware_time(&self) -> Result<()> {
        let what = "request the card's timestamps";
        let source = SOF_TIMESTAMPING_RAW_HARDWARE;
        self.set(SOL_PACKET, PACKET_TIMESTAMP, &source, what)
    }

    /// Whether the interface's card timestamps every packet that it receives (`SIOCGHWTSTAMP`,
    /// Since Linux 3.14).
    pub fn stamps_in_hardware(&self, name: &str) -> bool {
        const SIOCGHWTSTAMP: u32 = 0x89b1;
        let mut config = HardwareTime::default();
        let asked = self.hardware_time_request(SIOCGHWTSTAMP, name, &mut config);
        asked.is_ok() && config.rx_filter == HardwareTime::ALL
    }

    /// Makes the interface's card timestamp every packet, sent ones too (`SIOCSHWTSTAMP`), which
    /// outlasts this socket.
    ///
    /// # Errors
    /// The bare error: `EPERM` without CAP_NET_ADMIN, `EOPNOTSUPP` or `ERANGE` from a card that
    /// timestamps none or only some.
    pub fn stamp_in_hardware(&self, name: &str) -> io::Result<()> {
        const SIOCSHWTSTAMP: u32 = 0x89b0;
        let mut config = HardwareTime {
            tx_type: 1,
            rx_filter: HardwareTime::ALL,
            ..HardwareTime::default()
        };
        self.hardware_time_request(SIOCSHWTSTAMP, name, &mut config)
    }

    fn hardware_time_request(
        &self,
        code: u32,
        name: &str,
        config: &mut HardwareTime,
    ) -> io::Result<()> {
        let mut request = Self::request(name);
        request.ifr_ifru.ifru_data = std::ptr::from_mut(config).cast();
        // SAFETY: the request names an interface and points to a live `hwtstamp_config`, which the
        // kernel reads and fills in.
        let result = unsafe {
            let fd = self.fd.as_raw_fd();
            libc::ioctl(fd, code as libc::Ioctl, &raw mut request)
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
