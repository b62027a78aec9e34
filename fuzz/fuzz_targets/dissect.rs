//! Any bytes as a packet of any link type: dissected on all levels, cut, and printed.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire::laws::packet_input(input));
