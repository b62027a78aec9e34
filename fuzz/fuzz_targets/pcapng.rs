//! Any bytes behind a pcapng section header, in either byte order.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire::laws::pcapng_input(input));
