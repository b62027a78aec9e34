//! Filtering rules, and headers that are parsed: Snort's DAQ module makes rules of them.

use std::ffi::{c_char, c_int, c_void};

use sys::boundary::guard;

use super::with;
use crate::header::{LONG_LEN, Parsed};
use crate::receiver::now_ns;
use crate::ring::{Outcome, Ring};
use crate::rules::{Action, layout, rule_ns};
use crate::status::{GENERIC, INVALID_ARGUMENT, NO_MEMORY, NOT_SUPPORTED};

/// Number of modes (`filtering_mode`).
const MODE_COUNT: u32 = 3;

/// The first `N` bytes of a structure of the program.
///
/// # Safety
/// `place` is null or so many bytes of the program.
unsafe fn bytes<const N: usize>(place: *const c_void) -> Outcome<[u8; N]> {
    match place.is_null() {
        true => Err(INVALID_ARGUMENT),
        // SAFETY: the caller's promise.
        false => Ok(unsafe { place.cast::<[u8; N]>().read_unaligned() }),
    }
}

/// Drops the further packets of a flow, whose number was the hash of a packet
/// (`PF_RING_FLOW_OFFLOAD`). Other rules for cards are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_add_hw_rule(ring: *mut Ring, rule: *const c_void) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a rule of the program.
        let number = layout::dropped_flow(&unsafe { bytes(rule) }?)?;
        ring.drop_flow(number).map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Filters in the card are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_hw_rule(_ring: *mut Ring, _rule: u16) -> c_int {
    NOT_SUPPORTED
}

/// Cards are not filtered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_default_hw_action(_ring: *mut Ring, _action: c_int) -> c_int {
    NOT_SUPPORTED
}

/// Rules about the payload are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_search_payload(_ring: *mut Ring, _text: *const c_char) -> c_int {
    NOT_SUPPORTED
}

/// Cards with filters of their own are not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_virtual_device(
    _ring: *mut Ring,
    _info: *const c_void,
) -> c_int {
    NOT_SUPPORTED
}

/// What rules drop is not sampled. Rate 0, which disables sampling, is accepted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_filtering_sampling_rate(ring: *mut Ring, rate: u32) -> c_int {
    let body = |_: &Ring| if rate == 0 { Ok(0) } else { Err(NOT_SUPPORTED) };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Adds a wildcard rule, or replaces that of the same number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_add_filtering_rule(ring: *mut Ring, rule: *const c_void) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a rule of the program.
        let (number, rule) = layout::wildcard(&unsafe { bytes(rule) }?)?;
        let add = ring
            .rules
            .change(|table| table.add_wildcard(number, rule, rule_ns()));
        add.map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Removes a wildcard rule.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_remove_filtering_rule(ring: *mut Ring, number: u16) -> c_int {
    let body = |ring: &Ring| {
        let remove = ring.rules.change(|table| table.remove_wildcard(number));
        remove.map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Sets whether packets that match no rule are returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_toggle_filtering_policy(ring: *mut Ring, accepts: u8) -> c_int {
    let body = |ring: &Ring| {
        ring.rules.change(|table| {
            table.policy = if accepts != 0 {
                Action::Pass
            } else {
                Action::Drop
            };
            Ok(0)
        })
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Adds a hash rule, or removes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_handle_hash_filtering_rule(
    ring: *mut Ring,
    rule: *const c_void,
    is_added: u8,
) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a rule of the program.
        let rule = unsafe { bytes(rule) }?;
        let flow = layout::flow(&rule)?;
        let change = match is_added {
            0 => ring.rules.change(|table| table.remove(&flow)),
            _ => {
                let action = layout::hash_action(&rule)?;
                ring.rules
                    .change(|table| table.add(flow, action, rule_ns()))
            }
        };
        change.map(|()| 0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Stores the counts of a hash rule, and their length, also if there is not enough room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_hash_filtering_rule_stats(
    ring: *mut Ring,
    rule: *const c_void,
    place: *mut c_char,
    len: *mut u32,
) -> c_int {
    let body = |ring: &Ring| {
        // SAFETY: null or a rule of the program.
        let flow = layout::flow(&unsafe { bytes(rule) }?)?;
        // SAFETY: null or a place of the program.
        let len = unsafe { len.as_mut() }.filter(|_| !place.is_null());
        let len = len.ok_or(INVALID_ARGUMENT)?;
        let room = std::mem::replace(len, layout::COUNTS_LEN as u32);
        if (room as usize) < layout::COUNTS_LEN {
            return Err(NO_MEMORY);
        }
        let counts = ring.rules.change(|table| table.counts(&flow, rule_ns()))?;
        let counts = layout::counts(&counts);
        // SAFETY: as many bytes of the program as `len` said.
        unsafe {
            place
                .cast::<[u8; layout::COUNTS_LEN]>()
                .write_unaligned(counts)
        };
        Ok(0)
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Wildcard rules have no counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_get_filtering_rule_stats(
    _ring: *mut Ring,
    _rule: u16,
    _place: *mut c_char,
    _len: *mut u32,
) -> c_int {
    NOT_SUPPORTED
}

/// Removes hash rules that matched nothing for so many seconds; all for 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_purge_idle_hash_rules(ring: *mut Ring, idle_s: u16) -> c_int {
    let body = |ring: &Ring| {
        ring.rules.change(|table| {
            table.purge(idle_s, rule_ns());
            Ok(0)
        })
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Removes wildcard rules that are not locked, and matched nothing for so many seconds; all for 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_purge_idle_rules(ring: *mut Ring, idle_s: u16) -> c_int {
    let body = |ring: &Ring| {
        ring.rules.change(|table| {
            table.purge_wildcards(idle_s, rule_ns());
            Ok(0)
        })
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Sets where rules are evaluated: always in software, so that rules that are for the card only
/// are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_set_filtering_mode(ring: *mut Ring, mode: u32) -> c_int {
    let body = |ring: &Ring| match mode < MODE_COUNT {
        true => {
            ring.rules.set_mode(mode as u8);
            Ok(0)
        }
        false => Err(INVALID_ARGUMENT),
    };
    // SAFETY: null or a ring.
    unsafe { with(ring, body) }
}

/// Parses an Ethernet packet, of the length in its header, up to layer `level` (2 to 4). Returns
/// the topmost layer that it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pfring_parse_pkt(
    packet: *const u8,
    header: *mut u8,
    level: u8,
    add_timestamp: u8,
    add_hash: u8,
) -> c_int {
    const ETHERNET: u16 = 1;
    // SAFETY: the caller's promises are the same.
    unsafe { parse(ETHERNET, packet, header, level, add_timestamp, add_hash) }
}

/// [`pfring_parse_pkt`] for any link type.
///
/// # Safety
/// As there.
pub(super) unsafe fn parse(
    link_type: u16,
    packet: *const u8,
    header: *mut u8,
    level: u8,
    add_timestamp: u8,
    add_hash: u8,
) -> c_int {
    guard(GENERIC, || {
        if packet.is_null() || header.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: a long header of the program, and as many bytes as it says.
        let (header, packet) = unsafe {
            let header = &mut *header.cast::<[u8; LONG_LEN]>();
            let [a, b, c, d] = [16, 17, 18, 19].map(|at| header[at]);
            let len = u32::from_ne_bytes([a, b, c, d]);
            (header, std::slice::from_raw_parts(packet, len as usize))
        };
        let [a, b, c, d] = [20, 21, 22, 23].map(|at| header[at]);
        let parsed = Parsed::new(link_type, packet, u32::from_ne_bytes([a, b, c, d]), level);
        parsed.write(header);
        if add_timestamp != 0 && header[..8] == [0; 8] {
            let now_ns = now_ns();
            header[..8].copy_from_slice(&(now_ns / 1_000_000_000).to_ne_bytes());
            header[8..16].copy_from_slice(&(now_ns % 1_000_000_000 / 1000).to_ne_bytes());
        }
        if add_hash != 0 && header[44..48] == [0; 4] {
            header[44..48].copy_from_slice(&parsed.hash().to_ne_bytes());
        }
        parsed.level.into()
    })
}
