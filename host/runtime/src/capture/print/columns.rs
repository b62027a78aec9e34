//! Packets as columns (`--fields`): values by tshark's names, or by those of barewire's decoders
//! (`tls.sni`, and `tls_sni` as in JSON). For tunnelled packets the values of all levels are
//! printed, joined by commas, the outermost first.

use std::fmt::{self, Write};

use inspect::{Application, FIELDS, Field, Value};
use sys::{Error, ErrorKind, Result};
use wire::ethernet::Ethernet;
use wire::{Dissection, LayerKind, Timestamp, dissect_inner};

use super::application::write_value;

/// The contents of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// A property of the whole packet.
    Frame(Frame),
    /// A property of each level.
    Level(Part),
    /// A decoded field.
    Found(Field),
    /// The protocol that the decoders identified.
    Protocol,
    /// The packet's line.
    Info,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Number,
    Time,
    TimeRelative,
    TimeDelta,
    Len,
    CapLen,
    Interface,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    EthSrc,
    EthDst,
    EthType,
    VlanId,
    Ip4Src,
    Ip4Dst,
    Ip4Proto,
    Ip4Ttl,
    Ip4Id,
    Ip4Len,
    Ip4Dsfield,
    Ip6Src,
    Ip6Dst,
    Ip6Hlim,
    Ip6Flow,
    Ip6Plen,
    TcpSrc,
    TcpDst,
    TcpSeq,
    TcpAck,
    TcpFlags,
    TcpWindow,
    TcpLen,
    UdpSrc,
    UdpDst,
    UdpLen,
    IcmpType,
    IcmpCode,
    Icmp6Type,
    Icmp6Code,
}

use Column::{Found, Level};

/// All columns by tshark's name, except those of [`FIELDS`].
const COLUMNS: &[(&str, Column)] = &[
    ("frame.number", Column::Frame(Frame::Number)),
    ("frame.time_epoch", Column::Frame(Frame::Time)),
    ("frame.time_relative", Column::Frame(Frame::TimeRelative)),
    ("frame.time_delta", Column::Frame(Frame::TimeDelta)),
    ("frame.len", Column::Frame(Frame::Len)),
    ("frame.cap_len", Column::Frame(Frame::CapLen)),
    ("frame.interface_name", Column::Frame(Frame::Interface)),
    ("eth.src", Level(Part::EthSrc)),
    ("eth.dst", Level(Part::EthDst)),
    ("eth.type", Level(Part::EthType)),
    ("vlan.id", Level(Part::VlanId)),
    ("ip.src", Level(Part::Ip4Src)),
    ("ip.dst", Level(Part::Ip4Dst)),
    ("ip.proto", Level(Part::Ip4Proto)),
    ("ip.ttl", Level(Part::Ip4Ttl)),
    ("ip.id", Level(Part::Ip4Id)),
    ("ip.len", Level(Part::Ip4Len)),
    ("ip.dsfield", Level(Part::Ip4Dsfield)),
    ("ipv6.src", Level(Part::Ip6Src)),
    ("ipv6.dst", Level(Part::Ip6Dst)),
    ("ipv6.hlim", Level(Part::Ip6Hlim)),
    ("ipv6.flow", Level(Part::Ip6Flow)),
    ("ipv6.plen", Level(Part::Ip6Plen)),
    ("tcp.srcport", Level(Part::TcpSrc)),
    ("tcp.dstport", Level(Part::TcpDst)),
    ("tcp.seq_raw", Level(Part::TcpSeq)),
    ("tcp.ack_raw", Level(Part::TcpAck)),
    ("tcp.flags", Level(Part::TcpFlags)),
    ("tcp.window_size_value", Level(Part::TcpWindow)),
    ("tcp.len", Level(Part::TcpLen)),
    ("udp.srcport", Level(Part::UdpSrc)),
    ("udp.dstport", Level(Part::UdpDst)),
    ("udp.length", Level(Part::UdpLen)),
    ("icmp.type", Level(Part::IcmpType)),
    ("icmp.code", Level(Part::IcmpCode)),
    ("icmpv6.type", Level(Part::Icmp6Type)),
    ("icmpv6.code", Level(Part::Icmp6Code)),
    ("_ws.col.Protocol", Column::Protocol),
    ("app", Column::Protocol),
    ("_ws.col.Info", Column::Info),
    ("info", Column::Info),
    ("tls.handshake.extensions_server_name", Found(Field::TlsSni)),
    ("tls.handshake.extensions_alpn_str", Found(Field::TlsAlpn)),
    ("tls.handshake.ciphersuite", Found(Field::TlsCipher)),
    ("tls.handshake.ja3", Found(Field::Ja3)),
    ("tls.handshake.ja3s", Found(Field::Ja3s)),
    ("http.request.method", Found(Field::HttpMethod)),
    ("http.request.uri", Found(Field::HttpPath)),
    ("http.user_agent", Found(Field::HttpAgent)),
    ("http.response.code", Found(Field::HttpStatus)),
    ("http.content_type", Found(Field::HttpType)),
    ("dns.qry.name", Found(Field::DnsName)),
    ("dns.qry.type", Found(Field::DnsType)),
    ("dns.flags.rcode", Found(Field::DnsRcode)),
    ("dns.count.answers", Found(Field::DnsAnswers)),
    ("mqtt.clientid", Found(Field::MqttClientId)),
    ("mqtt.ver", Found(Field::MqttVersion)),
    ("mqtt.kalive", Found(Field::MqttKeepAliveS)),
    ("ntp.flags.vn", Found(Field::NtpVersion)),
    ("ntp.flags.mode", Found(Field::NtpMode)),
    ("dhcp.option.dhcp", Found(Field::DhcpType)),
    ("dhcp.hw.mac_addr", Found(Field::DhcpMac)),
    ("dhcp.option.hostname", Found(Field::DhcpHostName)),
    ("dhcp.option.vendor_class_id", Found(Field::DhcpVendor)),
    (
        "dhcp.option.requested_ip_address",
        Found(Field::DhcpRequested),
    ),
    ("sip.Method", Found(Field::SipMethod)),
    ("sip.r-uri", Found(Field::SipUri)),
    ("sip.From", Found(Field::SipFrom)),
    ("sip.To", Found(Field::SipTo)),
    ("sip.Call-ID", Found(Field::SipCallId)),
    ("sip.User-Agent", Found(Field::SipAgent)),
    ("sip.Status-Code", Found(Field::SipStatus)),
];

/// A packet printed as columns.
pub(super) struct Row<'a> {
    pub(super) first: &'a Dissection,
    pub(super) bytes: &'a [u8],
    pub(super) wire_len: u32,
    pub(super) number: u64,
    /// Whether the packet has a time: the others are then meaningful.
    pub(super) has_time: bool,
    pub(super) time_ns: u64,
    pub(super) first_ns: u64,
    pub(super) previous_ns: u64,
    pub(super) interface: &'a str,
    pub(super) found: &'a Application,
    pub(super) info: &'a dyn fmt::Display,
}

/// The columns of a capture, and their separator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    columns: Vec<(String, Column)>,
    separator: char,
}

impl Columns {
    /// Parses the names of columns.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name, with a similar one.
    pub fn parse(names: &[String], separator: char) -> Result<Columns> {
        let find = |name: &String| {
            let found = find(name).ok_or_else(|| unknown(name))?;
            Ok((name.clone(), found))
        };
        Ok(Columns {
            columns: names.iter().map(find).collect::<Result<_>>()?,
            separator,
        })
    }

    /// All column names, tshark's first.
    pub fn names() -> Vec<String> {
        let known = COLUMNS.iter().map(|(name, _)| (*name).to_owned());
        known
            .chain(FIELDS.iter().map(|row| dotted(row.name)))
            .collect()
    }

    /// A header line with the names of these columns.
    pub fn header(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        names.join(self.separator.encode_utf8(&mut [0; 4])) + "\n"
    }

    pub(super) fn show(&self, out: &mut impl Write, row: &Row<'_>) -> fmt::Result {
        for (index, (_, column)) in self.columns.iter().enumerate() {
            if index != 0 {
                out.write_char(self.separator)?;
            }
            match column {
                Column::Frame(part) => show_frame(out, *part, row)?,
                Level(part) => show_levels(out, *part, row)?,
                Column::Info => write!(out, "{}", row.info)?,
                Column::Protocol => match row.found.is_empty() {
                    true => {}
                    false => out.write_str(row.found.protocol().name())?,
                },
                Found(field) => show_found(out, *field, row.found)?,
            }
        }
        Ok(())
    }
}

/// Converts `tls_sni` to `tls.sni`.
fn dotted(name: &str) -> String {
    name.replacen('_', ".", 1)
}

fn find(name: &str) -> Option<Column> {
    let known = COLUMNS.iter().find(|(known, _)| *known == name);
    known.map(|(_, column)| *column).or_else(|| {
        let is_it = |known: &str| known == name || dotted(known) == name;
        FIELDS
            .iter()
            .find(|row| is_it(row.name))
            .map(|row| Found(row.field))
    })
}

fn unknown(name: &str) -> Error {
    let names = Columns::names();
    let like = names.iter().min_by_key(|known| distance(known, name));
    let like = like.filter(|known| distance(known, name) <= name.len() / 2);
    let hint = match like {
        Some(like) => format!("did you mean {like}? `--fields help` lists all names"),
        None => "`--fields help` lists all names".to_owned(),
    };
    let what = format!("print the field {name:?}");
    Error::new(
        ErrorKind::InvalidInput,
        what,
        "there is no field of this name",
    )
    .with_hint(hint)
}

/// Edit distance (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = corner + usize::from(!x.eq_ignore_ascii_case(&y));
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn show_frame(out: &mut impl Write, part: Frame, row: &Row<'_>) -> fmt::Result {
    let seconds = |out: &mut _, ns: u64| {
        let time = Timestamp(ns);
        Write::write_fmt(
            out,
            format_args!("{}.{:09}", time.seconds(), time.subsec_ns()),
        )
    };
    match part {
        Frame::Time | Frame::TimeRelative | Frame::TimeDelta if !row.has_time => Ok(()),
        Frame::Number => write!(out, "{}", row.number),
        Frame::Time => seconds(out, row.time_ns),
        Frame::TimeRelative => seconds(out, row.time_ns.saturating_sub(row.first_ns)),
        Frame::TimeDelta => seconds(out, row.time_ns.saturating_sub(row.previous_ns)),
        Frame::Len => write!(out, "{}", row.wire_len),
        Frame::CapLen => write!(out, "{}", row.bytes.len()),
        Frame::Interface => out.write_str(row.interface),
    }
}

/// Prints the value of each level that has one.
fn show_levels(out: &mut impl Write, part: Part, row: &Row<'_>) -> fmt::Result {
    let (mut level, mut inner) = (*row.first, Dissection::EMPTY);
    let (mut comma, mut is_quote) = ("", false);
    loop {
        let mut out = Separated { out, comma };
        match part {
            Part::UdpLen => show_udp_len(&mut out, &level, row.bytes)?,
            Part::TcpLen => show_tcp_len(&mut out, &level, is_quote)?,
            _ => show_part(&mut out, part, &level, row.bytes)?,
        }
        (comma, is_quote) = (out.comma, level.inner_is_quote);
        if !dissect_inner(row.bytes, &level, &mut inner) {
            return Ok(());
        }
        level = inner;
    }
}

/// Writes a comma before each value but the first.
struct Separated<'a, W> {
    out: &'a mut W,
    comma: &'static str,
}

impl<W: Write> Separated<'_, W> {
    fn value(&mut self, value: impl fmt::Display) -> fmt::Result {
        write!(self.out, "{}{value}", self.comma)?;
        self.comma = ",";
        Ok(())
    }
}

fn show_part<W: Write>(
    out: &mut Separated<'_, W>,
    part: Part,
    d: &Dissection,
    bytes: &[u8],
) -> fmt::Result {
    use Part as P;
    match part {
        P::EthSrc | P::EthDst | P::EthType | P::VlanId => show_link(out, part, d, bytes),
        P::Ip4Src | P::Ip4Dst | P::Ip4Proto | P::Ip4Ttl | P::Ip4Id | P::Ip4Len | P::Ip4Dsfield
            if d.ip_version == 4 =>
        {
            show_ip4(out, part, d, bytes)
        }
        P::Ip6Src | P::Ip6Dst | P::Ip6Hlim | P::Ip6Flow | P::Ip6Plen if d.ip_version == 6 => {
            show_ip6(out, part, d)
        }
        _ => show_transport(out, part, d),
    }
}

fn show_link<W: Write>(
    out: &mut Separated<'_, W>,
    part: Part,
    d: &Dissection,
    bytes: &[u8],
) -> fmt::Result {
    if part == Part::VlanId {
        let tags = [d.vlan_outer, d.vlan_inner];
        let mut tags = tags.iter().take(d.vlan_count.into());
        return tags.try_for_each(|tag| out.value(tag));
    }
    let start = d.offset_of(LayerKind::Ethernet);
    let header = start.and_then(|start| Ethernet::parse(bytes.get(start..)?).ok());
    match (part, header) {
        (Part::EthSrc, Some(header)) => out.value(header.src()),
        (Part::EthDst, Some(header)) => out.value(header.dst()),
        (Part::EthType, Some(header)) if header.ether_type() >= 0x600 => {
            out.value(format_args!("0x{:04x}", header.ether_type()))
        }
        _ => Ok(()),
    }
}

fn show_ip4<W: Write>(
    out: &mut Separated<'_, W>,
    part: Part,
    d: &Dissection,
    bytes: &[u8],
) -> fmt::Result {
    match (part, d.src_addr(), d.dst_addr()) {
        (Part::Ip4Src, Some(address), _) | (Part::Ip4Dst, _, Some(address)) => out.value(address),
        (Part::Ip4Proto, ..) => {
            let named = bytes.get(usize::from(d.ip_offset) + 9).copied();
            out.value(named.unwrap_or(d.ip_protocol))
        }
        (Part::Ip4Ttl, ..) => out.value(d.ttl),
        (Part::Ip4Id, ..) => out.value(format_args!("0x{:04x}", d.fragment_id)),
        (Part::Ip4Len, ..) => out.value(d.ip_total_len),
        (Part::Ip4Dsfield, ..) => out.value(format_args!("0x{:02x}", d.traffic_class)),
        _ => Ok(()),
    }
}

fn show_ip6<W: Write>(out: &mut Separated<'_, W>, part: Part, d: &Dissection) -> fmt::Result {
    match (part, d.src_addr(), d.dst_addr()) {
        (Part::Ip6Src, Some(address), _) | (Part::Ip6Dst, _, Some(address)) => out.value(address),
        (Part::Ip6Hlim, ..) => out.value(d.ttl),
        (Part::Ip6Flow, ..) => out.value(format_args!("0x{:06x}", d.flow_label)),
        (Part::Ip6Plen, ..) => out.value(d.ip_total_len.saturating_sub(40)),
        _ => Ok(()),
    }
}

/// The length field of a UDP header, which may be more than what is there.
fn show_udp_len<W: Write>(out: &mut Separated<'_, W>, d: &Dissection, bytes: &[u8]) -> fmt::Result {
    let field = bytes.get(usize::from(d.transport_offset) + 4..);
    match field.and_then(|field| field.first_chunk()) {
        Some(field) if d.has(LayerKind::Udp) && d.has_ports() => {
            out.value(u16::from_be_bytes(*field))
        }
        _ => Ok(()),
    }
}

/// The length of a segment, by the IP header. A quoted segment was longer than what is there.
fn show_tcp_len<W: Write>(
    out: &mut Separated<'_, W>,
    d: &Dissection,
    is_quote: bool,
) -> fmt::Result {
    if !(d.has(LayerKind::Tcp) && d.has_ports()) {
        return Ok(());
    }
    let len = d.transport_payload().map(|(offset, len)| match is_quote {
        true => (u32::from(d.ip_offset) + d.ip_total_len).saturating_sub(offset),
        false => len,
    });
    len.map_or(Ok(()), |len| out.value(len))
}

fn show_transport<W: Write>(out: &mut Separated<'_, W>, part: Part, d: &Dissection) -> fmt::Result {
    use Part as P;
    let is = |kind| d.has(kind) && d.has_ports();
    let (is_tcp, is_udp) = (is(LayerKind::Tcp), is(LayerKind::Udp));
    match part {
        P::TcpSrc if is_tcp => out.value(d.src_port),
        P::TcpDst if is_tcp => out.value(d.dst_port),
        P::TcpSeq if is_tcp => out.value(d.tcp_seq),
        P::TcpAck if is_tcp => out.value(d.tcp_ack),
        P::TcpFlags if is_tcp => out.value(format_args!("0x{:04x}", d.tcp_flags)),
        P::TcpWindow if is_tcp => out.value(d.tcp_window),
        P::UdpSrc if is_udp => out.value(d.src_port),
        P::UdpDst if is_udp => out.value(d.dst_port),
        P::IcmpType if d.has(LayerKind::Icmpv4) && d.icmp_type_read => out.value(d.icmp_type),
        P::IcmpCode if d.has(LayerKind::Icmpv4) && d.icmp_type_read => out.value(d.icmp_code),
        P::Icmp6Type if d.has(LayerKind::Icmpv6) && d.icmp_type_read => out.value(d.icmp_type),
        P::Icmp6Code if d.has(LayerKind::Icmpv6) && d.icmp_type_read => out.value(d.icmp_code),
        _ => Ok(()),
    }
}

fn show_found(out: &mut impl Write, field: Field, found: &Application) -> fmt::Result {
    let values = found.fields().filter(|(other, _)| *other == field);
    for (index, (_, value)) in values.enumerate() {
        out.write_str(if index == 0 { "" } else { "," })?;
        match value {
            Value::Text { bytes, .. } => {
                let whole = Value::text(bytes);
                write_value(out, field, whole)?;
            }
            // tshark prints the number of a version, too.
            Value::Number(number) if field.row().kind == inspect::Kind::Version => {
                write!(out, "0x{number:04x}")?;
            }
            value => write_value(out, field, value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet quoted in an ICMP error is longer than the quote: the lengths are those of the
    /// headers, as they are for a header that claims too much.
    #[test]
    fn lengths_are_those_of_the_headers() {
        let ip = |protocol: u8, total_len: u16, payload: &[u8]| {
            let mut bytes = vec![0x45, 0];
            bytes.extend(total_len.to_be_bytes());
            bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            bytes.extend(payload);
            bytes
        };
        let udp = [3, 232, 0, 53, 5, 120, 0, 0, 1, 2, 3];
        let tcp = [
            3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 24, 1, 0, 0, 0, 0, 0, 1, 2, 3,
        ];
        let quoted = |inside: &[u8]| {
            let message = [&[3, 3, 0, 0, 0, 0, 0, 0], inside].concat();
            ip(1, 20 + message.len() as u16, &message)
        };
        for (packet, part, expected) in [
            (ip(17, 31, &udp), Part::UdpLen, "1400"),
            (quoted(&ip(17, 1420, &udp)), Part::UdpLen, "1400"),
            (ip(6, 43, &tcp), Part::TcpLen, "3"),
            (quoted(&ip(6, 1420, &tcp)), Part::TcpLen, "1380"),
            // The length of the header is not in the quote.
            (quoted(&ip(6, 1420, &tcp[..8])), Part::TcpLen, ""),
            (quoted(&ip(17, 1420, &udp[..4])), Part::UdpLen, ""),
        ] {
            let mut first = Dissection::EMPTY;
            wire::dissect(
                wire::LinkType::IPV4,
                &packet,
                packet.len() as u32,
                &mut first,
            );
            let row = Row {
                first: &first,
                bytes: &packet,
                wire_len: packet.len() as u32,
                number: 1,
                has_time: true,
                time_ns: 0,
                first_ns: 0,
                previous_ns: 0,
                interface: "",
                found: &Application::EMPTY,
                info: &"",
            };
            let mut out = String::new();
            show_levels(&mut out, part, &row).unwrap();
            assert_eq!(out, expected, "{packet:02x?}");
        }
    }

    #[test]
    fn unknown_column_names_get_a_suggestion() {
        for name in Columns::names() {
            assert!(
                Columns::parse(std::slice::from_ref(&name), '\t').is_ok(),
                "{name}"
            );
        }
        assert_eq!(
            find("tls.sni"),
            find("tls.handshake.extensions_server_name")
        );
        assert_eq!(find("tls.sni"), find("tls_sni"));
        for (wrong, right) in [("tcp.dsport", "tcp.dstport"), ("ip.source", "ip.src")] {
            let error = Columns::parse(&[wrong.to_owned()], '\t').unwrap_err();
            assert!(error.hint().unwrap().contains(right), "{error}");
        }
        let columns = ["ip.src", "dns.qry.name"].map(str::to_owned);
        let columns = Columns::parse(&columns, ',').unwrap();
        assert_eq!(columns.header(), "ip.src,dns.qry.name\n");
    }
}
