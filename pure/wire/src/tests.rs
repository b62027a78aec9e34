//! Tests over many files: the offsets that every view reads, and the result of every step.

mod fields;
mod steps;
mod texts;
mod transports;
mod tunnels;
mod views;

use crate::Reason;
use core::fmt::Display;
use std::string::{String, ToString};

/// A header whose byte `i` is `0x10 + i`, so that each value shows its offset, with the bytes of
/// `set` at their offsets.
fn counted<const N: usize>(set: &[(usize, &[u8])]) -> [u8; N] {
    let mut bytes = core::array::from_fn(|i| 0x10 + i as u8);
    for (at, values) in set {
        bytes[*at..at + values.len()].copy_from_slice(values);
    }
    bytes
}

/// The printed view, or the reason why there is none.
fn text(view: Result<impl Display, Reason>) -> String {
    match view {
        Ok(view) => view.to_string(),
        Err(reason) => std::format!("[{reason}]"),
    }
}
