//! A permanent system call filter (seccomp(2)). It blocks starting programs, tracing others,
//! changing mounts, kernel, clock and keys, creating and entering namespaces, and bpf(2) if that is
//! no longer needed. This limits what a parser subverted by packets can do.
//!
//! It lists denied calls, not allowed ones: with every release the C library and other libraries
//! may start using new calls, and a capture must not end because of that.

use std::io;

use crate::{Error, ErrorKind, Result};

/// Which of the listed calls stay allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Start programs (`execve`).
    pub exec: bool,
    /// Load programs, read and write maps, attach to interfaces (`bpf`).
    pub bpf: bool,
}

const EXEC: &[libc::c_long] = &[libc::SYS_execve, libc::SYS_execveat];
const BPF: &[libc::c_long] = &[libc::SYS_bpf];

/// Denied with `EPERM`.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// `AUDIT_ARCH_` of this processor (Linux `include/uapi/linux/audit.h`), where it is known.
const ARCH: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// Calls of the x32 ABI (x86-64 with 32-bit pointers) have this bit, and their own numbers.
const X32: u32 = 0x4000_0000;
/// Offsets in `struct seccomp_data` of the call's number and of the architecture.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
/// Offset of the lower half of the first argument: for `clone`, the flags.
const FLAGS_AT: u32 = if cfg!(target_endian = "big") { 20 } else { 16 };
/// Flags for new namespaces; `clone` cannot create a time namespace.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u32;
/// `SECCOMP_RET_ALLOW`, and `SECCOMP_RET_ERRNO` with `EPERM`.
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
/// The same with `ENOSYS`, as on a kernel that lacks the call.
const ABSENT: u32 = 0x0005_0000 | libc::ENOSYS as u32;
/// `SECCOMP_RET_KILL_PROCESS`.
const KILL: u32 = 0x8000_0000;
/// `SECCOMP_RET_ACTION_FULL`: masks the error number out.
const ACTION: u32 = 0xffff_0000;
/// `SECCOMP_GET_ACTION_AVAIL`.
const GET_ACTION_AVAIL: libc::c_uint = 2;
/// `SECCOMP_SET_MODE_FILTER`, and its flag for all threads of the process.
const SET_MODE_FILTER: libc::c_uint = 1;
const TSYNC: libc::c_uint = 1;

/// Instructions of classic BPF (Linux `include/uapi/linux/bpf_common.h`): load a word, jump if
/// equal, jump if at least, jump if any of these bits is set, return.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

fn insn(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Builds the filter: it refuses calls of another architecture, the listed calls, and `clone` with
/// a new namespace. `clone3` has its flags in memory, which a filter cannot read: the filter
/// reports the call as missing, and the C library then uses `clone`.
fn program(arch: u32, keep: Keep) -> Vec<libc::sock_filter> {
    let exec = if keep.exec { &[] } else { EXEC };
    let bpf = if keep.bpf { &[] } else { BPF };
    let mut program = vec![
        insn(LOAD, ARCH_AT, 0, 0),
        insn(IF_EQUAL, arch, 1, 0),
        insn(RETURN, REFUSE, 0, 0),
        insn(LOAD, NUMBER_AT, 0, 0),
        insn(IF_AT_LEAST, X32, 0, 1),
        insn(RETURN, REFUSE, 0, 0),
    ];
    for number in DENIED.iter().chain(exec).chain(bpf) {
        program.push(insn(IF_EQUAL, *number as u32, 0, 1));
        program.push(insn(RETURN, REFUSE, 0, 0));
    }
    program.extend([
        insn(IF_EQUAL, libc::SYS_clone3 as u32, 0, 1),
        insn(RETURN, ABSENT, 0, 0),
        insn(IF_EQUAL, libc::SYS_clone as u32, 0, 3),
        insn(LOAD, FLAGS_AT, 0, 0),
        insn(IF_ANY_SET, NEW_NAMESPACES, 0, 1),
        insn(RETURN, REFUSE, 0, 0),
    ]);
    program.push(insn(RETURN, ALLOW, 0, 0));
    program
}

/// Checks whether this kernel and processor support it.
///
/// # Errors
/// Why not.
pub fn available() -> Result<()> {
    let absent =
        |why, hint| Err(Error::new(ErrorKind::Unsupported, "use seccomp", why).with_hint(hint));
    if ARCH.is_none() {
        return absent("this processor is not supported", "use x86-64 or arm64");
    }
    let action = REFUSE & ACTION;
    // SAFETY: a plain system call; the kernel reads `action`, which lives through it.
    match unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0u32, &raw const action) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EPERM) => absent(
                "a container's filter blocks it",
                "allow seccomp in the container's seccomp profile",
            ),
            _ => absent(
                "the kernel does not support filters",
                "use Linux 4.14 or later with CONFIG_SECCOMP_FILTER",
            ),
        },
    }
}

/// Blocks the listed calls in all threads, permanently; programs started later inherit the filter.
/// Returns false if the kernel has no seccomp filters, or the processor is not known here.
///
/// # Errors
/// The kernel's.
pub fn confine(keep: Keep) -> Result<bool> {
    let Some(arch) = ARCH else {
        return Ok(false);
    };
    let mut program = program(arch, keep);
    let fprog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain system calls; the second reads `fprog` and the instructions after it, which
    // live through it.
    let result = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err(Error::last_os("block system calls"));
        }
        libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, TSYNC, &fprog)
    };
    match result {
        0 => Ok(true),
        1.. => Err(Error::new(
            ErrorKind::Io,
            "block system calls",
            format!("thread {result} has a filter of its own"),
        )),
        _ => match io::Error::last_os_error().raw_os_error() {
            // The kernel was built without it, or a container's own filter blocks the call.
            Some(libc::ENOSYS | libc::EINVAL | libc::EPERM) => Ok(false),
            _ => Err(Error::last_os("block system calls")),
        },
    }
}

/// Number of calls that [`allow_only`] takes.
const ALLOWED_MAX: usize = 8;

/// Allows these system calls to this thread and ends the process at any other one, permanently. It
/// neither allocates nor panics; on a processor that is not known here it does nothing.
///
/// Calls after the first [`ALLOWED_MAX`] are not allowed. `no_new_privs` must be set.
pub(crate) fn allow_only(calls: &[libc::c_long]) {
    let Some(arch) = ARCH else { return };
    let mut program = [insn(RETURN, KILL, 0, 0); ALLOWED_MAX * 2 + 7];
    let head = [
        insn(LOAD, ARCH_AT, 0, 0),
        insn(IF_EQUAL, arch, 1, 0),
        insn(RETURN, KILL, 0, 0),
        insn(LOAD, NUMBER_AT, 0, 0),
    ];
    let allow = |number: &libc::c_long| {
        [
            insn(IF_EQUAL, *number as u32, 0, 1),
            insn(RETURN, ALLOW, 0, 0),
        ]
    };
    let all = calls.iter().take(ALLOWED_MAX).flat_map(allow);
    // What follows them ends the process.
    for (place, insn) in program.iter_mut().zip(head.into_iter().chain(all)) {
        *place = insn;
    }
    let fprog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: reads `fprog` and the instructions after it, which live through the call.
    unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, &raw const fprog) };
}

#[cfg(test)]
mod tests;
