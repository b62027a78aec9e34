//! A program at tc's ingress, attached through a bpf_link (TCX): where XDP is not possible, or not
//! wanted. It runs after the packet has a socket buffer, and after GRO.

use std::os::fd::AsFd;

use bpf::ebpf::Insn;
use sys::bpf::{Link, Program, ProgramInfo, ProgramSpec, ProgramType, TestRun, TestRunResult};
use sys::{Error, ErrorKind, KernelVersion, Result, Unsupported};

use crate::program::refused;

/// A tc program loaded into the kernel, not yet attached.
#[derive(Debug)]
pub struct TcProgram {
    program: Program,
    info: ProgramInfo,
}

impl TcProgram {
    /// Loads instructions.
    ///
    /// # Errors
    /// As [`crate::XdpProgram::load`].
    pub fn load(name: &str, insns: &[Insn]) -> Result<Self> {
        let words: Vec<u64> = insns.iter().map(|insn| insn.to_word()).collect();
        let program = Program::load(&ProgramSpec {
            kind: ProgramType::SchedCls,
            name,
            insns: &words,
            flags: 0,
            ifindex: 0,
        })
        .map_err(|failure| refused("tc", name, failure))?;
        let info = program.info()?;
        Ok(Self { program, info })
    }

    /// The kernel's information about the program.
    pub fn info(&self) -> &ProgramInfo {
        &self.info
    }

    /// Runs the program on a packet; see [`Program::test_run`].
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<TestRunResult> {
        self.program.test_run(run)
    }
}

/// An attachment to a device's ingress: the kernel detaches it on drop, or when the process dies.
///
/// # Since Linux
/// 6.6
#[derive(Debug)]
pub struct TcLink {
    link: Link,
}

impl TcLink {
    /// Attaches a program to a device in this network namespace, before all other programs there.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.6: an attachment of `tc` there outlives the process.
    pub fn attach(program: &TcProgram, ifindex: u32) -> Result<Self> {
        let link = Link::create_tc_ingress(&program.program, ifindex);
        let link = link.map_err(|error| explain(error, ifindex))?;
        Ok(Self { link })
    }

    /// Replaces the attached program atomically: every packet is seen by one of the two.
    pub fn update(&self, program: &TcProgram) -> Result<()> {
        self.link.update(&program.program)
    }

    /// Detaches now, even if other processes hold the link.
    pub fn detach(&self) -> Result<()> {
        self.link.detach()
    }

    /// As [`XdpLink::pin`](crate::XdpLink::pin).
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self, path: &str) -> Result<()> {
        crate::link::pin(self.link.as_fd(), path)
    }

    /// Whether the link is still attached and `program` is the attached program.
    pub fn calls(&self, program: &TcProgram) -> Result<bool> {
        let info = self.link.info()?;
        let is_attached = info.tc_ifindex.is_some_and(|index| index != 0);
        Ok(is_attached && info.program_id == program.info.id)
    }
}

/// Explains the kernel's errno for an attachment.
fn explain(error: Error, ifindex: u32) -> Error {
    let device = sys::link::Link::by_index(ifindex);
    let name = device.map_or_else(|_| format!("interface {ifindex}"), |device| device.name);
    let what = format!("attach a tc program to {name}");
    match error.os_code() {
        // EINVAL: an unknown type of attachment.
        Some(22) => {
            let since = Some(KernelVersion::new(6, 6));
            let feature = "attaching tc programs by bpf_link";
            Error::unsupported(what, Unsupported { feature, since })
                .with_hint("generic XDP works with every driver: --mode generic")
        }
        // EPERM
        Some(1) => {
            let why = "the process lacks the permission to attach programs";
            Error::new(ErrorKind::Permission, what, why)
                .with_hint("run as root, or with CAP_NET_ADMIN and CAP_BPF")
        }
        _ => error,
    }
}
