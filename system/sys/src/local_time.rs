//! The local time zone, by means of the C library, which reads the time zone files.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Maximum length of an expanded format, in bytes.
const TEXT_LEN_MAX: usize = 4096;

/// Splits a time, given in seconds since 1970, into the fields of local time.
fn parts(time_s: u64) -> Option<libc::tm> {
    let time = libc::time_t::try_from(time_s).ok()?;
    // SAFETY: all zeros is a value of `tm`, and both pointers are to live values.
    unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        (!libc::localtime_r(&time, &mut parts).is_null()).then_some(parts)
    }
}

/// How many seconds local time is ahead of UTC at a given time; 0 if unknown.
pub fn utc_offset_s(time_s: u64) -> i32 {
    parts(time_s).map_or(0, |parts| parts.tm_gmtoff as i32)
}

/// Expands a strftime(3) format for a given time, in local time. A format that expands to nothing,
/// or to more than 4 KiB, is returned unchanged.
pub fn format(template: &OsStr, time_s: u64) -> OsString {
    let filled = || {
        let text = CString::new(template.as_bytes()).ok()?;
        let parts = parts(time_s)?;
        let mut buffer = vec![0u8; TEXT_LEN_MAX];
        let room = buffer.len();
        // SAFETY: strftime writes at most as many bytes as it is reported; the rest are live
        // values.
        let len =
            unsafe { libc::strftime(buffer.as_mut_ptr().cast(), room, text.as_ptr(), &parts) };
        buffer.truncate(len);
        (len != 0).then(|| OsString::from_vec(buffer))
    };
    filled().unwrap_or_else(|| template.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_filled_in() {
        let noon = 1_700_000_000;
        assert_eq!(format(OsStr::new("x-%s.pcap"), noon), "x-1700000000.pcap");
        assert_eq!(format(OsStr::new("plain"), noon), "plain");
        assert_eq!(format(OsStr::new(""), noon), "");
        let long = "%c".repeat(3000);
        assert_eq!(format(OsStr::new(&long), noon), OsStr::new(&long));
    }

    #[test]
    fn the_offset_is_that_of_date() {
        let output = std::process::Command::new("date")
            .args(["-d@1700000000", "+%:::z"])
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let hours: i32 = text.trim().split(':').next().unwrap().parse().unwrap();
        assert_eq!(utc_offset_s(1_700_000_000) / 3600, hours, "{text}");
        assert_eq!(utc_offset_s(u64::MAX), 0);
    }
}
