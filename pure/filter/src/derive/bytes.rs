//! Bytes after the fixed headers: options and payload.

use super::Packet;
use super::packet::{Class, Field, Form, Role, TCP};
use super::test::Test;

/// Maximum number of option and payload bytes compared.
const BYTES_MAX: usize = 64;
/// Bytes after the fixed TCP header that may be options.
const OPTIONS_MAX: usize = 40;
/// Name of these fields.
pub(super) const NAME: &str = "options and payload";

/// A field of 1, 2 or 4 bytes.
fn field(class: Class, at: usize, len: usize, mask: u128) -> Field {
    Field {
        name: NAME,
        role: Role::Stable,
        form: Form::Bytes,
        in_transport: true,
        at,
        len,
        mask,
        class,
    }
}

/// Where the bytes start and end that are compared, from the transport header on.
fn limits(class: Class, packet: &Packet<'_>) -> (usize, usize) {
    let start = class.fixed_len();
    let end = class.transport_len(packet.bytes).min(start + BYTES_MAX);
    (start, end.max(start))
}

/// Tests for the bytes that all packets have in common, word by word.
pub(super) fn shared(class: Class, packets: &[Packet<'_>]) -> Vec<Test> {
    let (Some(first), Some(_)) = (packets.first(), class.transport()) else {
        return Vec::new();
    };
    let (start, mut end) = limits(class, first);
    let tail = |packet: &Packet<'_>| class.transport_at(packet.bytes);
    let of_first = &first.bytes[tail(first)..];
    let mut same: Vec<usize> = (start..end).collect();
    for packet in packets {
        end = end.min(limits(class, packet).1);
        let bytes = &packet.bytes[tail(packet)..];
        same.retain(|at| *at < end && bytes[*at] == of_first[*at]);
        if class.protocol == TCP && same.first().is_some_and(|at| *at < start + OPTIONS_MAX) {
            // A timestamp is a time, and equal bytes prove nothing, unless it is 0.
            let times = timestamp(&bytes[start..end]);
            let is_time = |at: &usize| times.is_some_and(|t| (t..t + 8).contains(&(at - start)));
            same.retain(|at| !is_time(at) || bytes[*at] == 0);
        }
    }
    (start..end)
        .step_by(4)
        .filter_map(|at| {
            // A load has 1, 2 or 4 bytes.
            let len = [4, 2, 1].into_iter().find(|len| at + len <= end)?;
            let (mut mask, mut value) = (0, 0);
            for (at, byte) in of_first.iter().enumerate().skip(at).take(len) {
                let is_same = same.binary_search(&at).is_ok();
                mask = mask << 8 | if is_same { 0xff } else { 0 };
                value = value << 8 | if is_same { u128::from(*byte) } else { 0 };
            }
            (mask != 0).then(|| Test::one_of(field(class, at, len, mask), vec![value]))
        })
        .collect()
}

/// Where the values of a timestamp option begin in TCP's options.
fn timestamp(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + 1 < options.len().min(OPTIONS_MAX) {
        let len = match options[at] {
            0 => return None,
            1 => 1,
            _ => usize::from(options[at + 1]).max(2),
        };
        if options[at] == 8 && len == 10 {
            return Some(at + 2);
        }
        at += len;
    }
    None
}

/// Fields for the words and bytes that at least half of the packets have, without timestamps.
pub(super) fn fields(class: Class, packets: &[Packet<'_>]) -> Vec<Field> {
    if class.transport().is_none() {
        return Vec::new();
    }
    let mut present = [0; BYTES_MAX];
    let mut is_time = [false; BYTES_MAX];
    let start = class.fixed_len();
    for packet in packets {
        let (start, end) = limits(class, packet);
        for count in &mut present[..end - start] {
            *count += 1;
        }
        if class.protocol == TCP {
            let at = class.transport_at(packet.bytes);
            let times = timestamp(&packet.bytes[at + start..at + end]);
            for at in times.map_or(0..0, |at| at..(at + 8).min(BYTES_MAX)) {
                is_time[at] = true;
            }
        }
    }
    let is_usable = |at: &usize| 2 * present[*at] >= packets.len() && !is_time[*at];
    let words = (0..BYTES_MAX)
        .step_by(4)
        .filter(|at| (*at..at + 4).all(|at| is_usable(&at)));
    let words = words.map(|at| field(class, start + at, 4, 0xffff_ffff));
    let bytes = (0..BYTES_MAX).filter(is_usable);
    let bytes = bytes.map(|at| field(class, start + at, 1, 0xff));
    words.chain(bytes).collect()
}

/// Whether a field is in the part of the options of TCP that a sender chooses once, not in the
/// payload.
pub(super) fn is_of_options(field: &Field, options_end: usize) -> bool {
    field.class.protocol != TCP || field.at + field.len <= options_end
}
