//! Any packets into any meter: none is lost, none is counted twice.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| flow::conservation::law(input));
