//! Prints TCP on a line: flags, numbers and options as in tcpdump.

use core::fmt;

use super::SequenceBase;
use crate::tcp::{self, TcpOption};
use crate::{Dissection, be16};

/// Prints the captured part of the header; if its end is missing, " [|tcp]" follows.
pub(super) fn show_tcp(
    d: &Dissection,
    transport: &[u8],
    base: SequenceBase,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Some(head) = transport.first_chunk::<{ tcp::HEADER_LEN }>() else {
        return f.write_str(if d.has_ports() { " [|tcp]" } else { "[|tcp]" });
    };
    let starts = tcp::flag::SYN | tcp::flag::FIN | tcp::flag::RST;
    let seq = d.tcp_seq.wrapping_sub(base.seq);
    write!(f, "Flags [{}]", tcp::Flags(d.tcp_flags))?;
    if d.payload_len > 0 {
        let end = seq.wrapping_add(d.payload_len);
        write!(f, ", seq {seq}:{end}")?;
    } else if d.tcp_flags & starts != 0 {
        write!(f, ", seq {seq}")?;
    }
    if d.tcp_flags & tcp::flag::ACK != 0 {
        write!(f, ", ack {}", d.tcp_ack.wrapping_sub(base.ack))?;
    }
    write!(f, ", win {}", d.tcp_window)?;
    if d.tcp_flags & tcp::flag::URG != 0 {
        write!(f, ", urg {}", be16(head[18], head[19]))?;
    }
    let options_len = (usize::from(head[12] >> 4) * 4).saturating_sub(tcp::HEADER_LEN);
    if options_len > 0 {
        f.write_str(", options [")?;
        let options = tcp::captured_options(transport);
        if show_tcp_options(options, options_len, base.sack, f)? == Shown::Cut {
            return f.write_str(" [|tcp]");
        }
        f.write_str("]")?;
    }
    write!(f, ", length {}", d.payload_len)
}

/// How much of an item was printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    Cut,
}

/// Prints the captured part of options that have `len` bytes on the wire.
fn show_tcp_options(
    mut options: tcp::Options<'_>,
    len: usize,
    sack_base: u32,
    f: &mut fmt::Formatter<'_>,
) -> Result<Shown, fmt::Error> {
    let captured_len = options.rest().len();
    let mut comma = "";
    for option in options.by_ref() {
        f.write_str(comma)?;
        show_tcp_option(option, sack_base, f)?;
        comma = ",";
    }
    let rest = options.rest();
    let left = len.saturating_sub(captured_len - rest.len());
    match *rest {
        [] if left == 0 => return Ok(Shown::All),
        [0, ..] => write!(f, "{comma}eol")?,
        [] => {
            f.write_str(comma)?;
            return Ok(Shown::Cut);
        }
        [_] if left > 1 => {
            f.write_str(comma)?;
            return Ok(Shown::Cut);
        }
        [kind, option_len, ref data @ ..]
            if usize::from(option_len) > rest.len() && usize::from(option_len) <= left =>
        {
            f.write_str(comma)?;
            show_cut_option((kind, option_len), data, sack_base, f)?;
            return Ok(Shown::Cut);
        }
        _ => f.write_str(" [bad options]")?,
    }
    Ok(Shown::All)
}

fn show_tcp_option(
    option: TcpOption<'_>,
    sack_base: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match option {
        TcpOption::NoOperation => f.write_str("nop"),
        TcpOption::MaxSegmentSize(bytes) => write!(f, "mss {bytes}"),
        TcpOption::WindowScale(shift) => write!(f, "wscale {shift}"),
        TcpOption::SackPermitted => f.write_str("sackOK"),
        TcpOption::Timestamps(value, echo) => write!(f, "TS val {value} ecr {echo}"),
        TcpOption::Sack(blocks) => show_sack(blocks.len(), blocks, sack_base, f),
        TcpOption::Other(34, cookie) => show_cookie("tfo ", cookie, f),
        // The experimental option that preceded fast open (RFC 6994, magic number 0xf989).
        TcpOption::Other(254, [0xf9, 0x89, cookie @ ..]) => show_cookie("exp-tfo", cookie, f),
        TcpOption::Other(30, data) => {
            let kind = data.first().map_or("", |b| mptcp_name(b >> 4));
            write!(f, "mptcp {} {kind}", data.len() + 2)
        }
        TcpOption::Other(19, _) => f.write_str("md5"),
        TcpOption::Other(kind, data) => show_unknown_option(kind, !data.is_empty(), data, f),
    }
}

/// Prints an option whose data were truncated.
fn show_cut_option(
    (kind, len): (u8, u8),
    data: &[u8],
    sack_base: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match kind {
        2 => f.write_str("mss"),
        3 => f.write_str("wscale"),
        4 => f.write_str("sackOK"),
        5 => show_sack(usize::from(len - 2) / 8, data.as_chunks().0, sack_base, f),
        8 => f.write_str("TS"),
        19 => f.write_str("md5"),
        30 => f.write_str("mptcp"),
        34 => f.write_str("tfo"),
        254 => f.write_str("exp"),
        _ => show_unknown_option(kind, true, data, f),
    }
}

fn show_sack(
    count: usize,
    blocks: &[[u8; 8]],
    base: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "sack {count} ")?;
    for [a, b, c, d, e, g, h, i] in blocks {
        let left = u32::from_be_bytes([*a, *b, *c, *d]).wrapping_sub(base);
        let right = u32::from_be_bytes([*e, *g, *h, *i]).wrapping_sub(base);
        write!(f, "{{{left}:{right}}}")?;
    }
    Ok(())
}

fn show_unknown_option(
    kind: u8,
    has_data: bool,
    data: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "unknown-{kind}{}", if has_data { " 0x" } else { "" })?;
    data.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Prints a fast open cookie, or the request for one (RFC 7413 section 4.1).
fn show_cookie(name: &str, cookie: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if cookie.is_empty() {
        return write!(f, "{name} cookiereq");
    }
    write!(f, "{name} cookie ")?;
    cookie.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// The subtypes of multipath TCP (RFC 8684 section 3).
fn mptcp_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "capable",
        1 => "join",
        2 => "dss",
        3 => "add-addr",
        4 => "rem-addr",
        5 => "prio",
        6 => "fail",
        7 => "fast-close",
        _ => "unknown",
    }
}
