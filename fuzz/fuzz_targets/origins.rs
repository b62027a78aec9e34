//! Any bytes as a list of address ranges, makers of network cards, or a MaxMind DB.
//!
//! The readers are taken file by file: their crate has the ports, the drivers and their C
//! libraries behind it, which a target does not need.
#![no_main]
#![allow(dead_code)]

#[path = "../../host/runtime/src/origin_table/database.rs"]
mod database;
#[path = "../../host/runtime/src/origin_table/laws.rs"]
mod laws;
#[path = "../../host/runtime/src/origin_table/ranges.rs"]
mod ranges;
#[path = "../../host/runtime/src/origin_table/vendors.rs"]
mod vendors;

libfuzzer_sys::fuzz_target!(|input: &[u8]| laws::file_input(input));
