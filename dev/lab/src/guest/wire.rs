//! Requests from a test in the guest to the host: unplugging cables of the guest's cards, and
//! examining the guest from outside.

use std::io::Write;

/// A card with its cable unplugged; it is plugged in again on drop.
///
/// The host reacts soon, but not at once: the card's link shows when.
#[derive(Debug)]
pub struct Pulled<'a> {
    card: &'a str,
}

impl<'a> Pulled<'a> {
    /// Has the host unplug the cable of the card with this interface name.
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

/// Has the host examine the guest from outside and print what it sees; it ends a guest in which the
/// emulator has failed, and runs the suite again. This takes some twenty seconds.
pub fn request_link_check() {
    say("look");
}

/// Prints a line on standard output for `cargo xtask lab`.
fn say(words: &str) {
    let mut out = std::io::stdout().lock();
    // libtest's own line may not be complete.
    let _ = write!(out, "\n@@lab {words}\n");
    let _ = out.flush();
}
