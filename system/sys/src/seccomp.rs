//! A permanent system call filter (seccomp(2)): blocks starting programs, tracing others, changing
//! mounts, kernel, clock and keys. What packets could make a parser do ends there.
//!
//! A list of what is denied, not of what is allowed: the C library and other libraries may use new
//! calls for old work with every release, and a capture must not end for that.

use std::io;

use crate::{Error, ErrorKind, Result};

/// What stays allowed of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Start programs (`execve`).
    pub exec: bool,
}

const EXEC: &[libc::c_long] = &[libc::SYS_execve, libc::SYS_execveat];

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
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
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

/// Calls of x86-64 with 32-bit pointers have this bit, and numbers of their own.
const X32: u32 = 0x4000_0000;
/// Where `struct seccomp_data` has the number of the call, and the architecture.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
/// `SECCOMP_RET_ALLOW`, and `SECCOMP_RET_ERRNO` with `EPERM`.
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
/// `SECCOMP_RET_ACTION_FULL`: without the number of an error.
const ACTION: u32 = 0xffff_0000;
/// `SECCOMP_GET_ACTION_AVAIL`.
const GET_ACTION_AVAIL: libc::c_uint = 2;
/// `SECCOMP_SET_MODE_FILTER`, and its flag for all threads of the process.
const SET_MODE_FILTER: libc::c_uint = 1;
const TSYNC: libc::c_uint = 1;

/// Instructions of classic BPF (Linux `include/uapi/linux/bpf_common.h`): load a word, jump if
/// equal, jump if at least, return.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

fn insn(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The filter: calls of another architecture are refused, those on the list too.
fn program(arch: u32, keep: Keep) -> Vec<libc::sock_filter> {
    let exec = if keep.exec { &[] } else { EXEC };
    let mut program = vec![
        insn(LOAD, ARCH_AT, 0, 0),
        insn(IF_EQUAL, arch, 1, 0),
        insn(RETURN, REFUSE, 0, 0),
        insn(LOAD, NUMBER_AT, 0, 0),
        insn(IF_AT_LEAST, X32, 0, 1),
        insn(RETURN, REFUSE, 0, 0),
    ];
    for number in DENIED.iter().chain(exec) {
        program.push(insn(IF_EQUAL, *number as u32, 0, 1));
        program.push(insn(RETURN, REFUSE, 0, 0));
    }
    program.push(insn(RETURN, ALLOW, 0, 0));
    program
}

/// Whether this kernel and processor can do it.
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
                "a container's filter refuses it",
                "allow seccomp in the container's seccomp profile",
            ),
            _ => absent(
                "the kernel has no filters",
                "use Linux 4.14 or later with CONFIG_SECCOMP_FILTER",
            ),
        },
    }
}

/// Blocks the calls in the list in all threads, permanently; programs started later inherit the
/// filter. False where the kernel has no seccomp filters, or the processor is not known here.
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
            return Err(Error::last_os("give up system calls"));
        }
        libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, TSYNC, &fprog)
    };
    match result {
        0 => Ok(true),
        1.. => Err(Error::new(
            ErrorKind::Io,
            "give up system calls",
            format!("thread {result} has a filter of its own"),
        )),
        _ => match io::Error::last_os_error().raw_os_error() {
            // Not built in, or a container's own filter refuses the call.
            Some(libc::ENOSYS | libc::EINVAL | libc::EPERM) => Ok(false),
            _ => Err(Error::last_os("give up system calls")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks this test binary, started again.
    const CHILD: &str = "BW_SECCOMP_CHILD";

    /// Runs in a process of its own, because a filter is for good.
    #[test]
    fn child_gives_up_calls() {
        let Some(kind) = std::env::var_os(CHILD) else {
            return;
        };
        let keep = Keep {
            exec: kind == "exec",
        };
        let earlier = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = earlier.1.recv();
            run_true()
        });
        if !confine(keep).unwrap() {
            println!("not supported");
            return;
        }
        drop(earlier.0);
        for result in [run_true(), thread.join().unwrap()] {
            match (keep.exec, result) {
                (true, result) => assert!(result.unwrap().success()),
                (false, result) => assert_eq!(result.unwrap_err().raw_os_error(), Some(1)),
            }
        }
        // SAFETY: refused before anything is read.
        let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        let error = std::io::Error::last_os_error();
        assert_eq!((traced, error.raw_os_error()), (-1, Some(libc::EPERM)));
        // What programs do every day goes on.
        assert!(
            std::fs::read_to_string("/proc/self/status")
                .unwrap()
                .contains("Seccomp:\t2")
        );
        std::thread::spawn(|| ()).join().unwrap();
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        println!("given up");
    }

    fn run_true() -> std::io::Result<std::process::ExitStatus> {
        std::process::Command::new("true").status()
    }

    #[test]
    fn calls_are_given_up_by_all_threads() {
        for kind in ["exec", "none"] {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "seccomp::tests::child_gives_up_calls",
                    "--nocapture",
                ])
                .env(CHILD, kind)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&child.stdout);
            let errors = String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success(), "{text}{errors}");
            assert!(
                text.contains("given up") || text.contains("not supported"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_filter_is_short_and_ends() {
        let program = program(1, Keep::default());
        assert!(program.len() < 256);
        for (at, insn) in program.iter().enumerate() {
            let next = at + 1 + usize::from(insn.jt.max(insn.jf));
            assert!(insn.code == RETURN || next < program.len(), "{at}");
        }
    }
}
