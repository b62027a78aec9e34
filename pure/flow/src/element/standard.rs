//! The standard templates: a list of fields for each shape of a flow, fused into one function.

use super::{Column, Field, View, Way, field};
use crate::encode::Sum;
use crate::expire::EndReason;
use crate::key::{FlowKey, Side};
use crate::record::Record;

/// A list of fields known at build time.
pub struct Standard {
    /// The columns in order.
    pub columns: &'static [Column],
    /// Length of a record in bytes.
    pub len: usize,
    /// Writes a record, seen from `source`, to the start of `out`, which must have at least `len`
    /// bytes: otherwise it writes nothing and returns false.
    pub put: fn(&Record, EndReason, Side, u32, &mut [u8]) -> bool,
    /// Writes consecutive records that fit this template, seen from the initiator or, for one-way
    /// flows, from the sender. Stops at the first record of another shape, at a record without
    /// packets, and when `out` is full; adds the written records to the sum, and returns their
    /// number.
    pub put_run: PutRun,
}

/// Takes records, the interface, the output, and a sum to add to; returns the number of records
/// written.
pub type PutRun = fn(&[(Record, EndReason)], u32, &mut [u8], &mut Sum) -> usize;

macro_rules! standard {
    (
        $(#[$about:meta])* $all:ident;
        $($name:ident: [$($reverse:ident)*] [$($forward:ident)*];)*
    ) => {
        $(
            #[allow(non_snake_case)]
            mod $name {
                use super::*;

                pub(super) const LEN: usize =
                    0 $(+ field::$reverse::LEN)* $(+ field::$forward::LEN)*;
                pub(super) const COLUMNS: &[Column] = &[
                    $(Column { field: field::$reverse::FIELD, way: Way::Reverse },)*
                    $(Column { field: field::$forward::FIELD, way: Way::Forward },)*
                ];

                pub(super) fn put(
                    record: &Record,
                    reason: EndReason,
                    source: Side,
                    interface: u32,
                    out: &mut [u8],
                ) -> bool {
                    let Some(out) = out.first_chunk_mut::<LEN>() else {
                        return false;
                    };
                    let other = source.other();
                    if record.packets_of(source) == 0
                        || (IS_BOTH && record.packets_of(other) == 0)
                    {
                        fill(&View::new(record, reason, source, interface), out);
                        return true;
                    }
                    // With the side known, all offsets in the record are constant.
                    match source {
                        Side::A => fill_from(record, reason, Side::A, interface, out),
                        Side::B => fill_from(record, reason, Side::B, interface, out),
                    };
                    true
                }

                pub(super) fn put_run(
                    records: &[(Record, EndReason)],
                    interface: u32,
                    out: &mut [u8],
                    sum: &mut Sum,
                ) -> usize {
                    let (mut count, mut packets, mut bytes) = (0, 0_u64, 0_u64);
                    let (places, _) = out.as_chunks_mut::<LEN>();
                    for ((record, reason), out) in records.iter().zip(places) {
                        let (version, icmp) = if IS_IPV6 { (6, 58) } else { (4, 1) };
                        let key = record.key();
                        let is_icmp = key.protocol() == icmp && key.has_icmp_type();
                        if key.ip_version() != version || is_icmp != IS_ICMP {
                            break;
                        }
                        let source = match [Side::A, Side::B].map(|side| record.packets_of(side)) {
                            [(1..), (1..)] if IS_BOTH => record.initiator(),
                            [(1..), 0] if !IS_BOTH => Side::A,
                            [0, (1..)] if !IS_BOTH => Side::B,
                            _ => break,
                        };
                        let sent = match source {
                            Side::A => fill_from(record, *reason, Side::A, interface, out),
                            Side::B => fill_from(record, *reason, Side::B, interface, out),
                        };
                        packets += sent.packets;
                        bytes = bytes.wrapping_add(sent.bytes);
                        count += 1;
                    }
                    sum.flows += count as u64;
                    sum.packets += packets;
                    sum.bytes = sum.bytes.wrapping_add(bytes);
                    count
                }

                const IS_BOTH: bool = matches!(COLUMNS[0].way, Way::Reverse);
                const IS_IPV6: bool = has(COLUMNS, field::SourceIpv6::FIELD);
                const IS_ICMP: bool = has(COLUMNS, field::IcmpTypeCode4::FIELD)
                    || has(COLUMNS, field::IcmpTypeCode6::FIELD);

                #[inline(always)]
                fn fill_from(
                    record: &Record,
                    reason: EndReason,
                    source: Side,
                    interface: u32,
                    out: &mut [u8; LEN],
                ) -> Sum {
                    let view = View::of_senders::<IS_BOTH>(record, reason, source, interface);
                    fill(&view, out);
                    let forward = view.counters(Way::Forward);
                    let reverse = view.counters(Way::Reverse);
                    Sum {
                        flows: 1,
                        packets: forward.packets + reverse.packets,
                        bytes: forward.bytes + reverse.bytes,
                    }
                }

                #[inline(always)]
                fn fill(view: &View<'_>, out: &mut [u8; LEN]) {
                    let mut at = 0;
                    $(
                        out[at..at + field::$reverse::LEN]
                            .copy_from_slice(&field::$reverse::value(view, Way::Reverse));
                        at += field::$reverse::LEN;
                    )*
                    $(
                        out[at..at + field::$forward::LEN]
                            .copy_from_slice(&field::$forward::value(view, Way::Forward));
                        at += field::$forward::LEN;
                    )*
                    debug_assert_eq!(at, LEN);
                }
            }
        )*

        $(#[$about])*
        pub static $all: &[Standard] = &[
            $(Standard {
                columns: $name::COLUMNS,
                len: $name::LEN,
                put: $name::put,
                put_run: $name::put_run,
            },)*
        ];
    };
}

/// Whether a list has this field, by its number: for lists of registered elements.
const fn has(columns: &[Column], field: &Field) -> bool {
    let mut at = 0;
    while at < columns.len() {
        if columns[at].field.element.id == field.element.id {
            return true;
        }
        at += 1;
    }
    false
}

// In the order that `standard_index` relies on: version, then ICMP, then whether both directions
// are included. Reverse elements come first: nfcapd 1.7 reads all but the counters of them as the
// forward ones, and the last value of an element counts.
standard! {
    /// The standard templates; [`standard_index`] selects the one for a flow.
    STANDARD;
    ipv4: []
        [SourceIpv4 DestinationIpv4 SourcePort DestinationPort Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService TcpControlBits IngressInterface StartMs EndMs
        Packets Octets];
    ipv4_both: [MinimumTtl ClassOfService TcpControlBits StartMs EndMs Packets Octets]
        [SourceIpv4 DestinationIpv4 SourcePort DestinationPort Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService TcpControlBits IngressInterface StartMs EndMs
        Packets Octets];
    icmp4: []
        [SourceIpv4 DestinationIpv4 IcmpTypeCode4 Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService IngressInterface StartMs EndMs
        Packets Octets];
    icmp4_both: [MinimumTtl ClassOfService StartMs EndMs Packets Octets]
        [SourceIpv4 DestinationIpv4 IcmpTypeCode4 Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService IngressInterface StartMs EndMs
        Packets Octets];
    ipv6: []
        [SourceIpv6 DestinationIpv6 SourcePort DestinationPort Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService TcpControlBits IngressInterface StartMs EndMs
        Packets Octets];
    ipv6_both: [MinimumTtl ClassOfService TcpControlBits StartMs EndMs Packets Octets]
        [SourceIpv6 DestinationIpv6 SourcePort DestinationPort Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService TcpControlBits IngressInterface StartMs EndMs
        Packets Octets];
    icmp6: []
        [SourceIpv6 DestinationIpv6 IcmpTypeCode6 Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService IngressInterface StartMs EndMs
        Packets Octets];
    icmp6_both: [MinimumTtl ClassOfService StartMs EndMs Packets Octets]
        [SourceIpv6 DestinationIpv6 IcmpTypeCode6 Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService IngressInterface StartMs EndMs
        Packets Octets];
}

// Flags in eight bits: collectors that need uniflows read only those.
standard! {
    /// The same for one direction per record, at half the index.
    UNIFLOW;
    uniflow_ipv4: []
        [SourceIpv4 DestinationIpv4 SourcePort DestinationPort Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService TcpControlBits8 IngressInterface StartMs EndMs
        Packets Octets];
    uniflow_icmp4: []
        [SourceIpv4 DestinationIpv4 IcmpTypeCode4 Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService IngressInterface StartMs EndMs
        Packets Octets];
    uniflow_ipv6: []
        [SourceIpv6 DestinationIpv6 SourcePort DestinationPort Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService TcpControlBits8 IngressInterface StartMs EndMs
        Packets Octets];
    uniflow_icmp6: []
        [SourceIpv6 DestinationIpv6 IcmpTypeCode6 Protocol EndReasonOf
        BiflowDirection MinimumTtl ClassOfService IngressInterface StartMs EndMs
        Packets Octets];
}

// In the order that `netflow9_index` relies on: version, then ICMP.
standard! {
    /// NetFlow 9 fields after times, ports and ICMP_TYPE; [`netflow9_index`] selects the list for a
    /// flow.
    NETFLOW9;
    netflow9_ipv4: []
        [SourceIpv4 DestinationIpv4 Packets Octets IngressInterface Protocol
        TcpControlBits8 MinimumTtl EndReasonOf ClassOfService];
    netflow9_icmp4: []
        [SourceIpv4 DestinationIpv4 Packets Octets IngressInterface Protocol
        TcpControlBits8 MinimumTtl EndReasonOf ClassOfService];
    netflow9_ipv6: []
        [SourceIpv6 DestinationIpv6 Packets Octets IngressInterface Protocol
        TcpControlBits8 MinimumTtl EndReasonOf ClassOfService];
    netflow9_icmp6: []
        [SourceIpv6 DestinationIpv6 Packets Octets IngressInterface Protocol
        TcpControlBits8 MinimumTtl EndReasonOf ClassOfService IcmpTypeCode6];
}

/// Index in [`STANDARD`] for a flow. ICMP messages whose type or code is unknown have the template
/// without them.
#[inline]
pub fn standard_index(record: &Record, is_both: bool) -> usize {
    let key = record.key();
    let version = usize::from(key.ip_version() == 6) * 4;
    version + usize::from(key.has_icmp_type()) * 2 + usize::from(is_both)
}

/// Index in [`NETFLOW9`] for a flow.
#[inline]
pub fn netflow9_index(key: &FlowKey) -> usize {
    usize::from(key.ip_version() == 6) * 2 + usize::from(key.is_icmp())
}
