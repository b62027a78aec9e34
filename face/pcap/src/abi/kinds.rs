//! Devices of other kinds, which cannot be opened: the errors are those of the original where their
//! kernel modules are absent.

use std::io::ErrorKind;

use crate::failure::{Failure, Result};
use crate::live::{NO_SUCH_DEVICE, PERMISSION_DENIED};

/// Fails for a USB bus (`usbmon1`) and a Bluetooth adapter (`bluetooth0`, `bluetooth-monitor`).
///
/// # Errors
/// That of opening the device as the original does; another one if there is such a device.
pub fn refuse(device: &str) -> Result<()> {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|it| it.is_ascii_digit());
    if let Some(bus) = device.strip_prefix("usbmon").filter(|rest| is_number(rest)) {
        return Err(usb(bus));
    }
    let adapter = device.strip_prefix("bluetooth");
    match adapter {
        Some(rest) if is_number(rest) || rest == "-monitor" => Err(bluetooth()),
        _ => Ok(()),
    }
}

fn usb(bus: &str) -> Failure {
    let path = format!("/dev/usbmon{bus}");
    match std::fs::File::open(&path) {
        Ok(_) => Failure::new("USB devices are not supported"),
        // The status says all.
        Err(error) if error.kind() == ErrorKind::NotFound => Failure::of(NO_SUCH_DEVICE, ""),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            let why = "failed with EACCES - root privileges may be required";
            Failure::of(PERMISSION_DENIED, format!("Attempt to open {path} {why}"))
        }
        Err(error) => {
            let what = format!("Can't open USB bus file {path}");
            Failure::system(&what, error.raw_os_error().unwrap_or(0))
        }
    }
}

fn bluetooth() -> Failure {
    /// `BTPROTO_HCI`.
    const HCI: i32 = 1;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_BLUETOOTH, kind, HCI) };
    if socket < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Failure::system("Can't create raw socket", errno.unwrap_or(0));
    }
    // SAFETY: the socket of this function.
    unsafe { libc::close(socket) };
    Failure::new("Bluetooth devices are not supported")
}
