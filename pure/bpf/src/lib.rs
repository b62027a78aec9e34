//! cBPF and eBPF: instructions, assembler, disassembler, interpreter, translation, decision trees.
//!
//! This crate never calls the kernel. The `xdp` crate loads programs.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod asm;
pub mod cbpf;
pub mod decide;
pub mod disasm;
pub mod ebpf;
#[cfg(feature = "laws")]
pub mod laws;
pub mod native;
pub mod object;
#[cfg(test)]
mod tests;
pub mod translate;
pub mod vm_cbpf;
pub mod vm_ebpf;
