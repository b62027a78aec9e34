//! Any filter on any packet: refused, or run with one verdict by interpreter and translations.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    bpf::laws::filter_input(input);
});
