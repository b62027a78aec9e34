//! A loaded XDP program.

use bpf::ebpf::Insn;
use sys::bpf::{
    LoadFailure, Loader, Program, ProgramInfo, ProgramSpec, ProgramType, TestRun, TestRunResult,
    XDP_FLAG_DEVICE_BOUND, XDP_FLAG_FRAGS,
};
use sys::{Error, ErrorKind, Result};

use crate::verifier;

/// An XDP program loaded into the kernel, not yet attached.
#[derive(Debug)]
pub struct XdpProgram {
    program: Program,
    info: ProgramInfo,
}

impl XdpProgram {
    /// Loads instructions. `frags`: the program handles multi-buffer packets (Linux 5.18).
    /// `device`: the program is for this device only and calls its metadata kfuncs (Linux 6.3).
    ///
    /// # Errors
    /// `Permission` without CAP_BPF and CAP_NET_ADMIN; a refusal by the verifier includes its
    /// message.
    pub fn load(name: &str, insns: &[Insn], frags: bool, device: Option<u32>) -> Result<Self> {
        let words = words(insns);
        let program = Program::load(&spec(name, &words, frags, device))
            .map_err(|failure| refused("XDP", name, failure))?;
        let info = program.info()?;
        Ok(Self { program, info })
    }

    /// As [`XdpProgram::load`], in the process of a loader, which also attaches it.
    pub(crate) fn load_by(
        loader: &mut Loader,
        name: &str,
        insns: &[Insn],
        (frags, device): (bool, Option<u32>),
    ) -> Result<Self> {
        let words = words(insns);
        let program = loader.replace(&spec(name, &words, frags, device))?;
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

    pub(crate) fn raw(&self) -> &Program {
        &self.program
    }
}

fn words(insns: &[Insn]) -> Vec<u64> {
    insns.iter().map(|insn| insn.to_word()).collect()
}

fn spec<'a>(name: &'a str, words: &'a [u64], frags: bool, device: Option<u32>) -> ProgramSpec<'a> {
    let frags = if frags { XDP_FLAG_FRAGS } else { 0 };
    let bound = device.map_or(0, |_| XDP_FLAG_DEVICE_BOUND);
    ProgramSpec {
        kind: ProgramType::Xdp,
        name,
        insns: words,
        flags: frags | bound,
        ifindex: device.unwrap_or(0),
    }
}

/// Converts the kernel's refusal to an error with the reason.
pub(crate) fn refused(kind: &str, name: &str, failure: LoadFailure) -> Error {
    let code = failure.source.raw_os_error();
    let error = Error::from_io(format!("load the {kind} program {name}"), failure.source);
    // EPERM and EINVAL; the verifier's reason, if there is one, is the better text.
    match (code, verifier::explain(&failure.log)) {
        (_, Some(text)) => error.with_why(text),
        (Some(1), None) => error
            .with_kind(ErrorKind::Permission)
            .with_hint("run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"),
        (Some(22), None) => error
            .with_why("the kernel does not support this type of program or one of its flags")
            .with_hint("`barewire doctor` shows what this kernel supports"),
        (_, None) => error,
    }
}
