//! What detection needs of a TCP segment, and the choice of connections whose handshakes are
//! followed.
//!
//! A sample of packets shows a SYN and misses its ACK. So in addition all SYNs and ACKs of one
//! connection in N are sampled, chosen by a hash of its source address and ports: the kernel's
//! filter and this process compute the same hash, and a random number makes it unpredictable.

use std::net::IpAddr;

use bpf::cbpf::Insn;

/// Ethernet packets up to this length are sampled because of their connection: ACKs of handshakes,
/// but not the segments of a transfer. SYNs of any length are.
pub(super) const SHORT_MAX: usize = 142;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// One direction of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// The source port, and the destination port in the lower half.
    pub(super) ports: u32,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) flow: Flow,
    /// Sequence number.
    pub(super) sequence: u32,
    /// Acknowledgment number.
    pub(super) acknowledged: u32,
    flags: u8,
}

impl Segment {
    /// The segment in an IP packet; `None` for other protocols, fragments and IPv6 extension
    /// headers.
    pub(super) fn of(ip: &[u8]) -> Option<Self> {
        let (at, source, destination) = match ip.first()? >> 4 {
            4 if *ip.get(9)? == 6 && ip[6] & 0x1f == 0 && ip[7] == 0 => {
                let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
                (usize::from(ip[0] & 0xf) * 4, address(12)?, address(16)?)
            }
            6 if *ip.get(6)? == 6 => {
                let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
                (40, address(8)?, address(24)?)
            }
            _ => return None,
        };
        Some(Segment {
            flow: Flow {
                source,
                destination,
                ports: u32::from_be_bytes(*ip.get(at..)?.first_chunk()?),
            },
            sequence: u32::from_be_bytes(*ip.get(at + 4..)?.first_chunk()?),
            acknowledged: u32::from_be_bytes(*ip.get(at + 8..)?.first_chunk()?),
            flags: *ip.get(at + 13)?,
        })
    }

    /// Changes the flags of the segment in an IP packet; `None` if there is none.
    pub(super) fn set_flags(ip: &mut [u8], flags: u8) -> Option<()> {
        Segment::of(ip)?;
        let at = match ip[0] >> 4 {
            4 => usize::from(ip[0] & 0xf) * 4,
            _ => 40,
        };
        *ip.get_mut(at + 13)? = flags;
        Some(())
    }

    /// Whether it opens a connection.
    pub(super) fn is_syn(&self) -> bool {
        self.flags & (FIN | SYN | RST | ACK) == SYN
    }

    /// Whether it acknowledges anything: after a SYN of the same flow, the handshake is complete.
    pub(super) fn has_ack(&self) -> bool {
        self.flags & (SYN | RST | ACK) == ACK
    }

    /// Whether no TCP sends these flags: SYN with FIN or RST, or neither SYN, RST nor ACK
    /// (RFC 9293, section 3.10.7).
    pub(super) fn is_impossible(&self) -> bool {
        let is_syn = self.flags & SYN != 0;
        match self.flags & (FIN | RST) != 0 {
            true if is_syn => true,
            _ => self.flags & (SYN | RST | ACK) == 0,
        }
    }
}

/// One connection in N.
#[derive(Clone, Copy, Debug)]
pub struct FlowChoice {
    one_in: u32,
    salt: u32,
}

/// Odd constants that spread the bits.
const SPREAD: [u32; 2] = [0x9e37_79b1, 0x85eb_ca6b];

impl FlowChoice {
    /// Chooses one connection in `one_in`; which ones depends on the random `salt`.
    pub fn new(one_in: u32, salt: u32) -> Self {
        FlowChoice {
            one_in: one_in.max(1),
            salt,
        }
    }

    /// One connection, and one other packet, in this number is sampled.
    pub(super) fn one_in(&self) -> u32 {
        self.one_in
    }

    /// Whether the SYNs and ACKs of this connection are sampled.
    pub(super) fn has(&self, flow: &Flow) -> bool {
        let low = match flow.source {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => address.to_bits() as u32,
        };
        let mixed = (low ^ self.salt).wrapping_mul(SPREAD[0]) ^ flow.ports;
        let mixed = mixed.wrapping_mul(SPREAD[1]);
        // Twice: a product's bits depend on lower ones only, and clients have even ports.
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(SPREAD[0]);
        (mixed >> 16).is_multiple_of(self.one_in)
    }

    /// Whether a packet of such a connection is among them, by its length in Ethernet.
    pub(super) fn has_packet(&self, segment: &Segment, len: usize) -> bool {
        (segment.flags & SYN != 0 || len <= SHORT_MAX) && self.has(&segment.flow)
    }

    /// The end of a classic BPF program on Ethernet packets that accepts these packets and no
    /// others.
    pub(super) fn program(&self) -> Vec<Insn> {
        const V6: usize = 10;
        const TCP: usize = 16;
        const HASH: usize = 20;
        const ACCEPT: usize = 34;
        const REFUSE: usize = 35;
        let mut insns: Vec<Insn> = Vec::new();
        // Jumps are given by the index of their target.
        let mut add = |code: u16, jt: usize, jf: usize, k: u32| {
            let next = insns.len() + 1;
            let skip = |target: usize| target.saturating_sub(next) as u8;
            insns.push(Insn::new(code, skip(jt), skip(jf), k));
        };
        // IPv4: ldh [12], jeq; protocol: ldb [23], jeq; fragment: ldh [20], jset; source: ld [26],
        // st M[0]; length of the header: ldx 4*([14]&0xf); ja.
        add(0x28, 0, 0, 12);
        add(0x15, 2, V6, 0x0800);
        add(0x30, 0, 0, 23);
        add(0x15, 4, REFUSE, 6);
        add(0x28, 0, 0, 20);
        add(0x45, REFUSE, 6, 0x1fff);
        add(0x20, 0, 0, 26);
        add(0x02, 0, 0, 0);
        add(0xb1, 0, 0, 14);
        add(0x05, 0, 0, (TCP - V6) as u32);
        // IPv6: jeq; next header: ldb [20], jeq; lower word of the source: ld [34], st M[0]; ldx.
        add(0x15, 11, REFUSE, 0x86dd);
        add(0x30, 0, 0, 20);
        add(0x15, 13, REFUSE, 6);
        add(0x20, 0, 0, 34);
        add(0x02, 0, 0, 0);
        add(0x01, 0, 0, 40);
        // A SYN: ldb [x+27], jset; or short: ld len, jgt.
        add(0x50, 0, 0, 14 + 13);
        add(0x45, HASH, 18, u32::from(SYN));
        add(0x80, 0, 0, 0);
        add(0x25, REFUSE, HASH, SHORT_MAX as u32);
        // The hash: ports ld [x+14], tax; ld M[0], xor, mul, xor x, mul; tax, rsh, xor x, mul; rsh,
        // mod, jeq.
        add(0x40, 0, 0, 14);
        add(0x07, 0, 0, 0);
        add(0x60, 0, 0, 0);
        add(0xa4, 0, 0, self.salt);
        add(0x24, 0, 0, SPREAD[0]);
        add(0xac, 0, 0, 0);
        add(0x24, 0, 0, SPREAD[1]);
        add(0x07, 0, 0, 0);
        add(0x74, 0, 0, 15);
        add(0xac, 0, 0, 0);
        add(0x24, 0, 0, SPREAD[0]);
        add(0x74, 0, 0, 16);
        add(0x94, 0, 0, self.one_in);
        add(0x15, ACCEPT, REFUSE, 0);
        add(0x06, 0, 0, u32::MAX);
        add(0x06, 0, 0, 0);
        insns
    }
}

#[cfg(test)]
mod tests {
    use bpf::cbpf::Program;
    use bpf::vm_cbpf;
    use traffic::Rng;

    use super::*;
    use crate::filter::derive::ip_packet;

    /// A TCP, UDP or damaged packet; addresses and ports from small ranges.
    fn packet(rng: &mut Rng) -> Vec<u8> {
        let mut below = |bound: u64| rng.up_to(u128::from(bound - 1)) as u8;
        let mut packet = vec![2; 12];
        if below(8) == 0 {
            packet.extend([0x81, 0, 0, 5]);
        }
        let protocol = if below(4) == 0 { 17 } else { 6 };
        if below(2) == 0 {
            let words = 5 + below(3);
            packet.extend([0x08, 0, 0x40 | words, 0, 0, 60, 1, 1]);
            packet.extend([0x40, u8::from(below(8) == 0), 64, protocol, 0, 0]);
            packet.extend([10, 0, below(4), below(250), 192, 0, 2, below(9)]);
            packet.extend(vec![0; usize::from(words - 5) * 4]);
        } else {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
            packet.extend([0x20; 15]);
            packet.push(below(250));
            packet.extend([0x20; 16]);
        }
        packet.extend([4, below(250), 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50]);
        packet.extend([below(64), 1, 1, 0, 0, 0, 0]);
        let rest = usize::from(below(120));
        packet.extend(vec![0; rest]);
        if below(5) == 0 {
            packet.truncate(usize::from(below(100)));
        }
        packet
    }

    #[test]
    fn the_kernels_filter_chooses_the_same_connections() {
        let mut rng = Rng::new(11);
        for one_in in [2, 3, 16] {
            let choice = FlowChoice::new(one_in, rng.next_u64() as u32);
            let program = Program::new(choice.program()).unwrap();
            let (mut chosen, mut syns) = (0, 0);
            for _ in 0..20_000 {
                let bytes = packet(&mut rng);
                let by_kernel = vm_cbpf::run(&program, &bytes, bytes.len() as u32) != 0;
                let ip = ip_packet(1, &bytes).filter(|(tags, _)| *tags == 0);
                let segment = ip.and_then(|(_, ip)| Segment::of(ip));
                let by_us = segment.is_some_and(|s| choice.has_packet(&s, bytes.len()));
                assert_eq!(by_kernel, by_us, "{bytes:02x?}");
                chosen += u32::from(by_us);
                syns += u32::from(segment.is_some_and(|s| s.is_syn() && by_us));
            }
            // About 11,000 are TCP without a tag.
            assert!(
                chosen > 5_000 / one_in && chosen < 15_000 / one_in,
                "{chosen}"
            );
            assert!(syns > 0);
        }
    }

    /// Linux gives even ports to connections.
    #[test]
    fn connections_of_one_client_are_chosen_too() {
        let mut rng = Rng::new(12);
        for one_in in [2, 4, 16] {
            for step in [1, 2, 4] {
                let choice = FlowChoice::new(one_in, rng.next_u64() as u32);
                let is_chosen = |number: &u32| {
                    choice.has(&Flow {
                        source: IpAddr::from([10, 99, 0, 1]),
                        destination: IpAddr::from([10, 99, 0, 2]),
                        ports: (32_768 + number * step) << 16 | 8_080,
                    })
                };
                let chosen = (0..4_000).filter(is_chosen).count() as u32;
                let expected = 4_000 / one_in;
                assert!(
                    chosen.abs_diff(expected) < expected / 3,
                    "1/{one_in}: {chosen}"
                );
            }
        }
    }

    #[test]
    fn flags_are_classified() {
        let of = |flags: u8| {
            let mut ip = vec![
                0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2,
            ];
            ip.extend([0; 13]);
            ip.extend([flags, 0, 0, 0, 0, 0, 0]);
            let segment = Segment::of(&ip).unwrap();
            (segment.is_syn(), segment.has_ack(), segment.is_impossible())
        };
        // SYN, SYN with ECN, SYN+ACK, ACK, data, FIN+ACK, RST, RST+ACK.
        for (flags, expected) in [
            (0x02, (true, false, false)),
            (0xc2, (true, false, false)),
            (0x12, (false, false, false)),
            (0x10, (false, true, false)),
            (0x18, (false, true, false)),
            (0x11, (false, true, false)),
            (0x04, (false, false, false)),
            (0x14, (false, false, false)),
        ] {
            assert_eq!(of(flags), expected, "{flags:#x}");
        }
        // None, FIN, SYN+FIN, SYN+RST, FIN+PSH+URG.
        for flags in [0x00, 0x01, 0x03, 0x06, 0x29, 0x08, 0x20] {
            assert!(of(flags).2, "{flags:#x}");
        }
    }
}
