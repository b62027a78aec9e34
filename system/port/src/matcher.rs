//! A filter prepared to run in user space: as machine code if the system allows it, otherwise in
//! the interpreter.

use std::sync::Arc;

use bpf::cbpf::Program;
use bpf::vm_cbpf::{self, PacketInfo};
use sys::code::FilterCode;

/// A filter ready to run. Clones share the code.
#[derive(Clone, Debug)]
pub struct Matcher {
    program: Arc<Program>,
    code: Option<Arc<FilterCode>>,
}

impl Matcher {
    /// Prepares a filter.
    pub fn new(program: impl Into<Arc<Program>>) -> Self {
        let program = program.into();
        Matcher {
            code: native(&program).map(Arc::new),
            program,
        }
    }

    /// The filter.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether it runs as machine code.
    pub fn is_native(&self) -> bool {
        self.code.is_some()
    }

    /// Whether the filter selects a packet without metadata.
    #[inline]
    pub fn selects(&self, bytes: &[u8], wire_len: u32) -> bool {
        self.run(bytes, wire_len, &PacketInfo::UNKNOWN) != 0
    }

    /// Runs the filter: returns how many bytes of the packet to keep, 0 for none. `wire_len` is the
    /// packet's length on the wire; `bytes` may be shorter.
    #[inline]
    pub fn run(&self, bytes: &[u8], wire_len: u32, info: &PacketInfo) -> u32 {
        let native = self
            .code
            .as_ref()
            .and_then(|code| code.run(bytes, wire_len));
        native.unwrap_or_else(|| vm_cbpf::run_with(&self.program, bytes, wire_len, info))
    }
}

/// `None` if the filter needs the interpreter, or the system allows no code generated at run time.
#[cfg(target_arch = "x86_64")]
fn native(program: &Program) -> Option<FilterCode> {
    let code = bpf::native::x86_64(program)?;
    // SAFETY: the compiler emits a function of that convention. Each load is preceded by a
    // comparison of its end with the bytes present; what is written is scratch memory within the
    // red zone; the jumps of a checked program lead forward, to instructions of the program or to
    // the refusal after the last, so it returns.
    unsafe { FilterCode::new(&code) }.ok()
}

#[cfg(not(target_arch = "x86_64"))]
fn native(_: &Program) -> Option<FilterCode> {
    None
}

#[cfg(test)]
mod tests;
