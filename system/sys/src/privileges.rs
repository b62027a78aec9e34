//! Dropping privileges once the sockets are open: another user, no capabilities, and no way to gain
//! any.

use std::ffi::{CStr, CString};

use crate::{Error, ErrorKind, KernelVersion, Result};

/// Capabilities that a program may want to keep, by number (Linux
/// `include/uapi/linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// Write files that belong to others.
    DacOverride = 1,
    /// Read files that belong to others, and search their directories.
    DacReadSearch = 2,
    /// Configure interfaces.
    NetAdmin = 12,
    /// Open raw sockets.
    NetRaw = 13,
    /// Lock memory above the limit.
    IpcLock = 14,
    /// Load programs that compute with pointers to packets. Since Linux 5.8.
    Perfmon = 38,
    /// Load programs and make maps. Since Linux 5.8.
    Bpf = 39,
}

/// A user in the system's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

impl User {
    /// Looks a user up by name.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn find(name: &str) -> Result<Self> {
        let what = || format!("change to user {name:?}");
        let text = CString::new(name).map_err(|_| {
            Error::new(
                ErrorKind::InvalidInput,
                what(),
                "the name contains a zero byte",
            )
        })?;
        let mut buffer = vec![0; 16 << 10];
        // SAFETY: zero is a valid `passwd` (null pointers); the call writes into it and into
        // `buffer` only, whose size it is given; the strings it points to are not read
        // after `buffer` is gone.
        let (code, found, uid, gid) = unsafe {
            let mut entry: libc::passwd = std::mem::zeroed();
            let mut result = std::ptr::null_mut();
            let code = libc::getpwnam_r(
                CStr::as_ptr(&text),
                &mut entry,
                buffer.as_mut_ptr(),
                buffer.len(),
                &mut result,
            );
            (code, !result.is_null(), entry.pw_uid, entry.pw_gid)
        };
        if !found {
            let kind = if code == 0 {
                ErrorKind::NotFound
            } else {
                ErrorKind::Io
            };
            return Err(Error::new(kind, what(), "there is no such user")
                .with_hint("give a user of this host, for example nobody"));
        }
        Ok(Self {
            name: name.to_owned(),
            uid,
            gid,
        })
    }
}

/// Whether the capability is in the effective set.
pub fn has(capability: Capability) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/thread-self/status") else {
        return false;
    };
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << capability as u32) != 0)
}

/// The capability needed to read a BPF map after privileges are dropped: none since Linux 5.19,
/// where any holder of a descriptor may read; before it CAP_BPF, if unprivileged BPF is off (as in
/// Debian).
pub fn to_read_maps() -> Option<Capability> {
    let setting = std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled");
    let is_off = setting.is_ok_and(|text| text.trim() != "0");
    let version = KernelVersion::running();
    needed_to_read_maps(version, is_off)
}

fn needed_to_read_maps(version: Option<KernelVersion>, is_off: bool) -> Option<Capability> {
    let is_old = version.is_some_and(|version| version < KernelVersion::new(5, 19));
    (is_old && is_off).then_some(Capability::Bpf)
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: 64 capabilities in two words.
const CAP_VERSION_3: u32 = 0x2008_0522;

/// Drops privileges permanently: switches to `user` if given (including groups), keeps only those
/// of the named capabilities that the process has, and prevents a later `execve` from regaining
/// any.
///
/// Call it before starting threads: capability sets belong to the calling thread (and are inherited
/// by threads it starts later).
///
/// # Errors
/// `Permission` if the user cannot be changed, or if a capability to be kept would be lost by that;
/// nothing is half done that matters: the caller should end.
pub fn drop_privileges(user: Option<&User>, keep: &[Capability]) -> Result<()> {
    let what = || "drop privileges".to_owned();
    let kept = keep.iter().fold(0u64, |mask, &c| mask | 1 << c as u32) & permitted();
    // SAFETY: plain system calls with integers.
    unsafe {
        if let Some(user) = user {
            // Without this the permitted set is emptied when all three user ids leave 0
            // (capabilities(7), "Effect of user ID changes on capabilities"). `execve` resets it.
            if kept != 0 && libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 {
                return Err(Error::last_os(what()));
            }
            let root = libc::geteuid() == 0;
            if root && libc::setgroups(1, &user.gid) < 0
                || libc::setresgid(user.gid, user.gid, user.gid) < 0
                || libc::setresuid(user.uid, user.uid, user.uid) < 0
            {
                let hint =
                    "start as root, or as that user with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF";
                return Err(
                    Error::last_os(format!("change to user {:?}", user.name)).with_hint(hint)
                );
            }
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err(Error::last_os(what()));
        }
    }
    // The change of user emptied the effective set in any case: this raises the kept capabilities
    // again.
    if !set(kept) {
        return Err(Error::last_os(what()));
    }
    // SAFETY: a plain system call with integers. It is not an error: a kernel that set it clears
    // it.
    unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0) };
    Ok(())
}

/// Sets the effective and the permitted set of this thread. It neither allocates nor panics.
fn set(mask: u64) -> bool {
    let words = [mask as u32, (mask >> 32) as u32];
    let data = words.map(|word| CapData {
        effective: word,
        permitted: word,
        inheritable: 0,
    });
    let header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    // SAFETY: header and data have the layout of version 3 (two words) and live through the call.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) == 0 }
}

/// Keeps the capabilities to load programs, of those that this thread has, and no others. It
/// neither allocates nor panics.
pub(crate) fn keep_only_loading() {
    /// `CAP_SYS_ADMIN`, which loads programs before Linux 5.8.
    const SYS_ADMIN: u64 = 1 << 21;
    let own = permitted();
    let bpf = 1 << Capability::Bpf as u32 | 1 << Capability::Perfmon as u32;
    let load = match own & bpf {
        0 => SYS_ADMIN,
        _ => bpf,
    };
    set(own & (load | 1 << Capability::NetAdmin as u32));
}

/// The permitted set of this thread.
fn permitted() -> u64 {
    let mut data = [CapData {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    let header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    // SAFETY: as in `drop_privileges`; the kernel writes two words of data.
    let result = unsafe { libc::syscall(libc::SYS_capget, &header, data.as_mut_ptr()) };
    if result < 0 {
        return 0;
    }
    u64::from(data[1].permitted) << 32 | u64::from(data[0].permitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found() {
        assert_eq!(User::find("root").unwrap().uid, 0);
        assert_eq!(
            User::find("no such user").unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn old_kernels_want_a_right_to_read_maps() {
        let needed = |major, minor, is_off| {
            needed_to_read_maps(Some(KernelVersion::new(major, minor)), is_off)
        };
        assert_eq!(needed(5, 18, true), Some(Capability::Bpf));
        assert_eq!(needed(5, 10, false), None);
        assert_eq!(needed(5, 19, true), None);
        assert_eq!(needed(6, 1, true), None);
    }

    #[test]
    fn capabilities_go_and_stay_gone() {
        // In a thread of its own, because capability sets belong to threads.
        std::thread::spawn(|| {
            let raw_before = has(Capability::NetRaw);
            drop_privileges(None, &[Capability::NetRaw]).unwrap();
            assert_eq!(has(Capability::NetRaw), raw_before);
            assert!(!has(Capability::NetAdmin));
            drop_privileges(None, &[]).unwrap();
            assert!(!has(Capability::NetRaw));
            drop_privileges(None, &[Capability::NetRaw]).unwrap();
            assert!(!has(Capability::NetRaw), "what is gone does not come back");
        })
        .join()
        .unwrap();
    }
}
