//! Frames of authentic QUIC packets; and the same bytes as datagrams.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| inspect::laws::quic(input));
