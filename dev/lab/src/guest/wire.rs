//! Requests from a test in the guest to the host: unplugging cables of the guest's cards, and
//! inspecting the guest from outside.

use std::io::Write;

/// A card whose wire is pulled; it is plugged in again on drop.
///
/// The host does it soon, not at once: the card's link shows when.
#[derive(Debug)]
pub struct Pulled<'a> {
    card: &'a str,
}

impl<'a> Pulled<'a> {
    /// Has the host pull the wire of the card that was given this interface name.
    pub fn from(card: &'a str) -> Pulled<'a> {
        ask(card, "off");
        Pulled { card }
    }
}

impl Drop for Pulled<'_> {
    fn drop(&mut self) {
        ask(self.card, "on");
    }
}

fn ask(card: &str, state: &str) {
    say(&format!("link {card} {state}"));
}

/// Has the host look at the guest from outside and print what it sees; it ends a guest that the
/// emulator has failed, and runs a suite again. It looks for some twenty seconds.
pub fn request_link_check() {
    say("look");
}

/// Prints it where `cargo xtask lab` reads: a line of its own on standard output.
fn say(words: &str) {
    let mut out = std::io::stdout().lock();
    // libtest's own line may have no end yet.
    let _ = write!(out, "\n@@lab {words}\n");
    let _ = out.flush();
}
