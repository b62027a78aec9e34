//! Any eBPF instructions on any packet: the interpreter gives a result or a fault.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bpf::laws::extended_input(input));
