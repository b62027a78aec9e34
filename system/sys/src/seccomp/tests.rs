//! Tests of the filter in processes of their own, because it is permanent.

use super::*;

/// The flags that the C library uses for a thread.
const THREAD: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Set in the environment of this test binary when it is started again.
const CHILD: &str = "BW_SECCOMP_CHILD";

/// Runs in a process of its own, because a filter is permanent.
#[test]
fn child_blocks_system_calls() {
    let kind = skip::child_body!(CHILD);
    let keep = Keep {
        exec: kind == "exec",
        bpf: kind == "bpf",
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
    refuses_namespaces();
    // SAFETY: refused, or fails: there is no such command, and no memory is given.
    let called = unsafe { libc::syscall(libc::SYS_bpf, -1, 0, 0) };
    let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    assert!(called < 0 && (refused || keep.bpf), "{kind:?}");
    // What programs do every day stays allowed.
    assert!(
        std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .contains("Seccomp:\t2")
    );
    std::thread::spawn(|| ()).join().unwrap();
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    println!("given up");
}

fn refuses_namespaces() {
    let user = libc::CLONE_NEWUSER | libc::SIGCHLD;
    for (name, number, first, code) in [
        (
            "unshare",
            libc::SYS_unshare,
            libc::CLONE_NEWNET,
            libc::EPERM,
        ),
        ("setns", libc::SYS_setns, -1, libc::EPERM),
        ("clone", libc::SYS_clone, user, libc::EPERM),
        ("clone3", libc::SYS_clone3, 0, libc::ENOSYS),
    ] {
        // SAFETY: no memory is given. Each is refused; a child that is made nevertheless gets a
        // copy of everything, and fails the assertion.
        let result = unsafe { libc::syscall(number, first, 0, 0, 0, 0) };
        let error = std::io::Error::last_os_error();
        assert_eq!((result, error.raw_os_error()), (-1, Some(code)), "{name}");
    }
}

fn run_true() -> std::io::Result<std::process::ExitStatus> {
    std::process::Command::new("true").status()
}

#[test]
fn calls_are_given_up_by_all_threads() {
    for kind in ["exec", "bpf", "none"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "seccomp::tests::child_blocks_system_calls",
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
    let bits = [
        NEW_NAMESPACES & libc::SIGCHLD as u32,
        NEW_NAMESPACES & THREAD as u32,
    ];
    assert_eq!(bits, [0, 0], "children and threads");
    for (at, insn) in program.iter().enumerate() {
        let next = at + 1 + usize::from(insn.jt.max(insn.jf));
        assert!(insn.code == RETURN || next < program.len(), "{at}");
    }
}
