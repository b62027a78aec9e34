//! Prints ICMP on a line, with the packet that an error quotes.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use super::show_protocol;
use crate::{Dissection, dissect_inner, icmpv4, icmpv6};

/// The packet that an ICMP error quotes.
fn quoted(d: &Dissection, packet: &[u8]) -> Option<Dissection> {
    let mut quote = Dissection::EMPTY;
    let found = d.inner_is_quote && dissect_inner(packet, d, &mut quote);
    (found && quote.ip_version != 0).then_some(quote)
}

pub(super) fn show_icmpv4(
    d: &Dissection,
    transport: &[u8],
    packet: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Ok(view) = icmpv4::Icmpv4::parse(transport) else {
        return Ok(());
    };
    let len = d.payload_len as usize + icmpv4::HEADER_LEN;
    let Some(quote) = quoted(d, packet) else {
        return match view.icmp_type() {
            icmpv4::kind::ECHO_REQUEST | icmpv4::kind::ECHO_REPLY => {
                let what = if view.icmp_type() == 0 {
                    "reply"
                } else {
                    "request"
                };
                write!(
                    f,
                    "ICMP echo {what}, id {}, seq {}, length {len}",
                    view.id(),
                    view.seq()
                )
            }
            kind => write!(f, "ICMP type {kind}, code {}, length {len}", view.code()),
        };
    };
    let dst = quote
        .dst_addr()
        .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    f.write_str("ICMP ")?;
    match (view.icmp_type(), view.code()) {
        (icmpv4::kind::UNREACHABLE, 0) => write!(f, "net {dst} unreachable")?,
        (icmpv4::kind::UNREACHABLE, 1) => write!(f, "host {dst} unreachable")?,
        (icmpv4::kind::UNREACHABLE, 2) => {
            write!(f, "{dst} protocol {} unreachable", quote.ip_protocol)?;
        }
        (icmpv4::kind::UNREACHABLE, 3) => {
            write!(f, "{dst} ")?;
            show_protocol(quote.ip_protocol, 4, f)?;
            write!(f, " port {} unreachable", quote.dst_port)?;
        }
        (icmpv4::kind::UNREACHABLE, 4) => {
            write!(f, "{dst} unreachable - need to frag (mtu {})", view.seq())?;
        }
        (icmpv4::kind::UNREACHABLE, code) => write!(f, "{dst} unreachable - code {code}")?,
        (icmpv4::kind::TIME_EXCEEDED, 0) => f.write_str("time exceeded in-transit")?,
        (icmpv4::kind::TIME_EXCEEDED, _) => f.write_str("ip reassembly time exceeded")?,
        (icmpv4::kind::REDIRECT, _) => {
            let [a, b, c, e] = (u32::from(view.id()) << 16 | u32::from(view.seq())).to_be_bytes();
            write!(f, "redirect {dst} to {a}.{b}.{c}.{e}")?;
        }
        (kind, code) => write!(f, "type {kind}, code {code}, about {dst}")?,
    }
    write!(f, ", length {len}")
}

pub(super) fn show_icmpv6(
    d: &Dissection,
    transport: &[u8],
    packet: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    use icmpv6::kind;
    let len = transport.len();
    f.write_str("ICMP6, ")?;
    let Ok(view) = icmpv6::Icmpv6::parse(transport) else {
        return write!(
            f,
            "type {}, code {}, length {len}",
            d.icmp_type, d.icmp_code
        );
    };
    let len = d.payload_len as usize + icmpv6::HEADER_LEN;
    let target = view
        .payload
        .first_chunk::<16>()
        .map(|bytes| Ipv6Addr::from(*bytes));
    match (view.icmp_type(), target, quoted(d, packet)) {
        (kind::ECHO_REQUEST, ..) => {
            write!(f, "echo request, id {}, seq {}", view.id(), view.seq())?
        }
        (kind::ECHO_REPLY, ..) => write!(f, "echo reply, id {}, seq {}", view.id(), view.seq())?,
        (kind::ROUTER_SOLICITATION, ..) => f.write_str("router solicitation")?,
        (kind::ROUTER_ADVERTISEMENT, ..) => f.write_str("router advertisement")?,
        (kind::NEIGHBOR_SOLICITATION, Some(target), _) => {
            write!(f, "neighbor solicitation, who has {target}")?;
        }
        (kind::NEIGHBOR_ADVERTISEMENT, Some(target), _) => {
            write!(f, "neighbor advertisement, tgt is {target}")?;
        }
        (kind::UNREACHABLE, _, Some(quote)) => {
            let dst = quote
                .dst_addr()
                .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
            match view.code() {
                4 => {
                    write!(f, "destination unreachable, {dst} ")?;
                    show_protocol(quote.ip_protocol, 6, f)?;
                    write!(f, " port {}", quote.dst_port)?;
                }
                code => write!(f, "destination unreachable, {dst}, code {code}")?,
            }
        }
        (kind::TOO_BIG, ..) => {
            write!(
                f,
                "packet too big, mtu {}",
                u32::from(view.id()) << 16 | u32::from(view.seq())
            )?;
        }
        (kind::TIME_EXCEEDED, ..) => f.write_str("time exceeded")?,
        (kind::PARAMETER_PROBLEM, ..) => write!(f, "parameter problem, code {}", view.code())?,
        (143, ..) => f.write_str("multicast listener report v2")?,
        (130..=132, ..) => f.write_str("multicast listener message")?,
        (other, ..) => write!(f, "type {other}, code {}", view.code())?,
    }
    write!(f, ", length {len}")
}
