//! Any packet, and changed answers to probes of a scan: reported only with a valid cookie.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    scan::laws::answer_input(input);
});
