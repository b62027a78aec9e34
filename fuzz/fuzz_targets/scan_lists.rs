//! Any text as lists of targets and ports: refused with a reason, or sets that agree with their
//! ranges.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    scan::laws::lists_input(input);
});
