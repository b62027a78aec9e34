//! Information elements: exportable fields of a flow, and their numbers.
//!
//! An element is one row of [`FIELDS`]: its name, number, type, semantics and units (RFC 7012, the
//! IANA registry) and the function that reads it from a record. Encoders do not depend on the
//! fields of a record; they iterate over rows. A row is all that is needed to export a new field.
//!
//! Rows exist in two equivalent forms. As function pointers they serve lists of fields chosen at
//! run time. As types they are fused, field by field, into one function for each of the [standard
//! templates](STANDARD), which takes two or three instructions per field.

use crate::expire::EndReason;
use crate::key::{FlowKey, Side};
use crate::record::{Counters, Record};

mod application;
mod standard;

pub use application::{APPLICATION, ApplicationElement};
pub(crate) use application::{raw as application_raw, text as application_text};
pub use standard::{NETFLOW9, PutRun, STANDARD, Standard, UNIFLOW, netflow9_index, standard_index};

/// The enterprise number of reverse elements (RFC 5103 §6.1).
pub const REVERSE_ENTERPRISE: u32 = 29305;
/// The default enterprise number for barewire's own elements: the one that RFC 5612 reserves for
/// documentation, since barewire has none. Collectors learn their names by RFC 5610.
pub const OWN_ENTERPRISE: u32 = 32473;

/// A variable length, which precedes each value (RFC 7011 §7).
pub const VARIABLE_LEN: u16 = u16::MAX;

/// Abstract data types, with the numbers of RFC 5610 §3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum DataType {
    OctetArray = 0,
    Unsigned8 = 1,
    Unsigned16 = 2,
    Unsigned32 = 3,
    Unsigned64 = 4,
    Signed8 = 5,
    Signed64 = 8,
    Float64 = 10,
    MacAddress = 12,
    String = 13,
    DateTimeSeconds = 14,
    DateTimeMilliseconds = 15,
    DateTimeMicroseconds = 16,
    DateTimeNanoseconds = 17,
    Ipv4Address = 18,
    Ipv6Address = 19,
}

/// Semantics, with the numbers of RFC 5610 §3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Semantics {
    Default = 0,
    Quantity = 1,
    TotalCounter = 2,
    DeltaCounter = 3,
    Identifier = 4,
    Flags = 5,
}

/// Units, with the numbers of RFC 5610 §3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Units {
    None = 0,
    Octets = 2,
    Packets = 3,
    Seconds = 5,
    Milliseconds = 6,
    Microseconds = 7,
    Nanoseconds = 8,
    Hops = 11,
}

/// An information element, as in a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Name, in the style of the registry.
    pub name: &'static str,
    /// Number, below 32768.
    pub id: u16,
    /// 0 for the IANA registry; [`OWN_ENTERPRISE`] for barewire's own, which a configuration may
    /// replace.
    pub enterprise: u32,
    /// Length in bytes, or [`VARIABLE_LEN`].
    pub len: u16,
    /// Type of the value.
    pub data_type: DataType,
    /// The meaning of the value.
    pub semantics: Semantics,
    /// Unit of the value.
    pub units: Units,
    /// Description in one sentence.
    pub about: &'static str,
}

/// Direction of a directional value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// Sent by the source of the exported record.
    Forward = 0,
    /// Sent by the destination.
    Reverse = 1,
}

/// A record as exported: seen from one of its sides.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The record.
    pub record: &'a Record,
    /// Why it ended.
    pub reason: EndReason,
    /// The side that is the source.
    pub source: Side,
    /// The interface where packets were seen, as numbered by the kernel; 0 if unknown.
    pub interface: u32,
    /// Whether the source and the destination have sent anything.
    has_sent: [bool; 2],
}

impl<'a> View<'a> {
    /// The view of a record from a side. `interface` is used unless the key has one.
    #[inline(always)]
    pub fn new(record: &'a Record, reason: EndReason, source: Side, interface: u32) -> View<'a> {
        let has_sent = |side| record.packets_of(side) != 0;
        View {
            record,
            reason,
            source,
            interface,
            has_sent: [has_sent(source), has_sent(source.other())],
        }
    }

    /// The same if the source has sent anything, and with `IS_BOTH` the destination as well;
    /// reverse values are 0 otherwise.
    #[inline(always)]
    pub(crate) fn of_senders<const IS_BOTH: bool>(
        record: &'a Record,
        reason: EndReason,
        source: Side,
        interface: u32,
    ) -> View<'a> {
        View {
            record,
            reason,
            source,
            interface,
            has_sent: [true, IS_BOTH],
        }
    }

    /// The counters of a direction. A row computes only those that it uses.
    #[inline(always)]
    pub fn counters(&self, way: Way) -> Counters {
        let side = match way {
            Way::Forward => self.source,
            Way::Reverse => self.source.other(),
        };
        if !self.has_sent[way as usize] {
            return Counters::default();
        }
        self.record.sent_by_sender(side)
    }

    #[inline(always)]
    fn key(&self) -> &FlowKey {
        self.record.key()
    }

    #[inline(always)]
    fn addr4(&self, side: Side) -> [u8; 4] {
        let [a, b, c, d, ..] = *self.key().addr_bytes(side);
        [a, b, c, d]
    }

    #[inline(always)]
    fn icmp(&self, ip_version: u8) -> [u8; 2] {
        // For other protocols these fields are ports.
        if self.key().ip_version() != ip_version {
            return [0; 2];
        }
        self.key().icmp_type_code(self.source).unwrap_or_default()
    }
}

const NS_IN_MS: u64 = 1_000_000;

/// Seconds between 1900, the epoch of NTP, and 1970 (RFC 5905 §6).
const NTP_OFFSET_S: u64 = 2_208_988_800;

/// A time as 32 bits of seconds since 1900 and 32 bits of fraction (RFC 7011 §6.1.9, §6.1.10).
#[inline]
fn ntp(time_ns: u64) -> [u8; 8] {
    let seconds = (time_ns / 1_000_000_000).wrapping_add(NTP_OFFSET_S) << 32;
    // Rounded up, so that a reader that truncates the fraction to nanoseconds gets the same number.
    let fraction = ((time_ns % 1_000_000_000) << 32).div_ceil(1_000_000_000);
    (seconds | fraction).to_be_bytes()
}

/// The same for microseconds: the lowest eleven bits of the fraction are zero (RFC 7011 §6.1.9).
#[inline]
fn ntp_micro(time_ns: u64) -> [u8; 8] {
    let micro = time_ns / 1000 * 1000;
    let up = u64::from_be_bytes(ntp(micro)) + 0x7ff;
    (up & !0x7ff).to_be_bytes()
}

/// A row: an element, and the source of its value.
#[derive(Debug)]
pub struct Field {
    /// The element.
    pub element: Element,
    /// Whether there is a reverse value (RFC 5103 §6.1): not for keys and values common to both
    /// directions.
    pub is_directed: bool,
    /// Writes the value to the start of the slice and returns its length; `None` if there is no
    /// room. A value of variable length is written without its length.
    pub put: fn(&View<'_>, Way, &mut [u8]) -> Option<usize>,
}

/// Defines a type for each row, and the table of all rows. A row of fixed length returns an array.
macro_rules! fields {
    ($(
        $(#[doc = $about:literal])+
        $type:ident = $name:literal $id:literal $(@$private:ident)?
            $data:ident $semantics:ident $units:ident [$len:literal] $way:ident
            |$view:ident, $at:ident| $value:expr;
    )*) => {
        /// One type per row.
        pub(crate) mod field {
            $(
                $(#[doc = $about])+
                pub struct $type;
            )*
        }

        $(
            impl field::$type {
                pub(crate) const LEN: usize = $len;
                pub(crate) const FIELD: &'static Field = &Field {
                    element: Element {
                        name: $name,
                        id: $id,
                        enterprise: fields!(@enterprise $($private)?),
                        len: $len,
                        data_type: DataType::$data,
                        semantics: Semantics::$semantics,
                        units: Units::$units,
                        about: concat!($($about),+).trim_ascii(),
                    },
                    is_directed: fields!(@directed $way),
                    put: |view, way, out| {
                        let out = out.first_chunk_mut::<{ field::$type::LEN }>()?;
                        *out = field::$type::value(view, way);
                        Some($len)
                    },
                };

                #[inline(always)]
                pub(crate) fn value($view: &View<'_>, $at: Way) -> [u8; $len] {
                    $value
                }
            }
        )*

        /// All rows of fixed length. New ones are added at the end of their group; names and
        /// numbers never change.
        pub static FIELDS: &[&Field] = &[$(field::$type::FIELD),*];
    };
    (@enterprise) => { 0 };
    (@enterprise own) => { OWN_ENTERPRISE };
    (@directed directed) => { true };
    (@directed shared) => { false };
}

fields! {
    /// IPv4 address of the source
    SourceIpv4 = "sourceIPv4Address" 8 Ipv4Address Default None [4] shared
        |v, _w| v.addr4(v.source);
    /// IPv4 address of the destination
    DestinationIpv4 = "destinationIPv4Address" 12 Ipv4Address Default None [4] shared
        |v, _w| v.addr4(v.source.other());
    /// IPv6 address of the source
    SourceIpv6 = "sourceIPv6Address" 27 Ipv6Address Default None [16] shared
        |v, _w| *v.key().addr_bytes(v.source);
    /// IPv6 address of the destination
    DestinationIpv6 = "destinationIPv6Address" 28 Ipv6Address Default None [16] shared
        |v, _w| *v.key().addr_bytes(v.source.other());
    /// Port of the source
    SourcePort = "sourceTransportPort" 7 Unsigned16 Identifier None [2] shared
        |v, _w| v.key().transport_port(v.source).to_be_bytes();
    /// Port of the destination
    DestinationPort = "destinationTransportPort" 11 Unsigned16 Identifier None [2] shared
        |v, _w| v.key().transport_port(v.source.other()).to_be_bytes();
    /// Type and code of ICMP, 0 for others
    IcmpTypeCode4 = "icmpTypeCodeIPv4" 32 Unsigned16 Identifier None [2] shared
        |v, _w| v.icmp(4);
    /// Type and code of ICMPv6, 0 for others
    IcmpTypeCode6 = "icmpTypeCodeIPv6" 139 Unsigned16 Identifier None [2] shared
        |v, _w| v.icmp(6);
    /// IP protocol after all extension headers
    Protocol = "protocolIdentifier" 4 Unsigned8 Identifier None [1] shared
        |v, _w| [v.key().protocol()];
    /// 4 or 6
    IpVersion = "ipVersion" 60 Unsigned8 Identifier None [1] shared
        |v, _w| [v.key().ip_version()];
    /// Interface where the packets were seen, 0 if unknown
    IngressInterface = "ingressInterface" 10 Unsigned32 Identifier None [4] shared
        |v, _w| {
            let keyed = u32::from(v.key().interface());
            // Keys count from 0, but on the wire 0 means unknown.
            if keyed == 0 { v.interface } else { keyed + 1 }.to_be_bytes()
        };
    /// Id of the outer VLAN tag
    Vlan = "vlanId" 58 Unsigned16 Identifier None [2] shared
        |v, _w| v.key().vlan()[0].to_be_bytes();
    /// Id of the outer VLAN tag
    Dot1qVlan = "dot1qVlanId" 243 Unsigned16 Identifier None [2] shared
        |v, _w| v.key().vlan()[0].to_be_bytes();
    /// Id of the inner VLAN tag
    Dot1qCustomerVlan = "dot1qCustomerVlanId" 245 Unsigned16 Identifier None [2] shared
        |v, _w| v.key().vlan()[1].to_be_bytes();
    /// Bytes
    Octets = "octetDeltaCount" 1 Unsigned64 DeltaCounter Octets [8] directed
        |v, w| v.counters(w).bytes.to_be_bytes();
    /// Packets
    Packets = "packetDeltaCount" 2 Unsigned64 DeltaCounter Packets [8] directed
        |v, w| v.counters(w).packets.to_be_bytes();
    /// Bytes since the flow began; equals the delta, for collectors that support only totals
    OctetsTotal = "octetTotalCount" 85 Unsigned64 TotalCounter Octets [8] directed
        |v, w| v.counters(w).bytes.to_be_bytes();
    /// Packets since the flow began; equals the delta
    PacketsTotal = "packetTotalCount" 86 Unsigned64 TotalCounter Packets [8] directed
        |v, w| v.counters(w).packets.to_be_bytes();
    /// Bytes after the transport header
    PayloadOctets = "payloadOctetDeltaCount" 1 @own Unsigned64 DeltaCounter Octets [8]
        directed |v, w| v.counters(w).payload_bytes.to_be_bytes();
    /// Union of the TCP flags
    TcpControlBits = "tcpControlBits" 6 Unsigned16 Flags None [2] directed
        |v, w| v.counters(w).tcp_flags.to_be_bytes();
    /// Union of the TCP flags in eight bits, without AE
    TcpControlBits8 = "tcpControlBits" 6 Unsigned16 Flags None [1] directed
        |v, w| [v.counters(w).tcp_flags as u8];
    /// Minimum TTL or hop limit
    MinimumTtl = "minimumTTL" 52 Unsigned8 Default Hops [1] directed
        |v, w| [v.counters(w).ttl_min];
    /// Maximum TTL or hop limit
    MaximumTtl = "maximumTTL" 53 Unsigned8 Default Hops [1] directed
        |v, w| [v.counters(w).ttl_max];
    /// Type of service or traffic class of the first packet
    ClassOfService = "ipClassOfService" 5 Unsigned8 Identifier None [1] directed
        |v, w| [v.counters(w).traffic_class];
    /// Flags of the IPv4 header, as in the header's byte
    FragmentFlags = "fragmentFlags" 197 Unsigned8 Flags None [1] directed
        |v, w| [v.counters(w).ip_flags << 5];
    /// Length of the smallest packet; 65535 means that or more
    MinimumLength = "minimumIpTotalLength" 25 Unsigned64 Default Octets [8] directed
        |v, w| u64::from(v.counters(w).len_min).to_be_bytes();
    /// Length of the largest packet; 65535 means that or more
    MaximumLength = "maximumIpTotalLength" 26 Unsigned64 Default Octets [8] directed
        |v, w| u64::from(v.counters(w).len_max).to_be_bytes();
    /// Set of TCP options: kind n is bit n
    TcpOptions = "tcpOptions" 209 Unsigned64 Flags None [8] directed
        |v, w| v.counters(w).tcp_options.to_be_bytes();
    /// TCP window of the first packet
    TcpWindow = "tcpWindowSize" 186 Unsigned16 Default None [2] directed
        |v, w| v.counters(w).tcp_window.to_be_bytes();
    /// Set of IPv6 extension headers of both directions
    ExtensionHeaders = "ipv6ExtensionHeaders" 64 Unsigned32 Flags None [4] shared
        |v, _w| v.record.ipv6_extension_headers().to_be_bytes();
    /// TCP flags of the first packet
    TcpFlagsFirst = "firstTcpControlBits" 2 @own Unsigned8 Flags None [1] directed
        |v, w| [v.counters(w).tcp_flags_first];
    /// TCP flags of the last packet
    TcpFlagsLast = "lastTcpControlBits" 3 @own Unsigned8 Flags None [1] directed
        |v, w| [v.counters(w).tcp_flags_last];
    /// Number of fragments; 8191 means that or more
    Fragments = "fragmentDeltaCount" 4 @own Unsigned16 DeltaCounter Packets [2] directed
        |v, w| v.counters(w).fragments.to_be_bytes();
    /// Maximum segment size announced, 0 if none was
    TcpMss = "tcpMaximumSegmentSize" 5 @own Unsigned16 Quantity Octets [2] directed
        |v, w| v.counters(w).tcp_mss.to_be_bytes();
    /// TCP segments that repeat earlier bytes; 65535 means that or more
    Retransmissions = "tcpRetransmissionDeltaCount" 6 @own Unsigned16 DeltaCounter Packets [2]
        directed |v, w| v.counters(w).retransmissions.to_be_bytes();
    /// TCP segments that arrived after later ones; 65535 means that or more
    OutOfOrder = "tcpOutOfOrderDeltaCount" 7 @own Unsigned16 DeltaCounter Packets [2] directed
        |v, w| v.counters(w).out_of_order.to_be_bytes();
    /// Response time of the side in the TCP handshake, 0 if not seen
    HandshakeTime = "tcpHandshakeMicroseconds" 8 @own Unsigned32 Quantity Microseconds [4] directed
        |v, w| v.counters(w).handshake_us.to_be_bytes();
    /// Set of IPv4 options of both directions: number n is bit n
    Ipv4Options = "ipv4OptionNumbers" 9 @own Unsigned32 Flags None [4] shared
        |v, _w| v.record.ipv4_options().to_be_bytes();
    /// Round-trip time of the TCP handshake, 0 if a part of it was not seen
    RoundTripTime = "tcpRoundTripMicroseconds" 21 @own Unsigned32 Quantity Microseconds [4] shared
        |v, _w| v.record.handshake_us().unwrap_or(0).to_be_bytes();
    /// 1 if there are fragments whose first one was not seen, so that their ports are unknown
    Orphans = "orphanFragments" 22 @own Unsigned8 Default None [1] shared
        |v, _w| [v.record.has_orphans().into()];
    /// 1 if the configuration separates directions, 0 if the record may contain both
    Uniflow = "uniflowRecord" 23 @own Unsigned8 Default None [1] shared
        |v, _w| [v.record.is_uniflow().into()];
    /// Time of the first packet
    StartMs = "flowStartMilliseconds" 152 DateTimeMilliseconds Default Milliseconds [8] directed
        |v, w| (v.counters(w).first_ns / NS_IN_MS).to_be_bytes();
    /// Time of the last packet
    EndMs = "flowEndMilliseconds" 153 DateTimeMilliseconds Default Milliseconds [8] directed
        |v, w| (v.counters(w).last_ns / NS_IN_MS).to_be_bytes();
    /// Time of the first packet
    StartUs = "flowStartMicroseconds" 154 DateTimeMicroseconds Default Microseconds [8] directed
        |v, w| ntp_micro(v.counters(w).first_ns);
    /// Time of the last packet
    EndUs = "flowEndMicroseconds" 155 DateTimeMicroseconds Default Microseconds [8] directed
        |v, w| ntp_micro(v.counters(w).last_ns);
    /// Time of the first packet
    StartNs = "flowStartNanoseconds" 156 DateTimeNanoseconds Default Nanoseconds [8] directed
        |v, w| ntp(v.counters(w).first_ns);
    /// Time of the last packet
    EndNs = "flowEndNanoseconds" 157 DateTimeNanoseconds Default Nanoseconds [8] directed
        |v, w| ntp(v.counters(w).last_ns);
    /// From the first packet of both directions to the last
    DurationMs = "flowDurationMilliseconds" 161 Unsigned32 Default Milliseconds [4] shared
        |v, _w| {
            let ms = v.record.duration_ns() / NS_IN_MS;
            u32::try_from(ms).unwrap_or(u32::MAX).to_be_bytes()
        };
    /// Why the flow ended
    EndReasonOf = "flowEndReason" 136 Unsigned8 Identifier None [1] shared
        |v, _w| [v.reason as u8];
    /// 1: the source began; 2: the destination did
    BiflowDirection = "biflowDirection" 239 Unsigned8 Identifier None [1] shared
        |v, _w| [if v.source == v.record.initiator() { 1 } else { 2 }];
}

/// A field and its direction.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The field.
    pub field: &'static Field,
    /// Forward or reverse.
    pub way: Way,
}

/// Record fields that are in no standard template, without alternative forms of the same value.
const ALL: [&Field; 22] = [
    field::PayloadOctets::FIELD,
    field::TcpFlagsFirst::FIELD,
    field::TcpFlagsLast::FIELD,
    field::MaximumTtl::FIELD,
    field::MinimumLength::FIELD,
    field::MaximumLength::FIELD,
    field::FragmentFlags::FIELD,
    field::Fragments::FIELD,
    field::TcpOptions::FIELD,
    field::TcpWindow::FIELD,
    field::TcpMss::FIELD,
    field::Retransmissions::FIELD,
    field::OutOfOrder::FIELD,
    field::HandshakeTime::FIELD,
    field::StartNs::FIELD,
    field::EndNs::FIELD,
    field::DurationMs::FIELD,
    field::Ipv4Options::FIELD,
    field::ExtensionHeaders::FIELD,
    field::RoundTripTime::FIELD,
    field::Orphans::FIELD,
    field::Uniflow::FIELD,
];

impl Column {
    /// The columns of all record fields that are in no standard template, each forward one followed
    /// by its reverse.
    pub fn all() -> impl Iterator<Item = Column> {
        ALL.into_iter().flat_map(|field| {
            let ways = [Way::Forward, Way::Reverse].into_iter();
            let ways = ways.filter(|way| *way == Way::Forward || field.is_directed);
            ways.map(move |way| Column { field, way })
        })
    }

    /// The column with this name: that of an element, optionally with the prefix `reverse`
    /// (`reverseMinimumTTL`), as in RFC 5103 §6.1.
    pub fn find(name: &str) -> Option<Column> {
        let find = |name: &str| {
            let mut rows = FIELDS.iter().copied();
            rows.find(|row| row.element.name.eq_ignore_ascii_case(name))
        };
        if let Some(field) = find(name) {
            return Some(Column {
                field,
                way: Way::Forward,
            });
        }
        let field = find(name.strip_prefix("reverse")?)?;
        field.is_directed.then_some(Column {
            field,
            way: Way::Reverse,
        })
    }

    /// The element's number and enterprise on the wire. `own` is barewire's enterprise number.
    /// Reverse elements of its own have 0x4000 added to their number, because there is only one
    /// enterprise number (RFC 5103 §6.1 leaves this to the enterprise).
    pub fn wire_id(&self, own: u32) -> (u16, u32) {
        let element = &self.field.element;
        match (element.enterprise, self.way) {
            (0, Way::Forward) => (element.id, 0),
            (0, Way::Reverse) => (element.id, REVERSE_ENTERPRISE),
            (_, Way::Forward) => (element.id, own),
            (_, Way::Reverse) => (element.id | OWN_REVERSE, own),
        }
    }

    /// The name, with the prefix `reverse` for a reverse column.
    pub fn name(&self) -> String {
        let name = self.field.element.name;
        match self.way {
            Way::Forward => name.to_owned(),
            Way::Reverse => reverse_name(name),
        }
    }
}

/// The name of a reverse element (RFC 5103 §6.1): `reverseMinimumTTL`.
pub(crate) fn reverse_name(name: &str) -> String {
    format!("reverse{}{}", name[..1].to_ascii_uppercase(), &name[1..])
}

/// Flag in the number of barewire's own reverse elements.
pub const OWN_REVERSE: u16 = 0x4000;

#[cfg(test)]
mod tests;
