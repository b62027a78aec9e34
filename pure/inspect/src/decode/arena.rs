//! Memory for decoder states: pages reserved at startup.
//!
//! A page holds as many states of one decoder as fit, so that small states do not cost as much as
//! large ones. A page whose states have all been released serves another decoder when no other page
//! is left. Allocating and freeing take a few instructions, regardless of the number of pages.

use alloc::vec::Vec;

use super::Decode;
use super::table::{DECODERS, Slots};
use crate::identify::Row;
use crate::ports::Transport;

/// Length of a page's states in bytes. No state is larger.
pub const PAGE_LEN: usize = 5120;

/// Maximum number of states in a page.
const SLOT_MAX: usize = 255;
/// No page, no slot.
const NO_PAGE: u32 = u32::MAX;
const NO_SLOT: u8 = u8::MAX;

/// Number of states of this type per page.
pub(super) const fn slots_of<T>() -> usize {
    assert!(
        size_of::<T>() <= PAGE_LEN,
        "a state does not fit into a page"
    );
    match size_of::<T>() {
        0 => SLOT_MAX,
        len if PAGE_LEN / len < SLOT_MAX => PAGE_LEN / len,
        _ => SLOT_MAX,
    }
}

/// Decoder and transport of a page's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) row: Row,
    pub(crate) transport: Transport,
}

/// Number of kinds.
const KINDS: usize = DECODERS.len() * 2;

impl Kind {
    fn index(self) -> usize {
        (usize::from(self.row.0) * 2 + self.transport as usize).min(KINDS - 1)
    }
}

/// A state in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    page: u32,
    slot: u8,
}

impl Handle {
    /// No state.
    pub(crate) const NONE: Handle = Handle {
        page: NO_PAGE,
        slot: NO_SLOT,
    };
}

struct Page {
    slots: Slots,
    kind: Kind,
    used: u8,
    /// Index of the first slot that was never used.
    fresh: u8,
    /// The slot released last; each free slot links to the one released before.
    free: u8,
    free_before: [u8; SLOT_MAX],
    /// Neighbours in the page's list.
    before: u32,
    behind: u32,
}

/// Two lists per kind: partly used pages, and empty pages. Full pages are in no list.
#[derive(Clone, Copy)]
struct Lists {
    partial: u32,
    empty: u32,
}

/// The decoder states of one thread.
pub struct Arena {
    pages: Vec<Page>,
    page_max: usize,
    lists: [Lists; KINDS],
    used: usize,
    /// Number of pages with a state in use.
    busy: usize,
}

impl Arena {
    /// Creates an arena of this many pages.
    pub fn new(page_count: u32) -> Arena {
        Arena {
            pages: Vec::with_capacity(page_count as usize),
            page_max: page_count as usize,
            lists: [Lists {
                partial: NO_PAGE,
                empty: NO_PAGE,
            }; KINDS],
            used: 0,
            busy: 0,
        }
    }

    /// Whether at most half of the pages have states in use.
    pub fn is_half_empty(&self) -> bool {
        self.busy * 2 <= self.page_max
    }

    /// Memory of this many pages in bytes.
    pub const fn memory_len(page_count: u32) -> usize {
        page_count as usize * size_of::<Page>()
    }

    /// Number of states in use.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether no state is in use.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Allocates a state, if there is room.
    pub(crate) fn take(&mut self, kind: Kind) -> Option<Handle> {
        let at = self.page_for(kind)?;
        let page = self.pages.get_mut(at as usize)?;
        let slot = match page.free {
            NO_SLOT => {
                page.fresh += 1;
                page.fresh - 1
            }
            slot => {
                page.free = page.free_before[usize::from(slot)];
                page.slots.clear(slot.into());
                slot
            }
        };
        page.used += 1;
        let (used, count) = (page.used, page.slots.count());
        self.used += 1;
        let index = kind.index();
        if used == 1 {
            self.busy += 1;
            self.unlink(at, index, false);
            if count > 1 {
                self.link(at, index, true);
            }
        } else if usize::from(used) == count {
            self.unlink(at, index, true);
        }
        Some(Handle { page: at, slot })
    }

    /// Returns a page of this kind with room.
    fn page_for(&mut self, kind: Kind) -> Option<u32> {
        let lists = self.lists[kind.index()];
        if lists.partial != NO_PAGE {
            return Some(lists.partial);
        }
        if lists.empty != NO_PAGE {
            return Some(lists.empty);
        }
        let slots = || Slots::new(kind.row, kind.transport);
        if self.pages.len() < self.page_max {
            let at = self.pages.len() as u32;
            self.pages.push(Page {
                slots: slots()?,
                kind,
                used: 0,
                fresh: 0,
                free: NO_SLOT,
                free_before: [NO_SLOT; SLOT_MAX],
                before: NO_PAGE,
                behind: NO_PAGE,
            });
            self.link(at, kind.index(), false);
            return Some(at);
        }
        // One of another decoder.
        let other = self.lists.iter().position(|lists| lists.empty != NO_PAGE)?;
        let at = self.lists[other].empty;
        let slots = slots()?;
        self.unlink(at, other, false);
        let page = self.pages.get_mut(at as usize)?;
        page.slots = slots;
        (page.kind, page.used, page.fresh, page.free) = (kind, 0, 0, NO_SLOT);
        self.link(at, kind.index(), false);
        Some(at)
    }

    /// The state of a handle.
    #[inline]
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut dyn Decode> {
        let page = self.pages.get_mut(handle.page as usize)?;
        page.slots.get_mut(handle.slot.into())
    }

    /// Frees a state. Each must be freed once; `NONE` is ignored.
    pub(crate) fn give(&mut self, handle: Handle) {
        let Some(page) = self.pages.get_mut(handle.page as usize) else {
            return;
        };
        let Some(before) = page.free_before.get_mut(usize::from(handle.slot)) else {
            return;
        };
        debug_assert!(page.used != 0 && handle.slot < page.fresh);
        *before = page.free;
        page.free = handle.slot;
        page.used = page.used.saturating_sub(1);
        let (used, count, index) = (page.used, page.slots.count(), page.kind.index());
        self.used = self.used.saturating_sub(1);
        let was_partial = usize::from(used) + 1 < count;
        if used == 0 {
            self.busy = self.busy.saturating_sub(1);
            if was_partial {
                self.unlink(handle.page, index, true);
            }
            self.link(handle.page, index, false);
        } else if !was_partial {
            self.link(handle.page, index, true);
        }
    }

    fn head(&mut self, index: usize, is_partial: bool) -> &mut u32 {
        let lists = &mut self.lists[index];
        match is_partial {
            true => &mut lists.partial,
            false => &mut lists.empty,
        }
    }

    fn link(&mut self, at: u32, index: usize, is_partial: bool) {
        let behind = core::mem::replace(self.head(index, is_partial), at);
        if let Some(page) = self.pages.get_mut(at as usize) {
            (page.before, page.behind) = (NO_PAGE, behind);
        }
        if let Some(page) = self.pages.get_mut(behind as usize) {
            page.before = at;
        }
    }

    fn unlink(&mut self, at: u32, index: usize, is_partial: bool) {
        let Some(page) = self.pages.get(at as usize) else {
            return;
        };
        let (before, behind) = (page.before, page.behind);
        match self.pages.get_mut(before as usize) {
            Some(page) => page.behind = behind,
            None => *self.head(index, is_partial) = behind,
        }
        if let Some(page) = self.pages.get_mut(behind as usize) {
            page.before = before;
        }
    }
}

impl core::fmt::Debug for Arena {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Arena")
            .field("pages", &self.pages.len())
            .field("page_max", &self.page_max)
            .field("used", &self.used)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn kinds() -> Vec<Kind> {
        let rows = DECODERS.iter().enumerate();
        rows.flat_map(|(at, row)| {
            row.transports.iter().map(move |transport| Kind {
                row: Row(at as u16),
                transport: *transport,
            })
        })
        .collect()
    }

    #[test]
    fn states_are_allocated_and_freed_like_in_a_model() {
        const PAGES: usize = 4;
        let kinds = kinds();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % bound
        };
        let mut arena = Arena::new(PAGES as u32);
        let mut live: Vec<(Kind, Handle)> = Vec::new();
        let mut refused = 0;
        for round in 0..60_000 {
            // Now it fills, now it empties.
            if random(100) < if round / 3000 % 2 == 0 { 70 } else { 30 } {
                let kind = kinds[random(kinds.len())];
                // Pages that hold something, by what can be seen from outside.
                let pages = |of: Option<Kind>| {
                    let mine = |(own, _): &&(Kind, Handle)| of.is_none_or(|kind| *own == kind);
                    let mut pages: Vec<u32> = live.iter().filter(mine).map(|l| l.1.page).collect();
                    pages.sort_unstable();
                    pages.dedup();
                    pages.len()
                };
                let count = Slots::new(kind.row, kind.transport).unwrap().count();
                let own = live.iter().filter(|(own, _)| *own == kind).count();
                let has_room = own < pages(Some(kind)) * count || pages(None) < PAGES;
                match arena.take(kind) {
                    Some(handle) => {
                        assert!(has_room && live.iter().all(|(_, other)| *other != handle));
                        assert!(arena.get_mut(handle).is_some());
                        live.push((kind, handle));
                    }
                    None => {
                        assert!(!has_room, "refused with room left");
                        refused += 1;
                    }
                }
            } else if !live.is_empty() {
                let (_, handle) = live.swap_remove(random(live.len()));
                arena.give(handle);
            }
            assert_eq!(arena.len(), live.len());
        }
        assert!(refused > 100, "{refused}");
        for (_, handle) in live {
            arena.give(handle);
        }
        assert!(arena.is_empty() && arena.get_mut(Handle::NONE).is_none());
        arena.give(Handle::NONE);
        assert!(arena.is_empty());
    }
}
