//! Packets as text: a line each in tcpdump's manner, with what its flags add, or a JSON object.
//!
//! Lines gather in a buffer that the owner empties; nothing is allocated for a packet.

use std::fmt::{self, Write as _};
use std::io;

use port::{Packet, Vlan};
use wire::ethernet::Ethernet;
use wire::summary::Summary;
use wire::{Dissection, LayerKind, LinkType, Timestamp, dissect};

/// How the time of a packet is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeStyle {
    /// Time of day in the machine's zone.
    #[default]
    Clock,
    /// Not at all.
    None,
    /// Seconds since 1970.
    Epoch,
    /// Since the packet before.
    Delta,
    /// Date and time of day.
    Date,
    /// Since the first packet.
    SinceFirst,
}

/// Which bytes are printed below the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dump {
    /// None.
    #[default]
    None,
    /// In hexadecimal digits.
    Hex,
    /// In digits and as text.
    HexText,
    /// As text.
    Text,
}

/// How packets are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The time in front.
    pub time: TimeStyle,
    /// Nanoseconds instead of microseconds.
    pub nanoseconds: bool,
    /// Count the lines.
    pub number: bool,
    /// The link header too.
    pub link: bool,
    /// Only addresses, ports and lengths.
    pub quick: bool,
    /// Fields of the IP header too.
    pub verbose: bool,
    /// Which bytes below the line.
    pub dump: Dump,
    /// The link header among them.
    pub dump_link: bool,
    /// A JSON object instead of all that.
    pub json: bool,
}

/// What is known of a packet beside itself.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Its link type.
    pub link_type: u16,
    /// Name of its interface.
    pub interface: &'a str,
    /// Its time, if the packet has none of its own.
    pub time_ns: u64,
    /// Whether it is known which way it went.
    pub has_way: bool,
}

/// Turns packets into text.
#[derive(Debug)]
pub struct Printer {
    style: Style,
    out: Vec<u8>,
    /// A packet whose tag was put back, or whose segments were joined.
    whole: Vec<u8>,
    dissection: Box<Dissection>,
    count: u64,
    first_ns: Option<u64>,
    previous_ns: u64,
    /// The quarter of an hour that the offset of the time zone is known for.
    zone: (u64, i32),
}

/// Lets `write!` append to a byte buffer, which cannot fail.
struct Text<'a>(&'a mut Vec<u8>);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// As [`Text`], inside a JSON string.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.0.extend([b'\\', byte]),
                0..0x20 => write!(Text(self.0), "\\u{byte:04x}")?,
                _ => self.0.push(byte),
            }
        }
        Ok(())
    }
}

impl Printer {
    /// With an empty buffer.
    pub fn new(style: Style) -> Self {
        Self {
            style,
            out: Vec::with_capacity(128 << 10),
            whole: Vec::new(),
            dissection: Box::new(Dissection::EMPTY),
            count: 0,
            first_ns: None,
            previous_ns: 0,
            zone: (u64::MAX, 0),
        }
    }

    /// Bytes of text that wait.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Writes the text that waits.
    ///
    /// # Errors
    /// The other side's; the text is then gone.
    pub fn flush(&mut self, to: &mut impl io::Write) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let result = to.write_all(&self.out).and_then(|()| to.flush());
        self.out.clear();
        result
    }

    /// Adds a packet to the text.
    pub fn packet(&mut self, packet: &Packet<'_>, context: &Context<'_>) {
        self.count += 1;
        let time_ns = packet.time_ns().unwrap_or(context.time_ns);
        let mut whole = std::mem::take(&mut self.whole);
        let bytes = whole_bytes(packet, context.link_type, &mut whole);
        let wire_len = packet.wire_len() + (bytes.len() as u32).saturating_sub(packet.cap_len());
        let link = LinkType(context.link_type);
        dissect(link, bytes, wire_len, &mut self.dissection);
        // Writing to the buffer cannot fail.
        let _ = if self.style.json {
            self.json(packet, bytes, time_ns, context)
        } else {
            self.line(bytes, time_ns, link, wire_len)
        };
        self.out.push(b'\n');
        if self.style.dump != Dump::None && !self.style.json {
            let start = match self.style.dump_link {
                true => 0,
                false => network_offset(&self.dissection).min(bytes.len()),
            };
            dump(&mut self.out, &bytes[start..], self.style.dump);
        }
        self.whole = whole;
        self.first_ns.get_or_insert(time_ns);
        self.previous_ns = time_ns;
    }

    fn line(&mut self, bytes: &[u8], time_ns: u64, link: LinkType, wire_len: u32) -> fmt::Result {
        if self.style.number {
            write!(Text(&mut self.out), "{:5}  ", self.count)?;
        }
        self.time(time_ns)?;
        let d = &*self.dissection;
        let out = &mut Text(&mut self.out);
        if self.style.link {
            link_header(out, link, bytes, wire_len)?;
        }
        if self.style.verbose && d.ip_version != 0 {
            write!(
                out,
                "(tos 0x{:x}, ttl {}, id {}, proto {}, length {}) ",
                d.traffic_class, d.ttl, d.fragment_id, d.ip_protocol, d.ip_total_len
            )?;
        }
        if self.style.quick && quick(out, d)? {
            return Ok(());
        }
        write!(
            out,
            "{}",
            Summary {
                dissection: d,
                bytes
            }
        )
    }

    fn time(&mut self, time_ns: u64) -> fmt::Result {
        let digits = if self.style.nanoseconds { 9 } else { 6 };
        let time = Timestamp(time_ns);
        let zone_s = match self.style.time {
            TimeStyle::Clock | TimeStyle::Date => self.zone_s(time.seconds()),
            _ => 0,
        };
        let since = |earlier: u64| Timestamp(time_ns.saturating_sub(earlier));
        let (first, previous) = (self.first_ns.unwrap_or(time_ns), self.previous_ns);
        let out = &mut Text(&mut self.out);
        match self.style.time {
            TimeStyle::None => Ok(()),
            TimeStyle::Clock => write!(out, "{} ", time.clock(digits, zone_s)),
            TimeStyle::Epoch => {
                let fraction = time.subsec_ns() / 10u32.pow(9 - u32::from(digits));
                let width = usize::from(digits);
                write!(out, "{}.{fraction:0width$} ", time.seconds())
            }
            TimeStyle::Delta if self.first_ns.is_none() => {
                write!(out, "{} ", Timestamp(0).clock(digits, 0))
            }
            TimeStyle::Delta => write!(out, "{} ", since(previous).clock(digits, 0)),
            TimeStyle::SinceFirst => write!(out, "{} ", since(first).clock(digits, 0)),
            TimeStyle::Date => {
                let local_s = time.seconds().saturating_add_signed(zone_s.into());
                let (year, month, day) = Timestamp::from_parts(local_s, 0).date();
                write!(
                    out,
                    "{year:04}-{month:02}-{day:02} {} ",
                    time.clock(digits, zone_s)
                )
            }
        }
    }

    /// The offset of the time zone, asked for once a quarter of an hour: zones change no oftener.
    fn zone_s(&mut self, time_s: u64) -> i32 {
        let quarter = time_s / 900;
        if self.zone.0 != quarter {
            self.zone = (quarter, sys::local_time::utc_offset_s(time_s));
        }
        self.zone.1
    }

    fn json(
        &mut self,
        packet: &Packet<'_>,
        bytes: &[u8],
        time_ns: u64,
        context: &Context<'_>,
    ) -> fmt::Result {
        let (d, out) = (&*self.dissection, &mut self.out);
        let (number, time) = (self.count, Timestamp(time_ns));
        write!(Text(out), "{{\"type\":\"packet\",\"number\":{number}")?;
        write!(Text(out), ",\"time\":\"{time}\",\"time_ns\":{time_ns}")?;
        write!(Text(out), ",\"interface\":\"")?;
        write!(Escaped(out), "{}", context.interface)?;
        let (cap_len, wire_len) = (d.cap_len, d.wire_len);
        write!(
            Text(out),
            "\",\"cap_len\":{cap_len},\"wire_len\":{wire_len}"
        )?;
        if context.has_way {
            write!(Text(out), ",\"outgoing\":{}", packet.is_outgoing())?;
        }
        if d.vlan_count != 0 {
            write!(Text(out), ",\"vlan\":{}", d.vlan_outer)?;
        }
        if let (Some(src), Some(dst)) = (d.src_addr(), d.dst_addr()) {
            write!(
                Text(out),
                ",\"src\":\"{src}\",\"dst\":\"{dst}\",\"ip_protocol\":{}",
                d.ip_protocol
            )?;
        }
        if d.has_ports() {
            let (src, dst) = (d.src_port, d.dst_port);
            write!(Text(out), ",\"src_port\":{src},\"dst_port\":{dst}")?;
        }
        write!(Text(out), ",\"summary\":\"")?;
        write!(
            Escaped(out),
            "{}",
            Summary {
                dissection: d,
                bytes
            }
        )?;
        write!(Text(out), "\"}}")
    }
}

/// A packet in one piece as it was on the wire.
fn whole_bytes<'b>(packet: &Packet<'b>, link_type: u16, whole: &'b mut Vec<u8>) -> &'b [u8] {
    let vlan = packet
        .vlan()
        .filter(|_| link_type == 1 && packet.cap_len() >= 12);
    if vlan.is_none() && packet.bytes().len() == packet.cap_len() as usize {
        return packet.bytes();
    }
    whole.clear();
    packet
        .segments()
        .for_each(|segment| whole.extend_from_slice(segment));
    if let Some(Vlan { tpid, tci }) = vlan {
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
        whole.splice(12..12, [a, b, c, d]);
    }
    whole
}

/// Where what the link header announces starts.
fn network_offset(d: &Dissection) -> usize {
    let is_link = |kind: LayerKind| {
        use LayerKind::{Ethernet, Null, Sll, Sll2, Vlan};
        matches!(kind, Ethernet | Vlan | Sll | Sll2 | Null)
    };
    match d.layers().find(|(kind, _)| !is_link(*kind)) {
        Some((_, offset)) => offset,
        None => d.payload_offset as usize,
    }
}

/// As `tcpdump -e`: the link header of Ethernet, only the length of others.
fn link_header(out: &mut Text<'_>, link: LinkType, bytes: &[u8], wire_len: u32) -> fmt::Result {
    if link == LinkType::ETHERNET
        && let Ok(ethernet) = Ethernet::parse(bytes)
    {
        let kind = ethernet.ether_type();
        write!(out, "{} > {}, ", ethernet.src(), ethernet.dst())?;
        match kind {
            0..=1535 => write!(out, "802.3, ")?,
            _ => write!(out, "ethertype {} (0x{kind:04x}), ", ether_type_name(kind))?,
        }
    }
    write!(out, "length {wire_len}: ")
}

fn ether_type_name(kind: u16) -> &'static str {
    match kind {
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x8035 => "Reverse ARP",
        0x86dd => "IPv6",
        0x8100 => "802.1Q",
        0x88a8 => "802.1Q-QinQ",
        0x8847 => "MPLS unicast",
        0x8863 => "PPPoE D",
        0x8864 => "PPPoE S",
        0x88cc => "LLDP",
        0x888e => "EAPOL",
        _ => "Unknown",
    }
}

/// As `tcpdump -q`; false where there is nothing shorter to say.
fn quick(out: &mut Text<'_>, d: &Dissection) -> Result<bool, fmt::Error> {
    let (Some(src), Some(dst), true) = (d.src_addr(), d.dst_addr(), d.has_ports()) else {
        return Ok(false);
    };
    let ip = if d.ip_version == 6 { "IP6" } else { "IP" };
    write!(out, "{ip} {src}.{} > {dst}.{}: ", d.src_port, d.dst_port)?;
    match d.ip_protocol {
        6 => write!(out, "tcp {}", d.payload_len)?,
        17 => write!(out, "UDP, length {}", d.payload_len)?,
        other => write!(out, "ip-proto-{other}, length {}", d.payload_len)?,
    }
    Ok(true)
}

/// Bytes below a line, in tcpdump's layout.
fn dump(out: &mut Vec<u8>, bytes: &[u8], how: Dump) {
    let visible = |byte: u8| if byte.is_ascii_graphic() { byte } else { b'.' };
    if how == Dump::Text {
        let keep = |&byte: &u8| match byte {
            b'\n' | b'\t' | b' ' => byte,
            byte => visible(byte),
        };
        out.extend(bytes.iter().map(keep));
        out.push(b'\n');
        return;
    }
    for (index, row) in bytes.chunks(16).enumerate() {
        let start = out.len();
        let _ = write!(Text(out), "\t0x{:04x}:  ", index * 16);
        for pair in row.chunks(2) {
            for byte in pair {
                let _ = write!(Text(out), "{byte:02x}");
            }
            out.push(b' ');
        }
        if out.last() == Some(&b' ') {
            out.pop();
        }
        if how == Dump::HexText {
            // Eight groups of four digits and a space between each.
            out.resize(start + 10 + 39 + 2, b' ');
            out.extend(row.iter().map(|&byte| visible(byte)));
        }
        out.push(b'\n');
    }
}
