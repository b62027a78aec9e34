//! Any bytes as a stream of IPFIX messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| flow::laws::ipfix_input(input));
