//! A packet as a JSON object: `summary` is the packet's line after the time, by the same function,
//! and `application` has the decoded fields, as in the objects of flows.

use std::fmt::{self, Write as _};

use wire::summary::SequenceBase;
use wire::{Dissection, LayerKind, LinkType, Timestamp, tcp, vlan};

use super::decode::Decoding;
use super::{Context, Escaped, Held, Printer, Text};

impl Printer {
    /// Prints the packet as an object, without a line feed.
    pub(super) fn json(
        &mut self,
        packet: &Held<'_>,
        bytes: &[u8],
        time_ns: u64,
        context: &Context<'_>,
        base: SequenceBase,
    ) -> fmt::Result {
        let mut out = std::mem::take(&mut self.out);
        let shown = self.object(&mut out, packet, bytes, time_ns, context, base);
        self.out = out;
        shown
    }

    fn object(
        &mut self,
        out: &mut Vec<u8>,
        packet: &Held<'_>,
        bytes: &[u8],
        time_ns: u64,
        context: &Context<'_>,
        base: SequenceBase,
    ) -> fmt::Result {
        let (number, time) = (self.count, Timestamp(time_ns));
        write!(Text(out), "{{\"type\":\"packet\",\"number\":{number}")?;
        if self.has_time {
            write!(Text(out), ",\"time\":\"{time}\",\"time_ns\":{time_ns}")?;
        }
        if !context.interface.is_empty() {
            write!(Text(out), ",\"interface\":\"")?;
            write!(Escaped(out), "{}", context.interface)?;
            out.push(b'"');
        }
        let (cap_len, wire_len) = (self.dissection.cap_len, self.dissection.wire_len);
        write!(Text(out), ",\"cap_len\":{cap_len},\"wire_len\":{wire_len}")?;
        if let Some(outgoing) = packet.outgoing {
            write!(Text(out), ",\"outgoing\":{outgoing}")?;
        }
        let (tags, count) = vlan::tags(bytes, &self.dissection);
        for (name, tag) in ["vlan", "vlan_inner"].iter().zip(&tags[..count]) {
            write!(Text(out), ",\"{name}\":{tag}")?;
        }
        ends(out, &self.addressed)?;
        if let Some(decoding) = &self.decoding {
            sequence(out, decoding, base)?;
            let end = out.len();
            out.extend(b",\"application\":");
            if !inspect::json(&decoding.found, None, out) {
                out.truncate(end);
            }
        }
        write!(Text(out), ",\"summary\":\"")?;
        let link = LinkType(context.link_type);
        self.describe(&mut Escaped(out), bytes, link, wire_len, base)?;
        write!(Text(out), "\"}}")
    }
}

/// Addresses, protocol and ports, or the type of an ICMP message.
fn ends(out: &mut Vec<u8>, d: &Dissection) -> fmt::Result {
    let (Some(src), Some(dst)) = (d.src_addr(), d.dst_addr()) else {
        return Ok(());
    };
    let protocol = d.ip_protocol;
    write!(
        Text(out),
        ",\"src\":\"{src}\",\"dst\":\"{dst}\",\"ip_protocol\":{protocol}"
    )?;
    if d.has_ports() {
        let (src, dst) = (d.src_port, d.dst_port);
        write!(Text(out), ",\"src_port\":{src},\"dst_port\":{dst}")?;
    }
    if d.icmp_type_read && (d.has(LayerKind::Icmpv4) || d.has(LayerKind::Icmpv6)) {
        let (kind, code) = (d.icmp_type, d.icmp_code);
        write!(Text(out), ",\"icmp_type\":{kind},\"icmp_code\":{code}")?;
    }
    Ok(())
}

/// The flags and numbers of the packet's first TCP header, and the numbers of its line if they are
/// relative.
fn sequence(out: &mut Vec<u8>, decoding: &Decoding, base: SequenceBase) -> fmt::Result {
    let Some(head) = decoding.tcp else {
        return Ok(());
    };
    let (flags, seq, ack) = (head.flags, head.seq, head.ack);
    let has_ack = flags & tcp::flag::ACK != 0;
    write!(Text(out), ",\"tcp_flags\":{flags},\"tcp_seq\":{seq}")?;
    if has_ack {
        write!(Text(out), ",\"tcp_ack\":{ack}")?;
    }
    if base.seq == 0 && base.ack == 0 {
        return Ok(());
    }
    let (seq, ack) = (seq.wrapping_sub(base.seq), ack.wrapping_sub(base.ack));
    write!(Text(out), ",\"tcp_seq_relative\":{seq}")?;
    match has_ack {
        true => write!(Text(out), ",\"tcp_ack_relative\":{ack}"),
        false => Ok(()),
    }
}
