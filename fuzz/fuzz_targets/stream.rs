//! Any two directions of a TCP connection, cut and turned: the same is told.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| inspect::laws::stream(input));
