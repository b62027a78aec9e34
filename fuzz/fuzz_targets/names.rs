//! Any text as a list of DNS names, on any packet: refused with a position in the text, or a
//! program with the verdicts of the rules.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    filter::laws::names_input(input);
});
