//! The two cards of a rig, kept from one line to the next: in their own namespaces, or bound to
//! vfio-pci.
//!
//! Moving them there and back takes thirty processes, or two starts of a driver: in an emulated
//! guest that is most of a case's time. The cards of a case that fails are returned at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::{Joint, Rig};
use crate::Pair;
use crate::guest::Bound;

/// Two cards as a line uses them; on drop they are returned.
pub(super) enum Cards {
    /// Driven by the kernel, with this MTU.
    Kernel(Pair, u32),
    /// In user space: the sender's and the receiver's.
    User([Bound; 2]),
}

/// The unused cards, with the name of their rig.
type Kept = Option<(&'static str, Cards)>;

fn kept() -> MutexGuard<'static, Kept> {
    static KEPT: Mutex<Kept> = Mutex::new(None);
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cards of a rig, if it has any.
pub(super) fn take(rig: &Rig, mtu: u32) -> Result<Option<Cards>> {
    let before = kept().take();
    if let Some((of, cards)) = before {
        let fits = match cards {
            Cards::Kernel(_, its_mtu) => its_mtu == mtu,
            Cards::User(_) => true,
        };
        if of == rig.name && fits {
            return Ok(Some(cards));
        }
        // They are returned to the kernel before they are taken again.
        drop(cards);
    }
    Ok(match rig.joint {
        Joint::Cards([left, right], _) => {
            let pair = Pair::of_cards(left, right, mtu, rig.queues)?;
            Some(Cards::Kernel(pair, mtu))
        }
        Joint::Vfio([left, right], _) => {
            let cards = [Bound::to_vfio(left)?, Bound::to_vfio(right)?];
            Some(Cards::User(cards))
        }
        _ => None,
    })
}

/// Keeps the cards of a line that was closed without errors.
pub(super) fn put(rig: &Rig, cards: Cards) {
    *kept() = Some((rig.name, cards));
}

/// Returns the cards kept.
pub(super) fn give_back() {
    let before = kept().take();
    drop(before);
}
