//! Laws: properties that hold for every input. Tests and fuzz targets call them; they panic if a
//! law is violated. Enabled by the feature `laws`, which is off by default.

use crate::dissection::{MAX_LAYERS, MAX_TUNNEL_DEPTH};
use crate::file::{Event, FileError, Interface, MAX_NEED, Reader};
use crate::table::Header;
use crate::{Dissection, Fragment, LayerKind, LinkType, Reason, Summary, dissect, dissect_inner};
use core::fmt::{self, Write};

/// Maximum length of a summary. Every level prints at most its layers.
const MAX_LINE: usize = 16_384;

/// Counts the output, and refuses control characters.
struct Line(usize);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        assert!(
            !text.contains(|c: char| c.is_control()),
            "control character in {text:?}"
        );
        self.0 += text.len();
        assert!(self.0 <= MAX_LINE, "a line without end");
        Ok(())
    }
}

/// Checks the laws of a packet: of all its levels, printed and truncated.
pub fn packet(link: LinkType, bytes: &[u8], wire_len: u32) {
    let mut level = Dissection::EMPTY;
    dissect(link, bytes, wire_len, &mut level);
    one_level(&level, bytes, 0);
    former_content_is_lost(link, bytes, wire_len, &level);
    cuts(link, bytes, wire_len, &level);
    let _ = write!(
        Line(0),
        "{}",
        Summary {
            dissection: &level,
            bytes
        }
    );
    let mut inner = Dissection::EMPTY;
    let mut depth = 0;
    while dissect_inner(bytes, &level, &mut inner) {
        depth += 1;
        assert_eq!(inner.tunnel_depth, depth);
        assert!(depth <= MAX_TUNNEL_DEPTH + 1, "tunnels without end");
        one_level(&inner, bytes, level.inner_offset as usize);
        assert!(
            level.layer_count > 0,
            "an inner packet without a header around it"
        );
        level = inner;
    }
    assert_eq!(inner, Dissection::EMPTY);
}

/// A fuzz input: link type, number of truncated bytes, the packet.
pub fn packet_input(input: &[u8]) {
    if let Some((&[link, cut], bytes)) = input.split_first_chunk::<2>() {
        let link = LinkType::SUPPORTED[usize::from(link) % LinkType::SUPPORTED.len()];
        packet(link, bytes, (bytes.len() + usize::from(cut)) as u32);
    }
}

/// Checks the laws of one level that starts at `start`.
fn one_level(d: &Dissection, bytes: &[u8], start: usize) {
    short_cut_equals_walk(d, bytes, start);
    let mut before = start;
    let mut mask = 0;
    assert!(usize::from(d.layer_count) <= MAX_LAYERS);
    for (kind, offset) in d.layers() {
        assert!(kind != LayerKind::None && offset >= before && offset <= bytes.len());
        before = offset;
        mask |= kind.bit();
        assert!(d.has(kind) && d.offset_of(kind).is_some_and(|first| first <= offset));
        // Every view accepts every header that its layer was found in.
        let header = Header {
            kind,
            bytes: bytes.get(offset..).unwrap_or(&[]),
        };
        let _ = write!(Line(0), "{header}");
    }
    assert_eq!(mask, d.layer_mask);
    assert!(
        d.layer_kinds[usize::from(d.layer_count)..]
            .iter()
            .all(|k| *k == LayerKind::None)
    );
    let payload = d.payload_offset as usize;
    // The end of a truncated header is after the captured bytes.
    assert!(payload >= before && (payload <= bytes.len() || d.reason == Reason::Truncated));
    assert!(payload + d.payload_len as usize <= start + d.wire_len as usize);
    assert!(d.payload(bytes).len() <= d.payload_len as usize);
    assert!(matches!(d.ip_version, 0 | 4 | 6));
    assert_eq!(d.ip_version != 0, d.src_addr().is_some());
    if d.ip_version == 4 {
        assert!(d.src[4..] == [0; 12] && d.dst[4..] == [0; 12] && d.has(LayerKind::Ipv4));
    }
    assert!(d.reason != Reason::LaterFragment || d.fragment.is_later());
    assert!(d.ports_read || (d.src_port, d.dst_port) == (0, 0));
    if d.fragment == Fragment::Whole {
        assert_eq!(d.fragment_offset, 0);
    }
    assert!(d.vlan_outer < 4096 && d.vlan_inner < 4096 && d.mpls_label < 1 << 20);
    assert!(d.tcp_flags < 4096);
    if d.inner != LayerKind::None {
        let inner = d.inner_offset as usize;
        assert_eq!(
            (d.reason, inner, d.inner_len),
            (Reason::Complete, payload, d.payload_len)
        );
        assert!(inner > start, "an inner packet must lie behind a header");
    }
}

/// Checks that the shortcut and the walk give the same result.
fn short_cut_equals_walk(d: &Dissection, bytes: &[u8], start: usize) {
    let Some((first, _)) = d.layers().next() else {
        return;
    };
    let rest = bytes.get(start..).unwrap_or(&[]);
    let rest = rest.get(..d.wire_len as usize).unwrap_or(rest);
    let mut walked = Dissection::EMPTY;
    crate::walk::walk(
        first,
        rest,
        start,
        d.wire_len as usize,
        d.tunnel_depth,
        &mut walked,
    );
    assert_eq!(*d, walked);
}

/// Checks that the previous content of the output does not matter.
fn former_content_is_lost(link: LinkType, bytes: &[u8], wire_len: u32, expected: &Dissection) {
    let mut dirty = *expected;
    dirty.tcp_options = u64::MAX;
    dirty.src = [0xff; 16];
    dirty.layer_kinds = [LayerKind::Gre; MAX_LAYERS];
    dirty.inner_offset = u32::MAX;
    dissect(link, bytes, wire_len, &mut dirty);
    assert_eq!(dirty, *expected);
}

/// Checks that a packet truncated by the capture has the first layers of the complete one, and is
/// marked as truncated.
fn cuts(link: LinkType, bytes: &[u8], wire_len: u32, whole: &Dissection) {
    let wire_len = wire_len.max(bytes.len() as u32);
    // All lengths within the headers of an ordinary packet, and some after them.
    let near = bytes.len().min(160);
    for cut in (0..near).chain((near..bytes.len()).step_by(97)) {
        let mut d = Dissection::EMPTY;
        let cut = bytes.get(..cut).unwrap_or(&[]);
        // The version nibble of raw IP may be missing.
        if cut.is_empty() {
            continue;
        }
        dissect(link, cut, wire_len, &mut d);
        assert!(
            d.layers().zip(whole.layers()).all(|(a, b)| a == b),
            "layers of a cut packet"
        );
        assert!(d.layer_count <= whole.layer_count);
        assert!(
            d.reason == Reason::Truncated || d.reason == whole.reason,
            "{}",
            d.reason
        );
        figures_of_a_cut(&d, whole, cut.len());
        if d.reason == whole.reason && d.ip_version != 0 {
            assert_eq!(
                (d.src, d.dst, d.ip_total_len),
                (whole.src, whole.dst, whole.ip_total_len)
            );
        }
    }
}

/// Checks that values which do not depend on truncated bytes are those of the complete packet;
/// other values are missing, or reported as far as they are known.
fn figures_of_a_cut(d: &Dissection, whole: &Dissection, cap_len: usize) {
    if d.ip_version == 0 {
        return;
    }
    let of_ip = |d: &Dissection| {
        let addresses = (d.src, d.dst, d.ip_version, d.ip_offset);
        let numbers = (d.ttl, d.traffic_class, d.ip_flags, d.flow_label);
        (addresses, numbers)
    };
    assert_eq!(of_ip(d), of_ip(whole));
    // Its length may also be in truncated options.
    let is_jumbo = whole.ip_version == 6 && whole.ip_total_len > 40 + 0xffff
        || whole.has(LayerKind::HopByHop) && d.ip_total_len != whole.ip_total_len;
    if is_jumbo {
        return;
    }
    assert_eq!(d.ip_total_len, whole.ip_total_len);
    let (payload, expected) = (d.transport_payload(), whole.transport_payload());
    assert!(
        payload.is_none() || payload == expected,
        "{payload:?} of {d:?}"
    );
    assert!(!d.ports_read || (d.src_port, d.dst_port) == (whole.src_port, whole.dst_port));
    if d.icmp_type_read {
        assert_eq!(d.icmp_type, whole.icmp_type);
    }
    assert_eq!(d.tcp_options & !whole.tcp_options, 0);
    if d.transport_offset == 0 || d.transport_offset != whole.transport_offset {
        return;
    }
    // Bytes of the header needed to know its length.
    let has = |kind| whole.has(kind);
    let need = match () {
        () if has(LayerKind::Tcp) => 13,
        () if has(LayerKind::Udp) => 6,
        () if has(LayerKind::Sctp) || has(LayerKind::UdpLite) || has(LayerKind::Icmpv4) => 0,
        () => return,
    };
    // Data after the IP packet do not belong to the transport header.
    let end = usize::from(whole.ip_offset) + whole.ip_total_len as usize;
    let captured = cap_len
        .min(end)
        .saturating_sub(whole.transport_offset.into());
    if captured >= need {
        assert_eq!(payload, expected);
        assert!(!has(LayerKind::Icmpv4) || captured == 0 || d.icmp_type_read);
    }
    if captured >= 16 {
        let of_tcp = |d: &Dissection| (d.tcp_seq, d.tcp_ack, d.tcp_flags, d.tcp_window);
        assert_eq!(of_tcp(d), of_tcp(whole));
    }
}

/// A fuzz input as a pcapng file: unchanged if it starts like one, otherwise after a section header
/// whose byte order the first bit selects. Input above 8 KiB is ignored.
pub fn pcapng_input(input: &[u8]) {
    const BIG: [u8; 28] = [
        10, 13, 13, 10, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255,
        255, 255, 255, 0, 0, 0, 28,
    ];
    const LITTLE: [u8; 28] = [
        10, 13, 13, 10, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255,
        255, 255, 255, 28, 0, 0, 0,
    ];
    if input.starts_with(&BIG[..4]) {
        return file(input);
    }
    let Some((&order, blocks)) = input.split_first() else {
        return;
    };
    let mut bytes = [0; 8192];
    bytes[..28].copy_from_slice(if order & 1 == 0 { &LITTLE } else { &BIG });
    let len = blocks.len().min(bytes.len() - 28);
    bytes[28..28 + len].copy_from_slice(&blocks[..len]);
    file(&bytes[..28 + len]);
}

/// The next event of a reader that is passed no more bytes than it requests.
fn byte_by_byte<I: AsRef<[Interface]> + AsMut<[Interface]>>(
    reader: &mut Reader<I>,
    rest: &[u8],
) -> Result<Event, FileError> {
    let mut shown = 0;
    loop {
        match reader.next(rest.get(..shown).unwrap_or(rest)) {
            Ok(Event::Need(need)) if need <= rest.len() => {
                assert!(need > shown && need <= MAX_NEED);
                shown = need;
            }
            other => return other,
        }
    }
}

/// Checks the laws of a file: passed at once or byte by byte it gives the same events, a reader
/// always advances or stops, and no range exceeds the bytes passed. Packets obey [`packet`] as
/// well.
pub fn file(bytes: &[u8]) {
    let table = || [Interface::default(); 4];
    let mut whole = Reader::with(table(), 65_536);
    let mut pieces = Reader::with(table(), 65_536);
    let mut at = 0usize;
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        assert_eq!((whole.offset(), pieces.offset()), (at as u64, at as u64));
        let mut short = whole.clone();
        let mut plain = None;
        let used = short.each_plain(rest, 1, |start, cap_len, wire_len, time| {
            plain = Some((start, cap_len, wire_len, time));
        });
        assert_eq!(used > 0, plain.is_some());
        assert_eq!(short.offset(), (at + used) as u64);
        let event = whole.next(rest);
        // The shortcut reports the same, and consumes as much.
        if let (Some((start, cap_len, wire_len, time)), Ok(Event::Packet(packet))) = (plain, &event)
        {
            assert_eq!(packet.data, start..start + cap_len as usize);
            assert_eq!((packet.wire_len, packet.time), (wire_len, time));
            assert_eq!(
                (packet.used, packet.interface, packet.has_time),
                (used, 0, true)
            );
        } else {
            assert!(plain.is_none());
        }
        let other = byte_by_byte(&mut pieces, rest);
        assert_eq!(event, other, "at byte {at}");
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                assert!(error.offset <= at as u64);
                let _ = write!(Line(0), "{error}");
                return;
            }
        };
        match &event {
            Event::Need(need) => {
                assert!(*need > rest.len());
                assert_eq!(whole.finish(rest.len()), pieces.finish(rest.len()));
                if let Err(error) = whole.finish(rest.len()) {
                    assert!(error.offset <= bytes.len() as u64);
                    let _ = write!(Line(0), "{error}");
                }
                return;
            }
            Event::Packet(found) => {
                let data = rest
                    .get(found.data.clone())
                    .expect("a packet within what was shown");
                assert!(found.wire_len as usize >= data.len() && found.data.end <= found.used);
                packet(found.link, data, found.wire_len);
            }
            Event::Interface(found) => {
                assert!(rest.get(found.name.clone()).is_some() && found.name.end <= found.used);
            }
            Event::Skip(_) | Event::Statistics(_) => {}
        }
        assert!(event.used() > 0, "a reader that does not go on");
        at += event.used();
    }
}
