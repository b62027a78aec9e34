//! Generated packets checked by an independent program: tshark finds every checksum correct and
//! every field in its range.

use lab::oracle::{tshark, write_pcap};
use lab::skip;
use traffic::{Addresses, Icmp, L4, Order, Range, Sizes, Tag, Tcp, Template, Udp};

const COUNT: usize = 400;

fn ports(text: &str) -> Range {
    Range::numbers(text, 65_535).unwrap()
}

fn template(addresses: (&str, &str), l4: L4, sizes: &str, tags: &str) -> Template {
    Template {
        src_mac: Range::macs("02:00:00:00:00:01-02:00:00:00:00:05").unwrap(),
        dst_mac: Range::macs("02:00:00:00:01:00").unwrap(),
        tags: match tags {
            "" => Vec::new(),
            tags => Tag::parse_stack(tags).unwrap(),
        },
        addresses: Addresses::parse(addresses.0, addresses.1).unwrap(),
        ttl: 61,
        traffic_class: 0x28,
        l4,
        payload: b"0123456789abc".to_vec(),
        sizes: match sizes {
            "" => Sizes::Shortest,
            sizes => Sizes::parse(sizes).unwrap(),
        },
        order: Order::Random,
        seed: 0xba7e,
    }
}

/// tshark's checksum fields, "1" if good; a packet has those of its protocols.
const STATUS: [&str; 5] = [
    "ip.checksum.status",
    "udp.checksum.status",
    "tcp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
];

/// The checksum fields that a packet of this template must have.
fn expected_status(template: &Template) -> [&'static str; 5] {
    let is_v4 = matches!(template.addresses, Addresses::V4 { .. });
    let at = match template.l4 {
        L4::Udp(_) => 1,
        L4::Tcp(_) => 2,
        L4::Icmp(_) if is_v4 => 3,
        L4::Icmp(_) => 4,
    };
    let mut status = [""; 5];
    status[at] = "1";
    if is_v4 {
        status[0] = "1";
    }
    status
}

/// tshark's output for `count` packets of each stream: the requested fields, after all checksums
/// were found good. One run for all, because starting tshark takes longer than anything else here.
fn judge(templates: &[Template], count: usize, fields: &[&str]) -> Vec<Vec<String>> {
    let mut packets = Vec::new();
    let mut expected = Vec::new();
    for template in templates {
        let mut generator = template.build().unwrap();
        for _ in 0..count {
            let mut packet = vec![0; generator.packet_len()];
            generator.write(&mut packet);
            packets.push(packet);
            expected.push(expected_status(template));
        }
    }
    let file = write_pcap(&packets).unwrap();
    let own = ["frame.len", "_ws.malformed"];
    let all: Vec<&str> = STATUS.iter().chain(&own).chain(fields).copied().collect();
    let checks = ["ip", "udp", "tcp"].map(|p| format!("{p}.check_checksum:TRUE"));
    let options: Vec<&str> = checks
        .iter()
        .flat_map(|check| ["-o", check.as_str()])
        .collect();
    let rows = tshark::fields(file.path(), &all, &options).unwrap();
    assert_eq!(rows.len(), packets.len());
    for ((row, packet), status) in rows.iter().zip(&packets).zip(&expected) {
        assert_eq!(row[..5], status[..], "{packet:02x?}");
        assert_eq!(row[5], packet.len().to_string());
        assert_eq!(row[6], "", "malformed: {packet:02x?}");
    }
    rows.into_iter().map(|row| row[7..].to_vec()).collect()
}

fn udp() -> L4 {
    L4::Udp(Udp {
        src_port: ports("49152-65535"),
        dst_port: ports("49000,49001"),
    })
}

#[test]
fn tshark_finds_every_checksum_right() {
    lab::require!(skip::program("tshark", "tshark"));
    let tcp = L4::Tcp(Tcp {
        src_port: ports("1-65535"),
        dst_port: ports("80"),
        flags: 2,
        window: 1024,
    });
    let icmp = L4::Icmp(Icmp { id: 77 });
    let v4 = ("10.0.0.0/8", "192.168.0.1-192.168.7.254");
    let v6 = ("2001:db8::/48", "fd00::1-fd00::ffff:ffff");
    let mut templates = Vec::new();
    for l4 in [udp(), tcp, icmp] {
        for tags in ["", "100", "200,100@3"] {
            for sizes in ["", "imix", "100-1514"] {
                // The shortest of the mix is too short for some headers.
                let sizes = if sizes == "imix" {
                    "90*7,590*4,1514"
                } else {
                    sizes
                };
                templates.push(template(v4, l4.clone(), sizes, tags));
                templates.push(template(v6, l4.clone(), sizes, tags));
            }
        }
    }
    judge(&templates, 150, &[]);
}

#[test]
fn tshark_finds_every_field_in_its_range() {
    lab::require!(skip::program("tshark", "tshark"));
    let fields = [
        "eth.src",
        "vlan.id",
        "ip.src",
        "ip.dst",
        "ip.ttl",
        "ip.dsfield",
        "udp.srcport",
        "udp.dstport",
    ];
    let template = template(("10.1.2.0/24", "10.9.0.7"), udp(), "imix", "200,100");
    let mut seen = [0; 2];
    for row in judge(&[template], COUNT, &fields) {
        let [mac, vlan, src, dst, ttl, tos, sport, dport] = &row[..] else {
            panic!("{row:?}")
        };
        assert!(
            ("02:00:00:00:00:01".."02:00:00:00:00:06").contains(&mac.as_str()),
            "{mac}"
        );
        // The service tag has its own field in some versions.
        assert!(vlan == "100" || vlan == "200,100", "{vlan}");
        assert!(src.starts_with("10.1.2."), "{src}");
        assert_eq!(
            (dst.as_str(), ttl.as_str(), tos.as_str()),
            ("10.9.0.7", "61", "0x28")
        );
        assert!(sport.parse::<u16>().unwrap() >= 49152);
        seen[usize::from(dport == "49001")] += 1;
        assert!(dport == "49000" || dport == "49001");
    }
    assert!(seen.iter().all(|n| *n > COUNT / 4), "{seen:?}");
}
