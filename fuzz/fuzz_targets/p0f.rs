//! Any text as a p0f signature, on any packet: refused with a position in the text, or programs
//! with the verdicts of the rules, exact and fuzzy.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    filter::laws::signature_input(input);
});
