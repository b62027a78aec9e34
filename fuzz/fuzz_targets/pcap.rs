//! Any bytes as a capture file: shown whole and piece by piece, its packets dissected.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire::laws::file(input));
