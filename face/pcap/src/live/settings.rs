//! What a program's settings make of a device's port, and of its errors.

use std::time::Duration;

use port::{PortOptions, TapMethod};
use runtime::in_place::queue_count;
use sys::packet::PacketSocket;
use sys::{Error, ErrorKind};

use super::{PERMISSION_DENIED, failed};
use crate::cooked;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::framing::Framing;
use crate::handle::Settings;

/// The error of opening a device: that of a tap with the original's text.
pub(super) fn not_opened(device: &Device, error: &Error) -> Failure {
    let text = match (device.tap.is_some(), error.kind()) {
        // Its status says all.
        (true, ErrorKind::NotFound) => String::new(),
        (true, ErrorKind::Permission) => "socket: Operation not permitted".into(),
        _ => return failed(error),
    };
    Failure {
        text,
        ..failed(error)
    }
}

/// The options of the port.
pub(super) fn options(settings: &Settings, device: &Device, framing: Framing) -> PortOptions {
    let timeout_ms = settings.timeout_ms.clamp(0, 1000).cast_unsigned();
    let block_ms = match timeout_ms {
        0 => 100,
        timeout_ms => timeout_ms,
    };
    PortOptions {
        queue_count: queue_count(&device.port),
        // With room for the longer of the two cooked headers.
        snaplen: snaplen(settings, framing)
            + if framing.is_cooked() {
                cooked::LONGER
            } else {
                0
            },
        cooked: framing.is_cooked(),
        protocol: settings.protocol,
        promiscuous: settings.promiscuous,
        ring_bytes: usize::try_from(settings.buffer_bytes).unwrap_or(0),
        block_timeout: Duration::from_millis(block_ms.into()),
        immediate: settings.immediate,
        // Its filter can be replaced without privileges, after the program has dropped them.
        tap: TapMethod::Tpacket,
        filter_helper: true,
        // Signals are the program's.
        map_files: false,
        ..PortOptions::default()
    }
}

/// Number of bytes kept of each packet: of cooked ones at least one behind the header.
pub(super) fn snaplen(settings: &Settings, framing: Framing) -> u32 {
    let least = if framing.is_cooked() {
        cooked::LEN_V2 + 1
    } else {
        0
    };
    settings.snaplen.max(0).cast_unsigned().max(least as u32)
}

/// Makes the card of a tap timestamp packets. Returns whether it does.
pub(super) fn stamp_in_hardware(interface: &str) -> Result<bool> {
    let socket = PacketSocket::new().map_err(|error| failed(&error))?;
    match socket.stamp_in_hardware(interface) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error().unwrap_or(0) {
            libc::EPERM => {
                let text =
                    "Attempt to set hardware timestamp failed - CAP_NET_ADMIN may be required";
                Err(Failure::of(PERMISSION_DENIED, text))
            }
            // It timestamps none, or only some.
            libc::EOPNOTSUPP | libc::ERANGE => Ok(false),
            code => Err(Failure::system("SIOCSHWTSTAMP failed", code)),
        },
    }
}
