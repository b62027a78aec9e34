//! Any two directions of a TCP connection, cut and turned: the same is reported.
#![no_main]

use std::cell::RefCell;

use inspect::laws::Laws;

thread_local! {
    /// One inspector for all inputs: a new one costs more than most of them, and is not different.
    static LAWS: RefCell<Laws> = RefCell::default();
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| LAWS.with_borrow_mut(|laws| laws.stream(input)));
