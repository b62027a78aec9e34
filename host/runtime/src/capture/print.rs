//! Packets as text: one line each in tcpdump's format, extended by its flags, or a JSON object.
//!
//! Lines are collected in a buffer that the owner empties; nothing is allocated per packet.

use std::fmt::{self, Write as _};
use std::io;

use port::Vlan;
use port::file::KernelProgress;
use wire::summary::{Detailed, SequenceBase, Summary};
use wire::{Dissection, LayerKind, LinkType, Timestamp, dissect, dissect_inner};

mod application;
mod columns;
mod connections;
mod cooked;
mod decode;
mod json;
mod link;

pub use columns::Columns;
use columns::Row;
use cooked::Interfaces;
use decode::Decoding;
use link::link_header;

use super::{Held, NO_TIME_NS};

/// Position of the VLAN tag: after the two addresses (IEEE 802.3 §3.1.1).
const TAG_AT: usize = 12;

/// Format of timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeStyle {
    /// Time of day in the local time zone.
    #[default]
    Clock,
    /// None.
    None,
    /// Seconds since 1970.
    Epoch,
    /// Time since the previous packet.
    Delta,
    /// Date and time of day.
    Date,
    /// Time since the first packet.
    SinceFirst,
}

/// Which bytes are printed below the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dump {
    /// None.
    #[default]
    None,
    /// Hexadecimal digits.
    Hex,
    /// Digits and text.
    HexText,
    /// Text.
    Text,
}

/// Format of printed packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Format of the timestamp.
    pub time: TimeStyle,
    /// Nanoseconds instead of microseconds.
    pub nanoseconds: bool,
    /// TCP sequence numbers as they are, not relative to the start of the connection.
    pub absolute: bool,
    /// Number the lines.
    pub number: bool,
    /// Lengths captured and on the wire.
    pub lengths: bool,
    /// Also the link header.
    pub link: bool,
    /// Only addresses, ports and lengths.
    pub quick: bool,
    /// Also fields of the IP header.
    pub verbose: bool,
    /// Bytes below the line.
    pub dump: Dump,
    /// Include the link header in them.
    pub dump_link: bool,
    /// A JSON object, in which the line is the summary.
    pub json: bool,
}

/// Metadata of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Link type.
    pub link_type: u16,
    /// Name of its interface.
    pub interface: &'a str,
    /// Whether its direction is known.
    pub has_way: bool,
}

/// Formats packets as text.
#[derive(Debug)]
pub struct Printer {
    style: Style,
    out: Vec<u8>,
    /// A packet with its VLAN tag inserted again.
    whole: Vec<u8>,
    dissection: Box<Dissection>,
    /// The first level with addresses, or else the packet's first level.
    addressed: Box<Dissection>,
    count: u64,
    /// The end of each buffered packet's text, and its captured bytes.
    ends: Vec<(usize, u32)>,
    handed: KernelProgress,
    first_ns: Option<u64>,
    /// Whether the current packet has a time.
    has_time: bool,
    previous_ns: u64,
    /// The quarter of an hour for which the time zone's offset is known, and the offset.
    zone: (u64, i32),
    /// Columns instead of lines.
    columns: Option<Columns>,
    /// Interface names for cooked packets.
    interfaces: Interfaces,
    /// Connections and decoders, created with the first packet that may need them.
    decoding: Option<Box<Decoding>>,
}

/// Maximum bytes of one write, unless a packet's text is longer (`PIPE_BUF`, pipe(7)).
const WRITE_LEN: usize = 4096;

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
        for letter in text.chars() {
            match letter {
                '"' | '\\' => self.0.extend([b'\\', letter as u8]),
                _ if inspect::is_unprintable(letter) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        write!(Text(self.0), "\\u{unit:04x}")?;
                    }
                }
                _ => self.0.extend(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Ok(())
    }
}

impl Printer {
    /// Creates a printer with an empty buffer.
    pub fn new(style: Style) -> Self {
        Self {
            style,
            out: Vec::with_capacity(128 << 10),
            whole: Vec::new(),
            dissection: Box::new(Dissection::EMPTY),
            addressed: Box::new(Dissection::EMPTY),
            count: 0,
            ends: Vec::new(),
            handed: KernelProgress::default(),
            first_ns: None,
            has_time: true,
            previous_ns: 0,
            zone: (u64::MAX, 0),
            columns: None,
            interfaces: Interfaces::default(),
            decoding: None,
        }
    }

    /// Prints these columns instead of lines, after a header line if requested.
    #[must_use]
    pub fn with_columns(mut self, columns: Columns, has_header: bool) -> Self {
        if has_header {
            self.out.extend(columns.header().bytes());
        }
        self.columns = Some(columns);
        self
    }

    /// Bytes of buffered text.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// What the kernel has accepted so far, readable while a flush is blocked.
    pub fn handed(&self) -> KernelProgress {
        self.handed.clone()
    }

    /// Writes the buffered text, in chunks of whole packets that a pipe accepts atomically if it
    /// has room.
    ///
    /// # Errors
    /// Errors of `to`; the text is then discarded.
    pub fn flush(&mut self, to: &mut impl io::Write) -> io::Result<()> {
        if self.ends.is_empty() && !self.out.is_empty() {
            // The header of columns without packets.
            let result = to.write_all(&self.out).and_then(|()| to.flush());
            self.out.clear();
            return result;
        }
        let (mut at, mut rest) = (0, self.ends.as_slice());
        let mut result = Ok(());
        while let (Some((first, _)), Ok(())) = (rest.first(), &result) {
            let len_max = (at + WRITE_LEN).max(*first);
            let count = rest.partition_point(|(end, _)| *end <= len_max);
            let (piece, behind) = rest.split_at(count);
            let end = piece.last().map_or(at, |(end, _)| *end);
            let text = &self.out[at..end];
            result = to.write_all(text).and_then(|()| to.flush());
            if result.is_ok() {
                let bytes = piece.iter().map(|(_, len)| u64::from(*len)).sum();
                self.handed.add(count as u64, bytes, text.len() as u64);
            }
            (at, rest) = (end, behind);
        }
        self.out.clear();
        self.ends.clear();
        result
    }

    /// Adds a packet to the text.
    pub fn packet(&mut self, packet: &Held<'_>, context: &Context<'_>) {
        self.count += 1;
        self.has_time = packet.time_ns != NO_TIME_NS;
        let time_ns = match self.has_time {
            true => packet.time_ns,
            false => self.previous_ns,
        };
        let mut whole = std::mem::take(&mut self.whole);
        let bytes = whole_bytes(packet, context.link_type, &mut whole);
        let tag_len = bytes.len().saturating_sub(packet.bytes.len()) as u32;
        let wire_len = packet.wire_len.saturating_add(tag_len);
        let link = LinkType(context.link_type);
        dissect(link, bytes, wire_len, &mut self.dissection);
        *self.addressed = find_addresses(bytes, &self.dissection);
        let base = self.look(bytes, time_ns);
        // Writing to the buffer cannot fail.
        let _ = if self.columns.is_some() {
            self.row(bytes, time_ns, wire_len, context.interface, base)
        } else if self.style.json {
            self.json(packet, bytes, time_ns, context, base)
        } else {
            self.line(bytes, time_ns, link, wire_len, base)
        };
        self.out.push(b'\n');
        if self.style.dump != Dump::None && !self.style.json {
            let start = match self.style.dump_link {
                true => 0,
                false => network_offset(&self.dissection).min(bytes.len()),
            };
            dump(&mut self.out, &bytes[start..], self.style.dump);
        }
        self.ends.push((self.out.len(), packet.cap_len));
        self.whole = whole;
        if self.has_time {
            self.first_ns.get_or_insert(time_ns);
            self.previous_ns = time_ns;
        }
    }

    /// Looks up the packet's connection, and runs the decoders, if the style needs them.
    fn look(&mut self, bytes: &[u8], time_ns: u64) -> SequenceBase {
        if self.style.quick && self.columns.is_none() || self.addressed.ip_version == 0 {
            self.decoding
                .iter_mut()
                .for_each(|decoding| decoding.clear());
            return SequenceBase::default();
        }
        let decoding = self
            .decoding
            .get_or_insert_with(|| Box::new(Decoding::new()));
        let base = decoding.packet(&self.dissection, bytes, time_ns);
        match self.style.absolute {
            true => SequenceBase::default(),
            false => base,
        }
    }

    /// Prints the packet in columns.
    fn row(
        &mut self,
        bytes: &[u8],
        time_ns: u64,
        wire_len: u32,
        interface: &str,
        base: SequenceBase,
    ) -> fmt::Result {
        let Some(columns) = &self.columns else {
            return Ok(());
        };
        let info = Detailed {
            summary: Summary {
                dissection: &self.dissection,
                bytes,
            },
            base,
            is_verbose: false,
        };
        let nothing = inspect::Application::EMPTY;
        let row = Row {
            first: &self.dissection,
            bytes,
            wire_len,
            number: self.count,
            has_time: self.has_time,
            time_ns,
            first_ns: self.first_ns.unwrap_or(time_ns),
            previous_ns: self.first_ns.map_or(time_ns, |_| self.previous_ns),
            interface,
            found: self
                .decoding
                .as_ref()
                .map_or(&nothing, |decoding| &decoding.found),
            info: &info,
        };
        columns.show(&mut Text(&mut self.out), &row)
    }

    fn line(
        &mut self,
        bytes: &[u8],
        time_ns: u64,
        link: LinkType,
        wire_len: u32,
        base: SequenceBase,
    ) -> fmt::Result {
        if self.style.number {
            write!(Text(&mut self.out), "{:5}  ", self.count)?;
        }
        if self.style.lengths {
            let cap_len = bytes.len();
            write!(Text(&mut self.out), "caplen {cap_len}, len {wire_len}, ")?;
        }
        self.time(time_ns)?;
        let mut out = std::mem::take(&mut self.out);
        let shown = self.describe(&mut Text(&mut out), bytes, link, wire_len, base);
        self.out = out;
        shown
    }

    /// Prints what a line has after the time: also the summary of a JSON object.
    fn describe(
        &mut self,
        out: &mut impl fmt::Write,
        bytes: &[u8],
        link: LinkType,
        wire_len: u32,
        base: SequenceBase,
    ) -> fmt::Result {
        let (d, addressed) = (&*self.dissection, &*self.addressed);
        if link == LinkType::LINUX_SLL2 {
            self.interfaces.show(bytes, out)?;
        }
        if self.style.link {
            link_header(out, link, bytes, wire_len)?;
        }
        if self.style.quick && quick(out, addressed)? {
            return Ok(());
        }
        let detailed = Detailed {
            summary: Summary {
                dissection: d,
                bytes,
            },
            base,
            is_verbose: self.style.verbose,
        };
        match self.style.link {
            true => write!(out, "{detailed:#}")?,
            false => write!(out, "{detailed}")?,
        }
        match &self.decoding {
            Some(decoding) => application::show(out, &decoding.found, self.style.verbose),
            None => Ok(()),
        }
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
        if !self.has_time && self.style.time != TimeStyle::None {
            return out.write_str("- ");
        }
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

    /// The time zone's offset, read every quarter of an hour: zones do not change more often.
    fn zone_s(&mut self, time_s: u64) -> i32 {
        let quarter = time_s / 900;
        if self.zone.0 != quarter {
            self.zone = (quarter, sys::local_time::utc_offset_s(time_s));
        }
        self.zone.1
    }
}

/// A packet as one slice, as it was on the wire.
fn whole_bytes<'b>(packet: &Held<'b>, link_type: u16, whole: &'b mut Vec<u8>) -> &'b [u8] {
    let vlan = packet
        .vlan
        .filter(|_| link_type == 1 && packet.bytes.len() >= TAG_AT);
    let Some(Vlan { tpid, tci }) = vlan else {
        return packet.bytes;
    };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    let (addresses, rest) = packet.bytes.split_at(TAG_AT);
    whole.clear();
    whole.extend_from_slice(addresses);
    whole.extend([a, b, c, d]);
    whole.extend_from_slice(rest);
    whole
}

/// The level whose addresses are printed: the first that has any, which for Ethernet over MPLS or
/// FabricPath is the second. This level also identifies the flow.
fn find_addresses(bytes: &[u8], first: &Dissection) -> Dissection {
    let (mut level, mut inner) = (*first, Dissection::EMPTY);
    while level.ip_version == 0 {
        if level.inner_is_quote || !dissect_inner(bytes, &level, &mut inner) {
            return *first;
        }
        level = inner;
    }
    level
}

/// Offset of the network header that the link header announces.
fn network_offset(d: &Dissection) -> usize {
    use LayerKind as Kind;
    let is_link = |kind: LayerKind| match kind {
        Kind::Ethernet | Kind::Vlan | Kind::Sll | Kind::Sll2 | Kind::Null => true,
        Kind::Radiotap | Kind::Prism | Kind::Ieee80211 | Kind::Ppi | Kind::Pktap => true,
        Kind::Nflog | Kind::Ipoib | Kind::Infiniband | Kind::FrameRelay | Kind::Arista => true,
        Kind::Llc => d.ip_version != 0,
        kind => kind.is_rare_link(),
    };
    match d.layers().find(|(kind, _)| !is_link(*kind)) {
        Some((_, offset)) => offset,
        None => d.payload_offset as usize,
    }
}

/// Prints as `tcpdump -q`; false if there is no shorter form.
fn quick(out: &mut impl fmt::Write, d: &Dissection) -> Result<bool, fmt::Error> {
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

/// Prints bytes below a line, in tcpdump's layout.
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
            // Eight groups of four digits, separated by spaces.
            out.resize(start + 10 + 39 + 2, b' ');
            out.extend(row.iter().map(|&byte| visible(byte)));
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests;
