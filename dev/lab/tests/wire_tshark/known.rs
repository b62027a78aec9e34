//! Differences between tshark 4.0.17 and barewire, and their reasons. All of them were examined.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use lab::corpus::Corpus;

/// A field of a packet that differs.
pub struct Difference {
    pub file: usize,
    pub number: usize,
    pub field: &'static str,
    pub ours: String,
    pub theirs: String,
}

/// Packets of a file with the same differences.
struct Known {
    /// The end of the file's name.
    file: &'static str,
    /// Number of packets of the file that differ in these fields.
    packets: usize,
    /// The fields that differ, all of them; `ipv6.*` stands for any of that protocol.
    fields: &'static str,
    why: &'static str,
}

const NIBBLE: &str = "\
    Ethernet type or HDLC says IPv4, the version nibble 6: tshark follows the nibble, we say \
    BadVersion, as hosts drop it";
const FABRIC: &str = "\
    tshark takes the outer addresses for FabricPath ids, and the last four bytes for a frame \
    check sequence that is not there, which cuts the inner packet";
const HEADER_CUT: &str = "\
    a header cut short: tshark shows the fields up to the cut, we take none of IP, and of TCP \
    those that are whole; it reads further ahead than it shows";
const BOUND: &str = "\
    deeper than our bound (MAX_LAYERS, MAX_TUNNEL_DEPTH): we stop with TooDeep";
const AYIYA: &str = "\
    AYIYA is not in our table; its last broker closed in 2017";
const CAPWAP: &str = "\
    CAPWAP is not in our table, and its 802.11 headers are not those of the air";
const UDP_TRAILER: &str = "\
    bytes behind the UDP length: tshark names the payload right in words, but prints it with \
    the bytes behind; RFC 768 has the length decide";
const IN_NULL: &str = "\
    a Cisco HDLC header where the address family should be; tshark finds the 0x0800 in it";
const IPCOMP: &str = "\
    tshark inflates IPComp; compressed payload is not in our table";
const HOP_BY_HOP: &str = "\
    hop-by-hop options behind IPv4: tshark reads them and complains, we say \
    UnsupportedProtocol";
const SHORT_TCP: &str = "\
    a TCP header length below 20: tshark shows no field behind it, we give them and say \
    BadHeaderLength";
const SECURITY_OPTION: &str = "\
    tshark gives up at a security option without data; the header's length is right, and we go \
    on";
const BIG_TCP: &str = "\
    lengths of 0 in IPv6 and UDP because the packet is larger than they can say: tshark reads \
    no further, we take the rest of the packet, as tcpdump does";
const NO_LENGTH: &str = "\
    payload length 0 without jumbo option: tshark reads no further, we take the rest of the \
    packet, as for BIG TCP";
const PBB: &str = "\
    tshark has fields of its own for the inner addresses of 802.1ah";
const OPTIONS_CUT: &str = "\
    cut within the TCP options: tshark gives the length all the same; we give a payload length \
    only with a whole header";
const OLD_MOBILITY: &str = "\
    tshark takes next header 62 for mobility, as drafts had it; IANA gives it to CFTP";
const SHORT_ICMP: &str = "\
    an ICMP message of two bytes: tshark shows none of it, we give type and code";
const FRAME_RELAY_CONTROL: &str = "\
    Frame Relay with the control field of a numbered frame: tshark looks for a protocol number \
    behind it, we take no such frame apart";
const BAD_RADIOTAP: &str = "\
    a radiotap version other than 0: tshark reads on, we say BadVersion";
const BAD_IP: &str = "\
    a header that contradicts itself: tshark shows what is before the error, we take nothing";

const KNOWN: &[Known] = &[
    known(
        "PcapPlusPlus__null_loopback.pcap",
        1,
        "ip.* udp.srcport udp.dstport udp.length udp.payload",
        IN_NULL,
    ),
    known("libpcap__AH-IPcomp-IPv6.pcap", 7, "ipv6.* tcp.*", IPCOMP),
    known(
        "libpcap__ipv6_ext_headers.pcap",
        1,
        "ipv6.* udp.srcport udp.dstport udp.length udp.payload",
        BOUND,
    ),
    known(
        "nDPI__capwap.pcap",
        1,
        "arp.opcode arp.src.proto_ipv4 arp.dst.proto_ipv4 wlan.*",
        CAPWAP,
    ),
    known("nDPI__capwap.pcap", 1, "ip.* igmp.type wlan.*", CAPWAP),
    known("nDPI__capwap.pcap", 161, "wlan.*", CAPWAP),
    known(
        "nDPI__capwap.pcap",
        5,
        "ip.* udp.srcport udp.dstport udp.length udp.payload wlan.*",
        CAPWAP,
    ),
    known(
        "nDPI__capwap.pcap",
        5,
        "ipv6.* icmpv6.type icmpv6.code wlan.*",
        CAPWAP,
    ),
    known("nDPI__fuzz-2006-06-26-2594.pcap", 1, "ipv6.*", NIBBLE),
    known(
        "nDPI__fuzz-2006-06-26-2594.pcap",
        1,
        "tcp.seq_raw tcp.ack_raw",
        HEADER_CUT,
    ),
    known(
        "nDPI__fuzz-2006-06-26-2594.pcap",
        7,
        "udp.payload",
        UDP_TRAILER,
    ),
    known(
        "nDPI__fuzz-2020-02-16-11740.pcap",
        1,
        "ipv6.hopopts.nxt",
        HOP_BY_HOP,
    ),
    known("nDPI__fuzz-2020-02-16-11740.pcap", 1, "ipv6.*", NIBBLE),
    known(
        "nDPI__ip_fragmented_garbage.pcap",
        2,
        "tcp.ack_raw tcp.flags tcp.window_size_value",
        SHORT_TCP,
    ),
    known(
        "peafowl__L3__truncated_ip.pcap",
        1,
        "ip.len ip.dsfield",
        BAD_IP,
    ),
    known(
        "peafowl__ip_fragmentation__4in4_outer.pcap",
        10,
        "ip.len ip.id ip.dsfield ip.frag_offset",
        HEADER_CUT,
    ),
    known(
        "peafowl__tcp_resegment__http_ip_fragmented_out_of_order.pcap",
        11,
        "tcp.seq_raw",
        HEADER_CUT,
    ),
    known(
        "suricata-verify__bug-7414-decoder-event-01__ip_secopt.pcap",
        1,
        "udp.srcport udp.dstport udp.length udp.payload",
        SECURITY_OPTION,
    ),
    known(
        "suricata-verify__decode-too-many-layers__input.pcap",
        1,
        "eth.src eth.dst mpls.label",
        BOUND,
    ),
    known(
        "frag-eth-vlan-ip-tcp-syn.pcap",
        1,
        "tcp.seq_raw",
        HEADER_CUT,
    ),
    known("frag-ppp-ip-tcp-syn.pcap", 1, "tcp.seq_raw", HEADER_CUT),
    known(
        "suricata-verify__udp-5379__udp-trailing-data__input.pcap",
        1,
        "udp.payload",
        UDP_TRAILER,
    ),
    known(
        "tcpdump__bad-ipv4-version-pgm-heapoverflow.pcap",
        1,
        "ipv6.*",
        NIBBLE,
    ),
    known(
        "tcpdump__bigtcp-ipv6-vxlan-ipv6.pcap",
        1,
        "eth.src eth.dst ipv6.* tcp.* udp.srcport udp.dstport udp.length udp.payload vxlan.vni",
        BIG_TCP,
    ),
    known(
        "tcpdump__ipv4_invalid_total_length_2.pcap",
        1,
        "ip.len ip.dsfield",
        BAD_IP,
    ),
    known(
        "tcpdump__ipv6_frag6_negative_len.pcap",
        1,
        "ipv6.fraghdr.nxt ipv6.fraghdr.offset ipv6.fraghdr.ident",
        NO_LENGTH,
    ),
    known(
        "tcpdump__esis_snpa_asan-2.pcap",
        1,
        "fr.nlpid",
        FRAME_RELAY_CONTROL,
    ),
    known(
        "tcpdump__esis_snpa_asan-5.pcap",
        2,
        "fr.nlpid",
        FRAME_RELAY_CONTROL,
    ),
    known(
        "tcpdump__icmp-icmp_print-oobr-2.pcap",
        1,
        "icmp.type icmp.code",
        SHORT_ICMP,
    ),
    known(
        "tcpdump__radiotap-heapoverflow.pcap",
        1,
        "radiotap.length",
        BAD_RADIOTAP,
    ),
    known("tcpdump__kday1.pcap", 1, "ipv6.*", NIBBLE),
    known(
        "tcpdump__mobility_opt_asan.pcap",
        2,
        "mip6.proto",
        OLD_MOBILITY,
    ),
    known(
        "tcpdump__mobility_opt_asan_2.pcap",
        1,
        "mip6.proto",
        OLD_MOBILITY,
    ),
    known(
        "tcpdump__mobility_opt_asan_6.pcap",
        2,
        "mip6.proto",
        OLD_MOBILITY,
    ),
    known(
        "tcpdump__mobility_opt_asan_7.pcap",
        2,
        "mip6.proto",
        OLD_MOBILITY,
    ),
    known(
        "tcpdump__mobility_opt_asan_8.pcap",
        1,
        "mip6.proto",
        OLD_MOBILITY,
    ),
    known(
        "tcpreplay__test.rewrite_dltuser",
        10,
        "ipv6.* tcp.*",
        NIBBLE,
    ),
    known(
        "zeek__cisco-fabric-path.pcap",
        17,
        "eth.src eth.dst",
        FABRIC,
    ),
    known(
        "zeek__cisco-fabric-path.pcap",
        8,
        "eth.src eth.dst ipv6.dst",
        FABRIC,
    ),
    known(
        "zeek__cisco-fabric-path.pcap",
        16,
        "eth.src eth.dst sctp.srcport sctp.dstport",
        FABRIC,
    ),
    known(
        "zeek__cisco-fabric-path.pcap",
        16,
        "eth.src eth.dst tcp.len",
        FABRIC,
    ),
    known(
        "zeek__cisco-fabric-path.pcap",
        8,
        "eth.src eth.dst udp.length",
        FABRIC,
    ),
    known(
        "zeek__ipv4__fragmented-1.pcap",
        1,
        "udp.payload",
        UDP_TRAILER,
    ),
    known("zeek__pbb.pcap", 12, "eth.src eth.dst", PBB),
    known(
        "zeek__tcp__truncated-header.pcap",
        1,
        "tcp.len",
        OPTIONS_CUT,
    ),
    known(
        "zeek__trunc__ip4-trunc.pcap",
        1,
        "ip.len ip.id ip.dsfield",
        HEADER_CUT,
    ),
    known(
        "zeek__trunc__mpls-6in6-6in6-4in6-trunc.pcap",
        1,
        "ip.len ip.dsfield",
        HEADER_CUT,
    ),
    known(
        "zeek__tunnels__ayiya3.pcap",
        11,
        "ipv6.* icmpv6.type icmpv6.code",
        AYIYA,
    ),
    known("zeek__tunnels__ayiya3.pcap", 21, "ipv6.* tcp.*", AYIYA),
];

/// A row, in one line.
const fn known(
    file: &'static str,
    packets: usize,
    fields: &'static str,
    why: &'static str,
) -> Known {
    Known {
        file,
        packets,
        fields,
        why,
    }
}

impl Known {
    /// Whether this row covers a packet of that file which differs in these fields.
    fn covers(&self, file: &str, fields: &[&str]) -> bool {
        file.ends_with(self.file)
            && fields
                .iter()
                .all(|f| self.fields.split(' ').any(|known| is_named(known, f)))
            && self
                .fields
                .split(' ')
                .all(|known| fields.iter().any(|f| is_named(known, f)))
    }
}

fn is_named(known: &str, field: &str) -> bool {
    match known.strip_suffix('*') {
        Some(prefix) => field.starts_with(prefix),
        None => known == field,
    }
}

/// Checks that every difference is known, and every known one occurs.
pub fn judge(corpus: &Corpus, differences: &[Difference]) -> Result<()> {
    let mut packets: BTreeMap<(usize, usize), Vec<&Difference>> = BTreeMap::new();
    for difference in differences {
        packets
            .entry((difference.file, difference.number))
            .or_default()
            .push(difference);
    }
    let mut seen = vec![0; KNOWN.len()];
    let (mut report, mut unknown) = (String::new(), 0);
    for ((file, number), list) in packets {
        let name = corpus.files[file]
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let fields: Vec<&str> = list.iter().map(|d| d.field).collect();
        if let Some(index) = KNOWN.iter().position(|known| known.covers(&name, &fields)) {
            seen[index] += 1;
            continue;
        }
        unknown += 1;
        write!(report, "{name} #{number}:")?;
        for d in list {
            write!(report, " {}: {} | {};", d.field, d.ours, d.theirs)?;
        }
        report.push('\n');
    }
    for (known, seen) in KNOWN.iter().zip(seen) {
        if known.packets != seen && corpus.has(known.file) {
            writeln!(
                report,
                "{}: {} packets are known to differ in {} ({}), {seen} do",
                known.file, known.packets, known.fields, known.why
            )?;
        }
    }
    ensure!(
        report.is_empty(),
        "{unknown} packets differ (ours | tshark's):\n{report}"
    );
    Ok(())
}
