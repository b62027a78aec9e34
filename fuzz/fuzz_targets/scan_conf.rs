//! Any text as a masscan configuration file: refused with the number of a line, or options that
//! such a file may set.
//!
//! The reader is taken file by file: its crate is the program.
#![no_main]
#![allow(dead_code)]

#[path = "../../face/cli/src/nmap/conf.rs"]
mod conf;
#[path = "../../face/cli/src/nmap/meaning.rs"]
mod meaning;
#[path = "../../face/cli/src/nmap/ping.rs"]
mod ping;
#[path = "../../face/cli/src/nmap/table.rs"]
mod table;

use meaning::Meaning;

/// Names of formats: here those of text.
fn format_words() -> Vec<&'static str> {
    let formats = scan::report::FORMATS.iter();
    formats.map(|format| format.word).collect()
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    conf::text_input(&String::from_utf8_lossy(input));
});
