//! A helper process that keeps the right to replace an attached program after this process has
//! dropped it.
//!
//! A library does not know when its program drops its privileges. The helper is a copy of this
//! process (clone(2)) that runs nothing but [`serve`]: system calls on memory and descriptors set
//! up before. Other threads may have held locks at the moment of the copy, of the allocator for
//! example, so it must not allocate or panic. It keeps two capabilities, the descriptors that
//! programs refer to and nothing else, and ends when the last copy of this end's socket is closed.
//! No signal is sent when it ends, so the program's own waits for children do not see it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::link::UpdateAttr;
use super::program::{ATTACH_TYPE_XDP, LICENSE, LoadAttr};
use super::{LINK_UPDATE, PROG_LOAD, Program, ProgramSpec, ProgramType};
use super::{bpf, bpf_fd, object_name};
use crate::descriptors::{receive, send_message};
use crate::mmap::Mapping;
use crate::{Error, ErrorKind, Result, seccomp};

/// Maximum number of instructions of a program.
const INSNS_MAX: usize = 1 << 16;
/// Maximum number of descriptors that the helper keeps, with its socket.
const KEPT_MAX: usize = 16;
/// Its name in lists of processes.
const NAME: &CStr = c"barewire-filter";

/// The helper; it ends when this is dropped.
#[derive(Debug)]
pub struct Loader {
    pid: libc::pid_t,
    socket: UnixStream,
    /// Instructions of the program to load, shared with the helper.
    room: Mapping,
}

/// A request: what [`ProgramSpec`] says besides the instructions.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    name: [u8; 16],
    insn_count: u32,
    flags: u32,
    ifindex: u32,
}

impl Loader {
    /// Starts the helper. It replaces the XDP program of `link`; programs may refer to the maps
    /// `maps`, by the numbers of these descriptors.
    ///
    /// # Errors
    /// Any error of the system; `InvalidInput` for too many maps.
    pub fn start(link: BorrowedFd<'_>, maps: &[BorrowedFd<'_>]) -> Result<Self> {
        const WHAT: &str = "start the process that loads filters";
        let (socket, other) = UnixStream::pair().map_err(|error| Error::from_io(WHAT, error))?;
        let room = Mapping::anonymous_shared(INSNS_MAX * size_of::<u64>())?;
        let mut kept = [RawFd::MAX; KEPT_MAX];
        let own = [link.as_raw_fd(), other.as_raw_fd()];
        let wanted = own
            .into_iter()
            .chain(maps.iter().map(|map| map.as_raw_fd()));
        // At least one place stays free: what follows the last descriptor is closed, too.
        if maps.len() + own.len() >= KEPT_MAX {
            let why = format!("{} maps", maps.len());
            return Err(Error::new(ErrorKind::InvalidInput, WHAT, why));
        }
        for (place, fd) in kept.iter_mut().zip(wanted) {
            *place = fd;
        }
        kept.sort_unstable();
        let helper = Helper {
            socket: other.as_raw_fd(),
            link: link.as_raw_fd(),
            insns: room.base().as_ptr().cast(),
            kept,
        };
        let pid = copy_process(&helper).map_err(|error| Error::from_io(WHAT, error))?;
        Ok(Self { pid, socket, room })
    }

    /// Loads an XDP program and attaches it in place of the one before.
    ///
    /// # Errors
    /// What the kernel answers, without the verifier's reasons; `Unsupported` for a program that is
    /// too long.
    pub fn replace(&mut self, spec: &ProgramSpec<'_>) -> Result<Program> {
        let what = "replace the attached program";
        if spec.kind != ProgramType::Xdp || spec.insns.len() > INSNS_MAX {
            let why = format!("it has {} instructions", spec.insns.len());
            return Err(Error::new(ErrorKind::Unsupported, what, why));
        }
        let room: *mut u64 = self.room.base().as_ptr().cast();
        // SAFETY: the room has space for so many (checked above) and is aligned to a page. The
        // helper reads it only between the request and its answer.
        unsafe { room.copy_from_nonoverlapping(spec.insns.as_ptr(), spec.insns.len()) };
        let request = Request {
            name: object_name(spec.name),
            insn_count: spec.insns.len() as u32,
            flags: spec.flags,
            ifindex: spec.ifindex,
        };
        crate::descriptors::send_bytes(&self.socket, &request.to_bytes())?;
        let mut code = [0; 4];
        let (len, mut fds) = receive(&self.socket, &mut code)?;
        match (len, i32::from_ne_bytes(code), fds.pop()) {
            (4, 0, Some(fd)) => Ok(Program::from_fd(fd)),
            (4, code, _) if code != 0 => {
                Err(Error::from_io(what, io::Error::from_raw_os_error(code)))
            }
            _ => Err(Error::new(
                ErrorKind::Gone,
                what,
                "its helper process has ended",
            )),
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let mut status = 0;
        // SAFETY: writes one live number.
        while unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

const REQUEST_LEN: usize = size_of::<Request>();

impl Request {
    fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..16].copy_from_slice(&self.name);
        let numbers = [self.insn_count, self.flags, self.ifindex];
        for (place, number) in bytes[16..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// Never panics: it runs in the helper.
    fn from_bytes(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (insn_count, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (ifindex, _) = rest.split_first_chunk()?;
        Some(Self {
            name: *name,
            insn_count: u32::from_ne_bytes(*insn_count),
            flags: u32::from_ne_bytes(*flags),
            ifindex: u32::from_ne_bytes(*ifindex),
        })
    }
}

/// What the helper works with.
struct Helper {
    socket: RawFd,
    link: RawFd,
    insns: *const u64,
    /// Descriptors that stay open, in ascending order; the rest is [`RawFd::MAX`].
    kept: [RawFd; KEPT_MAX],
}

/// Makes the copy, which never returns from here.
fn copy_process(helper: &Helper) -> io::Result<libc::pid_t> {
    // SAFETY: all-zero is a valid set, which the next call fills.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // A signal must not run the program's handlers in the helper.
    // SAFETY: live sets.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    // SAFETY: without flags and stack this is fork(2) without a signal at the end. The child only
    // makes system calls, on its copy of this memory.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if pid == 0 {
        confine(helper);
        serve(helper);
        // SAFETY: ends the helper without running anything else.
        unsafe { libc::_exit(0) };
    }
    let error = io::Error::last_os_error();
    // SAFETY: a live set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    match pid {
        1.. => Ok(pid as libc::pid_t),
        _ => Err(error),
    }
}

/// Gives up everything that is not needed. Runs in the helper.
fn confine(helper: &Helper) {
    let mut first = 0;
    for fd in helper.kept.iter().map(|fd| *fd as u32) {
        if fd > first {
            // SAFETY: closes descriptors that nothing in this process uses any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = fd.saturating_add(1);
    }
    crate::privileges::keep_only_loading();
    // SAFETY: plain system calls and a static string.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        // Nobody may trace it, or read the program's memory in it.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    seccomp::allow_only(&[
        libc::SYS_bpf,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_close,
        libc::SYS_exit_group,
    ]);
}

/// Answers requests until the socket is closed. Runs in the helper.
fn serve(helper: &Helper) {
    let mut bytes = [0; REQUEST_LEN];
    loop {
        // As `close` below, not by the C library: if a cancellation of the program's thread waits,
        // it would run here.
        // SAFETY: writes at most so many bytes into a live buffer, and no address.
        let received = unsafe {
            let no_address = std::ptr::null_mut::<u8>();
            libc::syscall(
                libc::SYS_recvfrom,
                helper.socket,
                bytes.as_mut_ptr(),
                REQUEST_LEN,
                libc::MSG_WAITALL,
                no_address,
                no_address,
            )
        };
        let request = match usize::try_from(received) {
            Ok(REQUEST_LEN) => Request::from_bytes(&bytes),
            _ => None,
        };
        let Some(request) = request.filter(|r| r.insn_count as usize <= INSNS_MAX) else {
            return;
        };
        let loaded = replace(helper, &request);
        let code = match &loaded {
            Ok(_) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
        };
        // SAFETY: the helper's own descriptor, open as long as it runs.
        let socket = unsafe { BorrowedFd::borrow_raw(helper.socket) };
        let code = code.to_ne_bytes();
        let sent = match &loaded {
            Ok(program) => {
                // SAFETY: borrowed from its owner.
                let program = unsafe { BorrowedFd::borrow_raw(program.as_raw_fd()) };
                send_message(socket, &code, &[program])
            }
            Err(_) => send_message(socket, &code, &[]),
        };
        if let Ok(program) = loaded {
            close(program);
        }
        if sent.is_err() {
            return;
        }
    }
}

/// Closes a descriptor: not by its owner, which checks it by a call that is not allowed, in builds
/// with debug assertions. Runs in the helper.
fn close(program: OwnedFd) {
    // SAFETY: the owner gives it up.
    unsafe { libc::syscall(libc::SYS_close, program.into_raw_fd()) };
}

/// Loads a program and attaches it. Runs in the helper.
fn replace(helper: &Helper, request: &Request) -> io::Result<OwnedFd> {
    let mut load = LoadAttr {
        prog_type: ProgramType::Xdp as u32,
        insn_cnt: request.insn_count,
        insns: helper.insns as u64,
        license: LICENSE.as_ptr() as u64,
        prog_flags: request.flags,
        prog_name: request.name,
        prog_ifindex: request.ifindex,
        expected_attach_type: ATTACH_TYPE_XDP,
        ..LoadAttr::default()
    };
    // SAFETY: the instructions are in the shared room, which has space for INSNS_MAX; the kernel
    // copies them once. The license is static.
    let program = unsafe { bpf_fd(PROG_LOAD, &mut load) }?;
    let mut update = UpdateAttr {
        link_fd: helper.link as u32,
        new_prog_fd: program.as_raw_fd() as u32,
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: the attribute holds no address.
    match unsafe { bpf(LINK_UPDATE, &mut update) } {
        Ok(_) => Ok(program),
        Err(error) => {
            close(program);
            Err(error)
        }
    }
}
