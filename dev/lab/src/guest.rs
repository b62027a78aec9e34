//! Inside the guest of `cargo xtask lab`: real drivers on emulated cards.
//!
//! `docs/guides/guest-lab.md` lists the cards and how they are connected.

mod bound;
mod wire;

pub use bound::Bound;
pub use wire::{Pulled, request_link_check};

use crate::skip::Missing;

/// Variable that is set in the guest.
pub const GUEST_VAR: &str = "BAREWIRE_GUEST";

/// The skip message of a test that needs the guest; `cargo xtask test` runs it there.
pub const NEEDS_GUEST: &str = "the guest lab (cargo xtask lab)";

/// Checks that this is the guest, whose cards may be used in any way.
///
/// # Errors
/// Outside the guest.
pub fn inside() -> Result<(), Missing> {
    // What the guest's init uses; a variable alone is easily set elsewhere.
    let is_there = ["/job", "/cards"]
        .iter()
        .all(|file| std::path::Path::new(file).is_file());
    match std::env::var_os(GUEST_VAR) {
        Some(_) if is_there => Ok(()),
        _ => Err(Missing::Machine(NEEDS_GUEST.into())),
    }
}

/// Checks that the guest has libpcap, which it gets from the host.
///
/// # Errors
/// If the host has none.
pub fn libpcap() -> Result<(), Missing> {
    sys::libpcap::version()
        .map(drop)
        .map_err(|_| Missing::Program {
            name: "libpcap".into(),
            package: "libpcap0.8".into(),
        })
}

/// Checks that virtio-net has two queue pairs, as it does if the lab can create TAP interfaces.
///
/// If it has one.
/// When it has one.
pub fn two_queues() -> Result<(), Missing> {
    match std::env::var("BAREWIRE_GUEST_QUEUES").as_deref() {
        Ok("1") => Err(Missing::Machine(
            "a guest whose virtio-net has two queue pairs (the lab says what is in the way)".into(),
        )),
        _ => Ok(()),
    }
}
