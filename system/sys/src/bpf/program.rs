//! Programs: load, describe, run on a given packet.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::object::{self, Copyable};
use super::{PROG_LOAD, PROG_TEST_RUN, bpf, bpf_fd, name_text, object_name};
use crate::{Error, Result};

/// Kinds of program that we load; the value is the kernel's `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum ProgramType {
    /// Attached to a socket; it returns how many bytes of the packet to keep.
    SocketFilter = 1,
    /// Attached to a device's traffic control, in either direction.
    SchedCls = 3,
    /// Attached to a device, before the network stack.
    Xdp = 6,
}

/// `BPF_F_XDP_HAS_FRAGS`: the program can take packets of several buffers (Linux 5.18).
pub const XDP_FLAG_FRAGS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY`: bound to one device, may call its metadata kfuncs (Linux 6.3).
pub const XDP_FLAG_DEVICE_BOUND: u32 = 1 << 6;

/// `BPF_XDP` of `enum bpf_attach_type`.
pub(super) const ATTACH_TYPE_XDP: u32 = 37;
/// `BPF_TCX_INGRESS`.
pub(super) const ATTACH_TYPE_TCX_INGRESS: u32 = 46;

pub(super) const LICENSE: &CStr = c"Dual BSD/GPL";

/// Size of the buffer for the verifier's log at first; enlarged when the log does not fit.
const LOG_LEN_FIRST: usize = 256 << 10;
/// The largest buffer. The kernel's limit is `UINT_MAX >> 2`; nobody reads that much.
const LOG_LEN_MAX: usize = 16 << 20;

/// The parameters of a program to load.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSpec<'a> {
    /// Its kind.
    pub kind: ProgramType,
    /// Its name for users, 15 bytes at most.
    pub name: &'a str,
    /// The instructions, eight bytes each in this machine's byte order.
    pub insns: &'a [u64],
    /// `XDP_FLAG_` constants.
    pub flags: u32,
    /// The device that a device-bound program is for, else 0.
    pub ifindex: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct LoadAttr {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; 16],
    pub(super) prog_ifindex: u32,
    pub(super) expected_attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// `struct bpf_prog_info` up to the name; the rest is not requested.
#[repr(C)]
#[derive(Default)]
struct InfoRaw {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited_insns: u64,
    xlated_insns: u64,
    load_time_ns: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; 16],
}

// SAFETY: repr(C), integers only.
unsafe impl Copyable for InfoRaw {}

/// Why a program was refused.
#[derive(Debug)]
pub struct LoadFailure {
    /// The errno.
    pub source: io::Error,
    /// The verifier's log; empty if it wrote nothing.
    pub log: String,
}

/// The kernel's info about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// The kernel's `enum bpf_prog_type`.
    pub kind: u32,
    /// Its name, as given when it was loaded.
    pub name: String,
    /// Hash of its instructions.
    pub tag: [u8; 8],
    /// Whether it is compiled to machine code; otherwise the kernel interprets it.
    pub jited: bool,
    /// User id of the process that loaded it.
    pub uid: u32,
}

/// A program, held open; it exists as long as a process holds it or it is attached.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// The input of [`Program::test_run`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TestRun<'a> {
    /// The packet.
    pub data: &'a [u8],
    /// The context (`struct xdp_md` or `struct __sk_buff`), or empty for the kernel's own.
    pub context: &'a [u8],
    /// How many times to run it; 0 means once.
    pub repeat: u32,
    /// `BPF_F_TEST_XDP_LIVE_FRAMES`: the kernel carries out the verdicts (Linux 5.18).
    pub live_frames: bool,
    /// With live frames: packets per batch, at most 256; 0 means the kernel's 64.
    pub batch_size: u32,
    /// Size of the buffer for the packet as the program left it; 0 if it is not wanted.
    pub data_out_max: u32,
}

/// The result of [`Program::test_run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestRunResult {
    /// What the program returned in the last round.
    pub retval: u32,
    /// Average duration of a round in ns, as measured by the kernel.
    pub duration_ns: u32,
    /// The packet as the program left it.
    pub data: Vec<u8>,
}

impl Program {
    /// Loads a program, which the verifier checks.
    ///
    /// The verifier's log is requested only after a first refusal: writing it costs more than
    /// verifying.
    pub fn load(spec: &ProgramSpec<'_>) -> std::result::Result<Self, LoadFailure> {
        let mut attr = LoadAttr {
            prog_type: spec.kind as u32,
            insn_cnt: u32::try_from(spec.insns.len()).unwrap_or(u32::MAX),
            insns: spec.insns.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
            prog_flags: spec.flags,
            prog_name: object_name(spec.name),
            prog_ifindex: spec.ifindex,
            expected_attach_type: if spec.kind == ProgramType::Xdp {
                ATTACH_TYPE_XDP
            } else {
                0
            },
            ..LoadAttr::default()
        };
        // SAFETY: insns and license point at live memory of the stated length, which is only read.
        let refused = match unsafe { bpf_fd(PROG_LOAD, &mut attr) } {
            Ok(fd) => return Ok(Self { fd }),
            Err(e) => e,
        };
        // Missing privileges and exceeded limits are reported before the verifier runs, so there is
        // no log.
        let denied = matches!(refused.raw_os_error(), Some(libc::EPERM | libc::E2BIG));
        let mut log = vec![0; if denied { 0 } else { LOG_LEN_FIRST }];
        while !log.is_empty() {
            attr.log_level = 1;
            attr.log_size = log.len() as u32;
            attr.log_buf = log.as_mut_ptr() as u64;
            // SAFETY: as above, and log_buf is writable for log_size bytes.
            match unsafe { bpf_fd(PROG_LOAD, &mut attr) } {
                // The second try succeeded: memory was short at the first one.
                Ok(fd) => return Ok(Self { fd }),
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && log.len() < LOG_LEN_MAX => {
                    let len = log.len() * 8;
                    log = vec![0; len];
                }
                Err(source) => {
                    let len = log.iter().position(|&b| b == 0).unwrap_or(log.len());
                    log.truncate(len);
                    let log = String::from_utf8_lossy(&log).into_owned();
                    return Err(LoadFailure { source, log });
                }
            }
        }
        Err(LoadFailure {
            source: refused,
            log: String::new(),
        })
    }

    /// Adopts a descriptor of a program.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Gives it a name in a mounted BPF file system, which keeps it loaded until the file is
    /// removed.
    ///
    /// # Errors
    /// `AlreadyExists`; `PermissionDenied` for a path in another file system.
    pub fn pin(&self, path: &str) -> io::Result<()> {
        super::pin(self.fd.as_fd(), path)
    }

    /// The kernel's info about it.
    pub fn info(&self) -> Result<ProgramInfo> {
        let raw: InfoRaw = object::info(self.fd.as_fd(), InfoRaw::default())
            .map_err(|e| Error::from_io("query a BPF program", e))?;
        Ok(ProgramInfo {
            id: raw.id,
            kind: raw.kind,
            name: name_text(&raw.name),
            tag: raw.tag,
            jited: raw.jited_len > 0,
            uid: raw.created_by_uid,
        })
    }

    /// Runs it on a packet without a device (or, with live frames, as if the packet had arrived at
    /// one). A signal ends a long run early with EINTR.
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<TestRunResult> {
        let mut data = vec![0u8; run.data_out_max as usize];
        let mut attr = TestAttr {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: run.data.len() as u32,
            data_in: run.data.as_ptr() as u64,
            data_size_out: run.data_out_max,
            data_out: if data.is_empty() {
                0
            } else {
                data.as_mut_ptr() as u64
            },
            repeat: run.repeat,
            ctx_size_in: run.context.len() as u32,
            ctx_in: if run.context.is_empty() {
                0
            } else {
                run.context.as_ptr() as u64
            },
            flags: if run.live_frames { 1 << 1 } else { 0 },
            batch_size: run.batch_size,
            ..TestAttr::default()
        };
        // SAFETY: both inputs are read for their stated lengths, data_out is writable for
        // data_size_out bytes.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }
            .map_err(|e| Error::from_io("run a BPF program on a packet", e))?;
        data.truncate(attr.data_size_out as usize);
        Ok(TestRunResult {
            retval: attr.retval,
            duration_ns: attr.duration,
            data,
        })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
