//! Any text as a filter expression, on any packet: refused with a place in the text, or the same
//! verdict with and without the optimizer, and by every translation.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    filter::laws::expression_input(input);
});
