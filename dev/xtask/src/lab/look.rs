//! A job that receives nothing on a wire requests an examination of the guest from outside: the
//! host's counters, and whether the emulator has lost an interrupt.
//!
//! The job prints `@@lab look` on a line of its own. The findings are printed; if the emulator has
//! failed (see [`monitor`]), the guest is ended, and a suite is run again in another.

use std::path::Path;

use super::monitor;
use crate::netns::Netns;

/// Maximum number of examinations per guest.
pub const MAX: u32 = 5;

/// The line.
pub const MARK: &str = "@@lab look";

/// Prints the findings. Returns the failure of the emulator, if any.
pub fn at(dir: &Path, wires: Option<&Netns>) -> Option<String> {
    let report = |text: &str| text.lines().for_each(|line| println!("lab host: {line}"));
    if let Some(ns) = wires {
        match ns.ip("-s link") {
            Ok(text) => report(&text),
            Err(error) => report(&format!("{error:#}")),
        }
    }
    match monitor::vectors(dir) {
        Ok(text) => report(&text),
        Err(error) => report(&format!("QEMU's monitor: {error:#}")),
    }
    match monitor::stuck(dir) {
        Ok(Some(fault)) => {
            report(&fault);
            Some(fault)
        }
        Ok(None) => {
            report("processors: in order");
            None
        }
        Err(error) => {
            report(&format!("QEMU's monitor: {error:#}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_line_equals_that_of_the_lab() {
        let says = include_str!("../../../lab/src/guest/wire.rs");
        let (prefix, word) = MARK.split_once(' ').unwrap();
        assert!(says.contains(&format!("\\n{prefix} {{words}}\\n")));
        assert!(says.contains(&format!("say(\"{word}\")")));
    }
}
