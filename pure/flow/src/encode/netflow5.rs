//! NetFlow version 5: a header of 24 bytes and up to 30 records of 48. IPv4 only, one direction per
//! record, counters of 32 bits: a flow with larger counters becomes several records.

use super::uptime::Uptime;
use super::{Encode, Refusal, Statistics, Sum};
use crate::expire::EndReason;
use crate::extra::OwnedExtra;
use crate::key::Side;
use crate::origin::Origin;
use crate::record::Record;

/// Length of a header.
pub const HEADER_LEN: usize = 24;
/// Length of a record.
pub const RECORD_LEN: usize = 48;
/// Maximum number of records in a message.
pub const RECORD_MAX: usize = 30;
/// Maximum rate that the header can hold: 14 bits.
pub const SAMPLING_MAX: u32 = 0x3fff;

/// NetFlow 5 encoder.
pub struct Encoder {
    buffer: Box<[u8; HEADER_LEN + RECORD_MAX * RECORD_LEN]>,
    count: usize,
    sequence: u32,
    /// Engine type and id: the low bits of the domain.
    engine: u16,
    sampling: u16,
    interface: u16,
    uptime: Uptime,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
}

impl Encoder {
    /// Creates an encoder for an observation domain (its low 16 bits), with one in `sampling`
    /// packets metered, on an interface; a rate above 14 bits is sent as the maximum, and an
    /// interface above 16 bits as 0.
    pub fn new(domain: u32, sampling: u32, interface: u32) -> Encoder {
        Encoder {
            buffer: Box::new([0; HEADER_LEN + RECORD_MAX * RECORD_LEN]),
            count: 0,
            sequence: 0,
            engine: domain as u16,
            sampling: sampling.clamp(1, SAMPLING_MAX) as u16,
            interface: u16::try_from(interface).unwrap_or(0),
            uptime: Uptime::default(),
            held: Sum::default(),
            refused: [Sum::default(); Refusal::COUNT],
        }
    }

    fn push(&mut self, record: &Record, side: Side, parts: u64, networks: [u16; 2]) {
        let sent = record.sent_by(side);
        let key = record.key();
        let span = self.uptime.span(sent.first_ns, sent.last_ns);
        let port = if key.is_icmp() {
            // By custom, the destination port contains type and code.
            let kind = key.icmp_type_code(side).unwrap_or_default();
            [0, u16::from_be_bytes(kind)]
        } else {
            [key.port(side), key.port(side.other())]
        };
        let interface = match key.interface() {
            0 => self.interface,
            keyed => keyed.saturating_add(1),
        };
        for part in 0..parts {
            let start = HEADER_LEN + self.count * RECORD_LEN;
            let Some(out) = self.buffer[start..].first_chunk_mut::<RECORD_LEN>() else {
                return;
            };
            // The first part includes the remainder.
            let share = |all: u64| {
                let even = all / parts;
                (if part == 0 {
                    all - even * (parts - 1)
                } else {
                    even
                }) as u32
            };
            out.fill(0);
            out[..4].copy_from_slice(&key.addr_bytes(side)[..4]);
            out[4..8].copy_from_slice(&key.addr_bytes(side.other())[..4]);
            out[12..14].copy_from_slice(&interface.to_be_bytes());
            out[16..20].copy_from_slice(&share(sent.packets).to_be_bytes());
            out[20..24].copy_from_slice(&share(sent.bytes).to_be_bytes());
            out[24..28].copy_from_slice(&span.first.to_be_bytes());
            out[28..32].copy_from_slice(&span.last.to_be_bytes());
            out[32..34].copy_from_slice(&port[0].to_be_bytes());
            out[34..36].copy_from_slice(&port[1].to_be_bytes());
            out[37] = sent.tcp_flags as u8;
            out[38] = key.protocol();
            out[39] = sent.traffic_class;
            out[40..42].copy_from_slice(&networks[side as usize].to_be_bytes());
            out[42..44].copy_from_slice(&networks[side.other() as usize].to_be_bytes());
            self.count += 1;
        }
    }
}

/// Number of an autonomous system in 16 bits: AS_TRANS of RFC 6793 §9 for larger ones.
fn network(origin: &Origin) -> u16 {
    const AS_TRANS: u16 = 23456;
    u16::try_from(origin.asn).unwrap_or(AS_TRANS)
}

/// Number of records for a direction, so that its counters fit.
fn parts(record: &Record, side: Side) -> u64 {
    let sent = record.sent_by(side);
    let most = sent.packets.max(sent.bytes);
    // One less than the maximum, for the remainder in the first part.
    most.div_ceil(u64::from(u32::MAX) - RECORD_MAX as u64)
}

impl Encode for Encoder {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        self.take_with(records, &[])
    }

    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        for (count, (record, _)) in records.iter().enumerate() {
            if record.key().ip_version() != 4 {
                self.refused[Refusal::NotIpv4 as usize].count(record);
                continue;
            }
            let first = record.initiator();
            let sides = [first, first.other()].map(|side| (side, parts(record, side)));
            let need = sides[0].1.saturating_add(sides[1].1);
            if need > RECORD_MAX as u64 {
                self.refused[Refusal::OutOfRange as usize].count(record);
                continue;
            }
            if self.count + need as usize > RECORD_MAX {
                return count;
            }
            if !self.uptime.accept(record, self.count == 0) {
                if self.count != 0 {
                    return count;
                }
                self.refused[Refusal::OutOfRange as usize].count(record);
                continue;
            }
            let origins = extras.get(count).and_then(|extra| extra.get().origins);
            let networks = origins.map_or([0; 2], |ends| ends.each_ref().map(network));
            for (side, parts) in sides {
                self.push(record, side, parts, networks);
            }
            self.held.count(record);
        }
        records.len()
    }

    fn message(&mut self, time_ns: u64) -> &[u8] {
        if self.count == 0 {
            return &[];
        }
        let (uptime, instant_ms) = self.uptime.instant(time_ns);
        let head = &mut self.buffer[..HEADER_LEN];
        head[..2].copy_from_slice(&5_u16.to_be_bytes());
        head[2..4].copy_from_slice(&(self.count as u16).to_be_bytes());
        head[4..8].copy_from_slice(&uptime.to_be_bytes());
        head[8..12].copy_from_slice(&((instant_ms / 1000) as u32).to_be_bytes());
        let ns = (instant_ms % 1000 * 1_000_000) as u32;
        head[12..16].copy_from_slice(&ns.to_be_bytes());
        head[16..20].copy_from_slice(&self.sequence.to_be_bytes());
        head[20..22].copy_from_slice(&self.engine.to_be_bytes());
        // The upper two bits are the mode: 1 is one in N.
        head[22..24].copy_from_slice(&(1 << 14 | self.sampling).to_be_bytes());
        &self.buffer[..HEADER_LEN + self.count * RECORD_LEN]
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn record_count(&self) -> u64 {
        self.count as u64
    }

    fn next(&mut self) {
        self.sequence = self.sequence.wrapping_add(self.count as u32);
        self.count = 0;
        self.held = Sum::default();
    }

    fn begin_session(&mut self, _: u64) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn refresh(&mut self, _: u64, _: &Statistics) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn end_session(&mut self, _: u64, _: &Statistics) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{LAST_NS, record, record_of};

    const NOW_NS: u64 = 1_700_000_100_000_000_000;

    fn long(bytes: &[u8], at: usize) -> u64 {
        u64::from(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()))
    }

    #[test]
    fn records_are_at_the_offsets_that_collectors_expect() {
        let mut encoder = Encoder::new(0x0102, 1000, 70_000);
        let all = [
            (record(4, 6, [3, 2]), EndReason::Idle),
            (record(6, 6, [3, 2]), EndReason::Idle),
            (record(4, 1, [1, 0]), EndReason::Idle),
        ];
        assert_eq!(encoder.take(&all), 3);
        assert_eq!((encoder.held().flows, encoder.held().packets), (2, 6));
        assert_eq!(encoder.refused()[Refusal::NotIpv4 as usize].packets, 5);
        let message = encoder.message(NOW_NS).to_vec();
        assert_eq!(message.len(), 24 + 3 * 48);
        assert_eq!(message[..4], [0, 5, 0, 3]);
        assert_eq!(message[20..24], [1, 2, 0x43, 0xe8]);
        let boot_ms = long(&message, 8) * 1000 + long(&message, 12) / 1_000_000 - long(&message, 4);
        let first = &message[24..72];
        assert_eq!(first[..8], [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!((long(first, 16), long(first, 20)), (3, 3 * 100));
        assert_eq!(boot_ms + long(first, 24), 1_700_000_000_123);
        assert_eq!(boot_ms + long(first, 28), 1_700_000_061_500);
        assert_eq!(first[32..40], [0x13, 0x88, 0, 80, 0, 0x18, 6, 0x2e]);
        // The other direction, with the same times.
        let second = &message[72..120];
        assert_eq!(second[..8], [2, 2, 2, 2, 1, 1, 1, 1]);
        assert_eq!((long(second, 16), long(second, 20)), (2, 200));
        encoder.next();
        assert!(encoder.message(NOW_NS).is_empty());
        encoder.take(&all[..1]);
        assert_eq!(long(encoder.message(NOW_NS), 16), 3);
    }

    #[test]
    fn large_counters_become_several_records() {
        let of = |count| {
            let times = [LAST_NS, LAST_NS];
            record_of(4, 17, [count, 0], times, Some(4_000_000_000))
        };
        let great = of(3);
        assert_eq!(great.bytes(), 12_000_000_000);
        let mut encoder = Encoder::new(0, 1, 0);
        assert_eq!(encoder.take(&[(great, EndReason::Idle)]), 1);
        let message = encoder.message(NOW_NS);
        let records = message[24..].chunks(48);
        assert_eq!(records.len(), 3);
        let sums = records.fold((0, 0), |sum, r| (sum.0 + long(r, 16), sum.1 + long(r, 20)));
        assert_eq!(sums, (great.packets(), great.bytes()));
        // More than fits into one message.
        let great = of(40);
        assert!(great.bytes() > 30 * u64::from(u32::MAX));
        encoder.next();
        assert_eq!(encoder.take(&[(great, EndReason::Idle)]), 1);
        assert_eq!(encoder.refused()[Refusal::OutOfRange as usize].flows, 1);
    }

    /// Flows 20 years apart cannot share an uptime: they are in different messages, and each has
    /// the right time.
    #[test]
    fn old_captures_keep_their_times() {
        let times = [1_000_000_000_000_000_000, 1_000_000_001_000_000_000];
        let old = record_of(4, 17, [2, 0], times, None);
        let all = [
            (record(4, 6, [3, 2]), EndReason::Idle),
            (old, EndReason::Idle),
        ];
        let mut encoder = Encoder::new(0, 1, 0);
        assert_eq!(encoder.take(&all), 1);
        encoder.next();
        assert_eq!(encoder.take(&all[1..]), 1);
        let message = encoder.message(NOW_NS);
        let boot_ms = long(message, 8) * 1000 + long(message, 12) / 1_000_000 - long(message, 4);
        assert_eq!(boot_ms + long(message, 24 + 24), 1_000_000_000_000);
        assert_eq!(boot_ms + long(message, 24 + 28), 1_000_000_001_000);
    }

    #[test]
    fn no_bytes_precede_or_follow_records() {
        let mut encoder = Encoder::new(0, 1, 0);
        let statistics = Statistics::default();
        assert!(encoder.begin_session(NOW_NS).is_empty());
        assert!(encoder.refresh(NOW_NS, &statistics).is_empty());
        assert!(encoder.end_session(NOW_NS, &statistics).is_empty());
        assert_eq!(encoder.take(&[]), 0);
        assert!(encoder.message(NOW_NS).is_empty());
    }
}
