//! Numbers and packets as text, as PF_RING's tools print them.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::header::LONG_LEN;

/// A number with `'` between groups of three digits, and two decimals if wanted.
pub fn number(value: f64, has_decimals: bool) -> String {
    if value.is_nan() {
        return value.to_string();
    }
    let sign = if value <= -1.0 { "-" } else { "" };
    let value = value.abs();
    let whole = value as u64;
    let mut digits = whole.to_string();
    let mut at = digits.len();
    while at > 3 {
        at -= 3;
        digits.insert(at, '\'');
    }
    match has_decimals {
        // Small numbers are rounded, others are cut.
        true if value < 1000.0 => format!("{sign}{value:.2}"),
        true => {
            let hundredths = ((value - whole as f64) * 100.0) as u64 % 100;
            format!("{sign}{digits}.{hundredths:02}")
        }
        false => format!("{sign}{digits}"),
    }
}

fn mac(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        47 => "GRE".into(),
        132 => "SCTP".into(),
        number => number.to_string(),
    }
}

/// A long header that was parsed.
struct Fields<'h>(&'h [u8; LONG_LEN]);

impl Fields<'_> {
    fn half(&self, at: usize) -> u16 {
        u16::from_ne_bytes([self.0[at], self.0[at + 1]])
    }

    fn word(&self, at: usize) -> u32 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|more| self.0[at + more]);
        u32::from_ne_bytes([a, b, c, d])
    }

    fn v6(&self, at: usize) -> Ipv6Addr {
        let bytes: [u8; 16] = std::array::from_fn(|more| self.0[at + more]);
        bytes.into()
    }

    /// Addresses, ports and what is above them.
    fn ip(&self, packet: &[u8]) -> String {
        const TCP: u8 = 6;
        let ends = match self.0[IP_VERSION] {
            4 => [SRC, DST].map(|at| Ipv4Addr::from(self.word(at)).to_string()),
            _ => [SRC, DST].map(|at| self.v6(at).to_string()),
        };
        let version = if self.0[IP_VERSION] == 4 { 4 } else { 6 };
        let [from, to] = ends;
        let (sport, dport) = (self.half(SRC_PORT), self.half(DST_PORT));
        let proto = protocol(self.0[PROTOCOL]);
        let mut text = format!("[IPv{version}][{from}:{sport} -> {to}:{dport}] [l3_proto={proto}]");
        let _ = write!(text, "[hash={}]", self.word(HASH));
        if self.0[PROTOCOL] == TCP {
            let at = usize::from(self.half(OFFSETS + 6)) + 4;
            let sequence = packet.get(at..).and_then(|rest| rest.first_chunk());
            let sequence = sequence.map_or(0, |bytes| u32::from_be_bytes(*bytes));
            let _ = write!(text, "[tos={}][tcp_seq_num={sequence}]", self.0[TOS]);
        }
        text
    }
}

/// Positions in the header.
const CAP_LEN: usize = 16;
const LEN: usize = 20;
const HASH: usize = 44;
const DST_MAC: usize = 68;
const SRC_MAC: usize = 74;
const ETHER_TYPE: usize = 80;
const VLAN: usize = 82;
const INNER_VLAN: usize = 84;
const IP_VERSION: usize = 86;
const PROTOCOL: usize = 87;
const TOS: usize = 88;
const SRC: usize = 89;
const DST: usize = 105;
const SRC_PORT: usize = 121;
const DST_PORT: usize = 123;
const OFFSETS: usize = LONG_LEN - 10;

/// A packet by its parsed header: stations, VLANs, addresses and ports or the EtherType, lengths
/// and offsets.
pub fn packet(header: &[u8; LONG_LEN], packet: &[u8]) -> String {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;
    const ARP: u16 = 0x0806;
    const STP: u16 = 0x0027;
    let it = Fields(header);
    let (from, to) = (&header[SRC_MAC..SRC_MAC + 6], &header[DST_MAC..DST_MAC + 6]);
    let mut text = format!("[{} -> {}] ", mac(from), mac(to));
    if it.half(OFFSETS + 2) != 0 {
        let _ = write!(text, "[vlan {}] ", it.half(VLAN));
        if it.half(INNER_VLAN) != 0 {
            let _ = write!(text, "[QinQ-vlan {}] ", it.half(INNER_VLAN));
        }
    }
    let network = usize::from(it.half(OFFSETS + 4));
    match it.half(ETHER_TYPE) {
        IPV4 | IPV6 => text += &it.ip(packet),
        ARP => {
            text += "[ARP]";
            // Its offset is only set for IP.
            let start = if network == 0 { 14 } else { network };
            let body = packet
                .get(start..)
                .and_then(|rest| rest.first_chunk::<28>());
            for (name, at) in [("Sender", 8), ("Target", 18)] {
                let Some(body) = body else { continue };
                let address = Ipv4Addr::new(body[at + 6], body[at + 7], body[at + 8], body[at + 9]);
                let _ = write!(text, "[{name}={}/{address}]", mac(&body[at..at + 6]));
            }
        }
        STP => text += "[STP]",
        other => {
            let _ = write!(text, "[eth_type=0x{other:04X}]");
        }
    }
    let offset = |at: usize| it.half(OFFSETS + 2 * at).cast_signed();
    let _ = write!(
        text,
        " [caplen={}][len={}][eth_offset={}][l3_offset={}][l4_offset={}][payload_offset={}]",
        it.word(CAP_LEN),
        it.word(LEN),
        offset(0),
        offset(2),
        offset(3),
        offset(4),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Parsed;

    #[test]
    fn numbers_have_groups_of_three_digits() {
        let cases = [
            (0.0, "0", "0.00"),
            (7.256, "7", "7.26"),
            (999.0, "999", "999.00"),
            (1000.0, "1'000", "1'000.00"),
            (123_456.789, "123'456", "123'456.78"),
            (1_000_000.5, "1'000'000", "1'000'000.50"),
            (9_876_543_210.25, "9'876'543'210", "9'876'543'210.25"),
            (1e12, "1'000'000'000'000", "1'000'000'000'000.00"),
            (-1234.5, "-1'234", "-1'234.50"),
        ];
        for (value, plain, decimals) in cases {
            assert_eq!(number(value, false), plain);
            assert_eq!(number(value, true), decimals);
        }
        number(f64::NAN, true);
        number(f64::INFINITY, true);
    }

    /// The text of a packet of these bytes.
    fn print(bytes: &[u8]) -> String {
        let mut header = [0; LONG_LEN];
        header[CAP_LEN..CAP_LEN + 4].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        header[LEN..LEN + 4].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        Parsed::new(1, bytes, bytes.len() as u32, 4).write(&mut header);
        packet(&header, bytes)
    }

    #[test]
    fn packets_have_addresses_and_ports() {
        let mut tcp = vec![0; 60];
        tcp[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xab, 2, 0, 0, 0, 0, 2]);
        tcp[12..24].copy_from_slice(&[8, 0, 0x45, 4, 0, 46, 0, 0, 0, 0, 64, 6]);
        tcp[26..34].copy_from_slice(&[192, 0, 2, 1, 198, 51, 100, 2]);
        tcp[34..42].copy_from_slice(&[0, 80, 0x30, 0x39, 1, 2, 3, 4]);
        tcp[46] = 0x50;
        assert_eq!(
            print(&tcp),
            "[02:00:00:00:00:02 -> 02:00:00:00:00:AB] [IPv4][192.0.2.1:80 -> 198.51.100.2:12345] \
             [l3_proto=TCP][hash=0][tos=4][tcp_seq_num=16909060] \
             [caplen=60][len=60][eth_offset=0][l3_offset=14][l4_offset=34][payload_offset=54]"
        );
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        arp[22..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 10, 0, 0, 1]);
        arp[38..42].copy_from_slice(&[10, 0, 0, 2]);
        let text = print(&arp);
        assert!(
            text.contains(
                "[ARP][Sender=01:02:03:04:05:06/10.0.0.1][Target=00:00:00:00:00:00/10.0.0.2]"
            ),
            "{text}"
        );
        let mut other = vec![0; 60];
        other[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert!(print(&other).contains("[eth_type=0x88CC]"));
        // Tagged IPv6.
        let mut tagged = vec![0; 80];
        tagged[12..18].copy_from_slice(&[0x81, 0, 0, 5, 0x86, 0xdd]);
        tagged[18..25].copy_from_slice(&[0x60, 0, 0, 0, 0, 22, 17]);
        (tagged[41], tagged[57]) = (1, 2);
        let text = print(&tagged);
        assert!(
            text.contains("[vlan 5] [IPv6][::1:0 -> ::2:0] [l3_proto=UDP]"),
            "{text}"
        );
        for len in 0..tagged.len() {
            print(&tagged[..len]);
        }
    }
}
