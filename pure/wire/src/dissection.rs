//! The result of one pass over a packet.
//!
//! A [`Dissection`] describes one *level* of a packet: from the link header, or from the start of a
//! tunnel's payload, to the transport header or the next tunnel header. Its key fields (addresses,
//! ports, …) are therefore always those of a single IP header. The next level, if there is one, is
//! dissected by [`dissect_inner`](crate::dissect_inner).

use crate::{LayerKind, Reason};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of headers recorded per level; a packet with more stops with [`Reason::TooDeep`].
/// Each VLAN tag, MPLS label and IPv6 extension header counts as one.
pub const MAX_LAYERS: usize = 16;

/// Maximum number of nested tunnels that are followed.
pub const MAX_TUNNEL_DEPTH: u8 = 8;

/// Part of a datagram in a packet (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fragment {
    /// The whole datagram, which includes IPv6 atomic fragments (RFC 6946).
    #[default]
    Whole = 0,
    /// The first fragment: it contains the transport header, or its start.
    First,
    /// A middle fragment.
    Middle,
    /// The last fragment.
    Last,
}

impl Fragment {
    /// Whether the transport header is in an earlier packet.
    #[inline]
    pub const fn is_later(self) -> bool {
        matches!(self, Fragment::Middle | Fragment::Last)
    }
}

/// Dissection of one level of a packet. Plain data of fixed size; all zero if nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Dissection {
    /// Source address. IPv4: the first four bytes, then zeros. Meaningful if `ip_version` is not
    /// 0.
    pub src: [u8; 16],
    /// Destination address, in the same form.
    pub dst: [u8; 16],
    // This order allows moving adjacent header fields at once: the ports, time to live and
    // protocol, sequence and acknowledgement numbers, flags and window.
    /// Destination port, likewise.
    pub dst_port: u16,
    /// Source port of TCP, UDP, UDP-Lite or SCTP; otherwise 0. See [`Dissection::has_ports`].
    pub src_port: u16,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// The IP protocol after the IP header and all its extension headers.
    pub ip_protocol: u8,
    /// IP version: 4, 6, or 0 if no IP header was read.
    pub ip_version: u8,
    /// IPv4 type of service or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower
    /// two.
    pub traffic_class: u8,
    /// VLAN id (12 bits) of the outermost tag, 0 without one (see `vlan_count`).
    pub vlan_outer: u16,
    /// VLAN id of the second tag, 0 without one.
    pub vlan_inner: u16,
    /// Top label (20 bits) of the MPLS stack, 0 without one.
    pub mpls_label: u32,
    /// Number of VLAN tags.
    pub vlan_count: u8,
    /// Number of MPLS labels.
    pub mpls_count: u8,
    /// Part of the datagram in this packet.
    pub fragment: Fragment,
    /// Number of layer stack entries in use.
    pub layer_count: u8,
    /// TCP acknowledgement number.
    pub tcp_ack: u32,
    /// TCP sequence number.
    pub tcp_seq: u32,
    /// TCP window as sent, unscaled.
    pub tcp_window: u16,
    /// The lower 12 bits of bytes 12 and 13 of the TCP header: reserved bits, then the flags.
    pub tcp_flags: u16,
    /// Total length of the IP datagram, headers included, in bytes: IPv4 total length, or IPv6
    /// payload length (or the jumbo payload option) + 40. If the header has 0 because the sender
    /// leaves segmentation to the card, the rest of the packet on the wire.
    pub ip_total_len: u32,
    /// Offset of the payload from the start of the packet: after the last header read.
    pub payload_offset: u32,
    /// Length of the payload on the wire: excludes link padding, includes bytes truncated by the
    /// capture.
    pub payload_len: u32,
    /// Offset of the IP header from the start of the packet, in bytes.
    pub ip_offset: u16,
    /// Offset of the header after the IP header and its extension headers, in bytes; 0 if none.
    pub transport_offset: u16,
    /// Offset of this fragment in the datagram, in bytes.
    pub fragment_offset: u16,
    /// Type of an ICMP, ICMPv6 or IGMP message.
    pub icmp_type: u8,
    /// Code of an ICMP or ICMPv6 message.
    pub icmp_code: u8,
    /// Number of tunnels around this level; 0 for the outermost.
    pub tunnel_depth: u8,
    /// Why the pass stopped.
    pub reason: Reason,
    /// The layer at `inner_offset`; [`LayerKind::None`] if this level has no inner packet.
    pub inner: LayerKind,
    /// Whether the inner packet is not tunnelled but quoted by an ICMP error message.
    pub inner_is_quote: bool,
    /// The flags of the IPv4 header: 4 reserved, 2 don't fragment, 1 more fragments.
    pub ip_flags: u8,
    /// Whether `src_port` and `dst_port` were read: a packet may be truncated before them.
    pub ports_read: bool,
    /// Whether the type of an ICMP or ICMPv6 message was read.
    pub icmp_type_read: bool,
    /// Whether its code was read.
    pub icmp_code_read: bool,
    /// IPv4 identification, or the identification of the IPv6 fragment header.
    pub fragment_id: u32,
    /// Offset of the inner packet from the start of the packet, in bytes.
    pub inner_offset: u32,
    /// Length of the inner packet on the wire in bytes.
    pub inner_len: u32,
    /// VXLAN or GENEVE network identifier, GTP-U tunnel endpoint, GRE key, PPTP call id, ERSPAN
    /// session, NSH path, 802.1ah service, ESP or AH SPI.
    pub tunnel_id: u32,
    /// Length of the data after the transport header on the wire, if further headers of a tunnel
    /// follow it; otherwise 0. See [`Dissection::transport_payload`].
    pub tunnel_payload_len: u32,
    /// IPv6 flow label.
    /// With [`Reason::UnsupportedLink`], the number of the link type
    /// ([`unsupported_link`](Self::unsupported_link)).
    pub flow_label: u32,
    /// IPv4: bit n set if option number n (the lower five bits of the type) is present.
    /// IPv6: extension headers seen, see [`ipv6_ext::bit`](crate::ipv6_ext::bit).
    pub ip_options: u32,
    /// Bit n set if TCP option kind n is present, for n below 64 (IPFIX element 209).
    pub tcp_options: u64,
    /// Bit [`LayerKind::bit`] set for each layer present.
    pub layer_mask: u64,
    /// Number of captured bytes.
    pub cap_len: u32,
    /// Length on the wire in bytes.
    pub wire_len: u32,
    /// Layers, outermost first; entries from `layer_count` on are [`LayerKind::None`].
    pub layer_kinds: [LayerKind; MAX_LAYERS],
    /// Offset of each layer from the start of the packet, in bytes.
    pub layer_offsets: [u16; MAX_LAYERS],
}

// Three cache lines, written and read for each packet.
const _: () = assert!(size_of::<Dissection>() == 192);

impl Dissection {
    /// An empty dissection: every field zero.
    pub const EMPTY: Dissection = Dissection {
        src: [0; 16],
        dst: [0; 16],
        src_port: 0,
        dst_port: 0,
        ip_protocol: 0,
        ip_version: 0,
        vlan_outer: 0,
        vlan_inner: 0,
        vlan_count: 0,
        mpls_count: 0,
        mpls_label: 0,
        ttl: 0,
        traffic_class: 0,
        fragment: Fragment::Whole,
        icmp_type: 0,
        icmp_code: 0,
        tunnel_depth: 0,
        reason: Reason::Complete,
        layer_count: 0,
        tcp_flags: 0,
        tcp_window: 0,
        tcp_seq: 0,
        tcp_ack: 0,
        ip_total_len: 0,
        payload_offset: 0,
        payload_len: 0,
        fragment_id: 0,
        fragment_offset: 0,
        ip_offset: 0,
        transport_offset: 0,
        inner: LayerKind::None,
        inner_is_quote: false,
        ip_flags: 0,
        ports_read: false,
        icmp_type_read: false,
        icmp_code_read: false,
        inner_offset: 0,
        inner_len: 0,
        tunnel_id: 0,
        tunnel_payload_len: 0,
        flow_label: 0,
        ip_options: 0,
        tcp_options: 0,
        layer_mask: 0,
        cap_len: 0,
        wire_len: 0,
        layer_kinds: [LayerKind::None; MAX_LAYERS],
        layer_offsets: [0; MAX_LAYERS],
    };

    /// Number of the link type that ended the dissection because it is not supported.
    pub fn unsupported_link(&self) -> Option<u32> {
        (self.reason == Reason::UnsupportedLink).then_some(self.flow_label)
    }

    /// Whether this layer is present.
    #[inline]
    pub const fn has(&self, kind: LayerKind) -> bool {
        match kind.bit() {
            0 => self.lists(kind),
            bit => self.layer_mask & bit != 0,
        }
    }

    /// Whether this layer, which has no bit, is among the layers.
    const fn lists(&self, kind: LayerKind) -> bool {
        let mut i = 0;
        while i < MAX_LAYERS {
            if self.layer_kinds[i] as u8 == kind as u8 {
                return true;
            }
            i += 1;
        }
        false
    }

    /// Whether `src_port` and `dst_port` were read from a transport header.
    #[inline]
    pub const fn has_ports(&self) -> bool {
        self.ports_read
    }

    /// Whether this layer is the last one.
    #[inline]
    pub fn is_last_layer(&self, kind: LayerKind) -> bool {
        let last = usize::from(self.layer_count).wrapping_sub(1);
        self.layer_kinds.get(last) == Some(&kind)
    }

    /// The layers, outermost first, each with its offset in the packet.
    pub fn layers(&self) -> impl Iterator<Item = (LayerKind, usize)> + '_ {
        let count = usize::from(self.layer_count).min(MAX_LAYERS);
        self.layer_kinds
            .iter()
            .zip(&self.layer_offsets)
            .take(count)
            .map(|(k, o)| (*k, usize::from(*o)))
    }

    /// Offset of the first layer of this kind.
    pub fn offset_of(&self, kind: LayerKind) -> Option<usize> {
        if !self.has(kind) {
            return None;
        }
        self.layers()
            .find(|(k, _)| *k == kind)
            .map(|(_, offset)| offset)
    }

    /// Source address, if an IP header was read.
    pub fn src_addr(&self) -> Option<IpAddr> {
        self.address(&self.src)
    }

    /// Destination address, if an IP header was read.
    pub fn dst_addr(&self) -> Option<IpAddr> {
        self.address(&self.dst)
    }

    fn address(&self, bytes: &[u8; 16]) -> Option<IpAddr> {
        match self.ip_version {
            4 => Some(IpAddr::V4(Ipv4Addr::new(
                bytes[0], bytes[1], bytes[2], bytes[3],
            ))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes))),
            _ => None,
        }
    }

    /// The data after the transport header, including a tunnel's header: its offset from the start
    /// of the packet, and its length on the wire. `None` if the end of that header is unknown,
    /// because its length is truncated or invalid.
    #[inline]
    pub fn transport_payload(&self) -> Option<(u32, u32)> {
        let transport = self.transport_offset;
        if transport != 0 && self.last_offset() != transport {
            return self.behind_transport();
        }
        let is_cut = matches!(self.reason, Reason::Truncated) || self.reason.is_malformed();
        let is_behind = transport != 0 && self.payload_offset > transport as u32;
        if self.ip_version != 0 && is_cut && !is_behind {
            return None;
        }
        Some((self.payload_offset, self.payload_len))
    }

    #[inline]
    fn last_offset(&self) -> u16 {
        let last = usize::from(self.layer_count).wrapping_sub(1);
        self.layer_offsets.get(last).copied().unwrap_or(0)
    }

    /// Offset and length of the layer after the transport header.
    #[inline(never)]
    fn behind_transport(&self) -> Option<(u32, u32)> {
        let transport = usize::from(self.transport_offset);
        let (_, behind) = self.layers().find(|(_, offset)| *offset > transport)?;
        Some((behind as u32, self.tunnel_payload_len))
    }

    /// The captured payload. `packet` is the packet that was dissected.
    #[inline]
    pub fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        let rest = packet.get(self.payload_offset as usize..).unwrap_or(&[]);
        rest.get(..self.payload_len as usize).unwrap_or(rest)
    }
}

impl Default for Dissection {
    fn default() -> Self {
        Dissection::EMPTY
    }
}
