//! A job that has found a wire on which nothing arrives asks for a look at the machine around it:
//! what the host has counted, and whether the emulator has lost an interrupt.
//!
//! The job says `@@lab look` on a line of its own. What is seen is printed; if the emulator has
//! failed the guest (see [`monitor`]), the guest is ended and its suite run again.

use std::path::Path;

use super::monitor;
use crate::netns::Netns;

/// How many a guest may have.
pub const MAX: u32 = 5;

/// The line.
pub const MARK: &str = "@@lab look";

/// Prints what is seen. What has failed the guest, if something has.
pub fn at(dir: &Path, wires: Option<&Netns>) -> Option<String> {
    let tell = |text: &str| text.lines().for_each(|line| println!("lab host: {line}"));
    if let Some(ns) = wires {
        match ns.ip("-s link") {
            Ok(text) => tell(&text),
            Err(error) => tell(&format!("{error:#}")),
        }
    }
    match monitor::vectors(dir) {
        Ok(text) => tell(&text),
        Err(error) => tell(&format!("QEMU's monitor: {error:#}")),
    }
    monitor::stuck(dir)
}
