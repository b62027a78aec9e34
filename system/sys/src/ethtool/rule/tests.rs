//! The layout of rules, as ethtool 6.1 passes them to the kernel.

use super::*;

fn all<T>(value: T, mask: T) -> Masked<T> {
    Masked { value, mask }
}

fn rule(fields: Fields) -> Rule {
    Rule {
        destination: Masked::default(),
        vlan_type: None,
        vlan_tci: Masked::default(),
        fields,
    }
}

fn ip(is_v6: bool, protocol: u8) -> IpFields {
    IpFields {
        is_v6,
        protocol: Some(protocol),
        ..IpFields::default()
    }
}

const MAC: Masked<u64> = Masked {
    value: 0x0200_0000_0001,
    mask: 0xffff_ffff_ffff,
};

/// A rule, its text, and its bytes that are not 0, each run with its offset.
type Known = (Rule, &'static str, &'static [(usize, &'static str)]);

fn known() -> Vec<Known> {
    [of_ip(), of_ethernet()].concat()
}

fn of_ip() -> Vec<Known> {
    let port = |number| all(number, u16::MAX);
    let udp4 = IpFields {
        destination_port: port(53),
        ..ip(false, 17)
    };
    let tcp6 = IpFields {
        source: all(0x2001_0db8 << 96, 0xffff_ffff << 96),
        destination_port: port(443),
        ..ip(true, 6)
    };
    let ip4 = IpFields {
        destination: all(0xc000_0200, 0xffff_ff00),
        tos: all(4, 0xff),
        ..ip(false, 47)
    };
    vec![
        (
            rule(Fields::Ip(udp4)),
            "udp4 dst-port 53",
            &[(0, "02"), (15, "35"), (86, "ffff")],
        ),
        (
            rule(Fields::Ip(tcp6)),
            "tcp6 src-ip 2001:db8:: m ::ffff:ffff:ffff:ffff:ffff:ffff dst-port 443",
            &[
                (0, "05"),
                (4, "20010db8"),
                (38, "01bb"),
                (76, "ffffffff"),
                (110, "ffff"),
            ],
        ),
        (
            rule(Fields::Ip(ip4)),
            "ip4 dst-ip 192.0.2.0 m 0.0.0.255 tos 0x4 l4proto 47",
            &[
                (0, "0d"),
                (8, "c0"),
                (10, "02"),
                (16, "04012f"),
                (80, "ffffff"),
                (88, "ff"),
                (90, "ff"),
            ],
        ),
        (
            rule(Fields::Ip(ip(true, 58))),
            "ip6 l4proto 58",
            &[(0, "0e"), (41, "3a"), (113, "ff")],
        ),
    ]
}

fn of_ethernet() -> Vec<Known> {
    let ethernet = Fields::Ethernet {
        source: Masked::default(),
        ether_type: Some(0x806),
    };
    vec![
        (
            Rule {
                destination: MAC,
                vlan_tci: all(5, 0xfff),
                ..rule(ethernet)
            },
            "ether dst 02:00:00:00:00:01 proto 0x806 vlan 0x5 m 0xf000",
            &[
                (0, "12"),
                (3, "80"),
                (4, "02"),
                (9, "01"),
                (16, "0806"),
                (67, "05"),
                (76, "ffffffffffff"),
                (88, "ffff"),
                (138, "0fff"),
            ],
        ),
        (
            Rule {
                destination: MAC,
                vlan_type: Some(0x88a8),
                vlan_tci: all(5, 0xfff),
                ..rule(Fields::Ip(ip(false, 132)))
            },
            "sctp4 dst-mac 02:00:00:00:00:01 vlan-etype 0x88a8 vlan 0x5 m 0xf000",
            &[
                (0, "03"),
                (3, "c0"),
                (58, "02"),
                (63, "0188a8"),
                (67, "05"),
                (130, "ffffffffffffffff0fff"),
            ],
        ),
    ]
}

#[test]
fn rules_have_the_layout_and_the_text_of_ethtool() {
    for (rule, text, bytes) in known() {
        assert_eq!(rule.to_string(), text);
        let mut expected = [b'0'; 2 * RuleSpec::LEN];
        for (at, digits) in bytes {
            expected[2 * at..2 * at + digits.len()].copy_from_slice(digits.as_bytes());
        }
        assert_eq!(rule.spec().to_hex().as_bytes(), expected, "{text}");
    }
}

#[test]
fn specifications_are_written_and_parsed() {
    for (rule, text, _) in known() {
        let spec = rule.spec();
        assert_eq!(RuleSpec::from_hex(&spec.to_hex()), Some(spec), "{text}");
        let mut other = spec;
        // A value outside the masks.
        other.0[VALUES + 40] ^= 1;
        assert!(spec.is_same(&other), "{text}");
        other.0[VALUES + TO_MASK + 40] ^= 1;
        assert!(!spec.is_same(&other), "{text}");
    }
    for text in ["", "00", &"zz".repeat(SPEC_LEN), &"é".repeat(SPEC_LEN)] {
        assert_eq!(RuleSpec::from_hex(text), None, "{text}");
    }
}
