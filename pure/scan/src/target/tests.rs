//! Sets of addresses compared with a plain list.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::*;

fn ranges(texts: &[&str]) -> Vec<AddrRange> {
    texts
        .iter()
        .map(|text| parse_range(text).unwrap())
        .collect()
}

#[test]
fn ranges_expand_as_documented() {
    for (text, first, last) in [
        ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
        ("192.0.2.7/24", "192.0.2.0", "192.0.2.255"),
        ("192.0.2.7/32", "192.0.2.7", "192.0.2.7"),
        ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
        ("192.0.2.1-192.0.3.9", "192.0.2.1", "192.0.3.9"),
        ("192.0.2.1-9", "192.0.2.1", "192.0.2.9"),
        ("2001:db8::/126", "2001:db8::", "2001:db8::3"),
        ("2001:db8::1-2001:db8::f", "2001:db8::1", "2001:db8::f"),
        ("[2600::1]", "2600::1", "2600::1"),
        ("[2600::1]-[2600::4]", "2600::1", "2600::4"),
        ("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ] {
        let range = parse_range(text).unwrap();
        let ends = (range.addr(range.first), range.addr(range.last));
        assert_eq!(
            ends,
            (first.parse().unwrap(), last.parse().unwrap()),
            "{text}"
        );
    }
}

#[test]
fn samples_are_distinct_addresses_of_the_set() {
    let exclude = [ranges(&["8.0.0.0/8"]), RESERVED.to_vec()].concat();
    let public = Targets::new(ranges(&["0.0.0.0/0"]), exclude).unwrap();
    let sample = public.sample(5_000, 7);
    let distinct: BTreeSet<_> = sample.iter().collect();
    assert_eq!((sample.len(), distinct.len()), (5_000, 5_000));
    assert!(sample.iter().all(|addr| public.contains(*addr)));
    let first = |addr: &IpAddr| match addr {
        IpAddr::V4(addr) => addr.octets()[0],
        IpAddr::V6(_) => 0,
    };
    let blocks: BTreeSet<u8> = sample.iter().map(first).collect();
    assert!(blocks.len() > 200 && !blocks.contains(&8) && !blocks.contains(&10));
    assert_eq!(public.sample(5_000, 7), sample, "the seed decides");
    assert_ne!(public.sample(5_000, 8), sample);
    let few = Targets::new(ranges(&["192.0.2.0/29"]), Vec::new()).unwrap();
    assert_eq!(few.sample(100, 1).len(), 8);
    assert!(Targets::default().sample(1, 1).is_empty());
}

#[test]
fn invalid_ranges_are_refused_with_their_text() {
    for text in [
        "",
        "192.0.2",
        "192.0.2.0/33",
        "192.0.2.0/",
        "192.0.2.0/+8",
        "192.0.2.0/08",
        "192.0.2.9-192.0.2.1",
        "192.0.2.9-1",
        "192.0.2.1-300",
        "192.0.2.1-::1",
        "::1-9",
        "::/129",
        "host.example",
        "[192.0.2.1]",
        "[2600::1",
    ] {
        let error = parse_range(text).unwrap_err();
        assert!(error.contains(text), "{text}: {error}");
    }
}

#[test]
fn octets_are_ranges_of_addresses() {
    let of = |text: &str| {
        let ranges = parse_octets(text)?.unwrap();
        let targets = Targets::new(ranges, Vec::new()).unwrap();
        let bounds = |range: AddrRange| {
            let end = |bits| Ipv4Addr::from(bits as u32).to_string();
            format!("{}-{}", end(range.first), end(range.last))
        };
        Some(targets.ranges().map(bounds).collect::<Vec<_>>())
    };
    assert_eq!(of("192.0.2.*").unwrap(), ["192.0.2.0-192.0.2.255"]);
    let found = ["10.0.1.1-10.0.1.9", "10.0.2.1-10.0.2.9"];
    assert_eq!(of("10.0.1-2.1-9").unwrap(), found);
    assert_eq!(
        of("10.0.-1.250-").unwrap(),
        ["10.0.0.250-10.0.0.255", "10.0.1.250-10.0.1.255"]
    );
    assert_eq!(of("10.*.*.*").unwrap(), ["10.0.0.0-10.255.255.255"]);
    assert_eq!(of("*.*.*.*").unwrap(), ["0.0.0.0-255.255.255.255"]);
    assert_eq!(of("10.1-2.*.*").unwrap(), ["10.1.0.0-10.2.255.255"]);
    let found = ["10.1.0.7-10.1.0.7", "10.1.1.7-10.1.1.7"];
    assert_eq!(of("10.1.0-1.7").unwrap(), found);
    let found = [
        "198.18.4.1-198.18.4.2",
        "198.18.4.7-198.18.4.7",
        "198.18.4.9-198.18.4.11",
    ];
    assert_eq!(of("198.18.4.1,2,7,9-11").unwrap(), found);
    let found = ["10.0.5.1-10.0.5.1", "10.2.5.1-10.2.5.1"];
    assert_eq!(of("10.2,0.5.1,1").unwrap(), found);
    assert_eq!(
        of("10.0.1,3.*").unwrap(),
        ["10.0.1.0-10.0.1.255", "10.0.3.0-10.0.3.255"]
    );
    for (text, number) in [("192.0.2.1,443", "443"), ("1-300.0.0.0", "300")] {
        let why = parse_octets(text).unwrap().unwrap_err();
        assert!(why.starts_with(number), "{why}");
    }
    for other in [
        "",
        "10.0.0",
        "10.0.0.",
        "10.0.0.0.1",
        "10.0.0.1,",
        "10.0.0.,1",
        "192.0.2.010",
        "a.b.c.*",
        "+1.0.0.*",
        "::",
    ] {
        assert_eq!(of(other), None, "{other}");
    }
    assert!(parse_octets("10.0.9-1.1").unwrap().is_err());
    assert!(parse_octets("1-2.*.*.7").unwrap().is_err());
}

#[test]
fn numbers_and_addresses_are_those_of_a_list() {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let mut some = |count: u64| -> Vec<AddrRange> {
            let one = |_| {
                let first = u128::from(random(500));
                AddrRange {
                    is_ipv6: random(3) == 0,
                    first,
                    last: first + u128::from(random(30)),
                }
            };
            (0..count).map(one).collect()
        };
        let (include, exclude) = (some(12), some(9));
        let mut list = BTreeSet::new();
        let all = |range: &AddrRange| {
            let is_ipv6 = range.is_ipv6;
            (range.first..=range.last)
                .map(move |bits| (is_ipv6, bits))
                .collect::<Vec<_>>()
        };
        list.extend(include.iter().flat_map(all));
        for range in &exclude {
            for one in all(range) {
                list.remove(&one);
            }
        }
        let targets = Targets::new(include, exclude).unwrap();
        assert_eq!(targets.count(), list.len() as u128);
        for (number, expected) in list.iter().enumerate() {
            let addr = targets.addr(number as u128);
            assert_eq!(bits_of(addr), *expected);
            assert!(targets.contains(addr));
        }
        for is_ipv6 in [false, true] {
            for bits in 0..600 {
                let (first, last) = (bits, bits);
                let range = AddrRange {
                    is_ipv6,
                    first,
                    last,
                };
                let expected = list.contains(&(is_ipv6, bits));
                assert_eq!(targets.contains(range.addr(bits)), expected);
                assert_eq!(targets.count_in(&range), u128::from(expected));
            }
        }
    }
}

#[test]
fn ends_of_the_address_space() {
    let all = ranges(&["0.0.0.0/0"]);
    let ends = ranges(&["0.0.0.0", "255.255.255.255"]);
    let targets = Targets::new(all.clone(), ends).unwrap();
    assert_eq!(targets.count(), (1 << 32) - 2);
    assert_eq!(targets.addr(0).to_string(), "0.0.0.1");
    assert_eq!(
        targets.addr(targets.count() - 1).to_string(),
        "255.255.255.254"
    );
    assert_eq!(Targets::new(all.clone(), all).unwrap().count(), 0);
    assert!(Targets::new(ranges(&["::/0"]), Vec::new()).is_none());
    let wide = Targets::new(ranges(&["2001:db8::/32"]), Vec::new()).unwrap();
    assert_eq!(wide.addr(5).to_string(), "2001:db8::5");
}

#[test]
fn lines_have_comments_and_several_ranges() {
    let mut out = Vec::new();
    parse_line("192.0.2.1, 192.0.2.8/30\t2001:db8::1 # three\r\n", &mut out).unwrap();
    parse_line("# none", &mut out).unwrap();
    assert_eq!(out.len(), 3);
    assert!(parse_line("192.0.2.1 nonsense", &mut out).is_err());
}

#[test]
fn lookups_among_a_million_exclusions_are_right() {
    let exclude = (0..1u128 << 20).map(|n| AddrRange {
        is_ipv6: false,
        first: (n << 12) | (n % 4096),
        last: (n << 12) | (n % 4096),
    });
    let targets = Targets::new(ranges(&["0.0.0.0/0"]), exclude.collect::<RangeList>()).unwrap();
    assert_eq!(targets.count(), (1 << 32) - (1 << 20));
    for sample in 0..100_000u128 {
        let number = sample.wrapping_mul(2_654_435_761) % targets.count();
        let addr = targets.addr(number);
        let (_, bits) = bits_of(addr);
        assert_ne!(bits & 4095, (bits >> 12) % 4096);
        // Every address before it but the excluded ones has a lower number.
        let cut = (bits >> 12) + u128::from(bits & 4095 > (bits >> 12) % 4096);
        assert_eq!(number, bits - cut);
    }
}

/// Many ranges in one bucket are searched: a wide range makes the buckets wide.
#[test]
fn lookups_are_right_where_many_ranges_share_a_bucket() {
    for (wide, base) in [("0.0.0.0/1", 0xc000_0000u128), ("2001:db8::/40", 1 << 127)] {
        let is_ipv6 = wide.contains(':');
        let single = |n: u128| AddrRange {
            is_ipv6,
            first: base + 3 * n,
            last: base + 3 * n + n % 2,
        };
        let mut include: RangeList = (0..1_000).map(single).collect();
        include.push(parse_range(wide).unwrap());
        let targets = Targets::new(include, Vec::new()).unwrap();
        let of_wide = parse_range(wide).unwrap();
        let before = of_wide.last - of_wide.first + 1;
        let addrs = (0..1_000).flat_map(|n| single(n).first..=single(n).last);
        for (number, bits) in (before..).zip(addrs) {
            let addr = targets.addr(number);
            assert_eq!(bits_of(addr), (is_ipv6, bits), "{number}");
            assert_eq!(
                targets.range_of(addr).map(|range| range.addr(bits)),
                Some(addr)
            );
        }
        assert_eq!(targets.count(), before + 1_500);
        assert_eq!(bits_of(targets.addr(before - 1)), (is_ipv6, of_wide.last));
        let gap = single(0).addr(base + 1);
        assert!(!targets.contains(gap) && targets.range_of(gap).is_none());
        assert_eq!(targets.ranges().count(), 1_001);
        assert_eq!(targets.range_count(), 1_001);
    }
}

#[test]
fn lists_are_merged_in_place_and_excluded_without_a_copy() {
    let mut exclude: RangeList = ranges(&["192.0.2.9", "192.0.2.0/29", "192.0.2.8", "::1"]).into();
    exclude.merge();
    let merged: Vec<AddrRange> = exclude.iter().collect();
    assert_eq!(merged, ranges(&["192.0.2.0-192.0.2.9", "::1"]));
    let mut more: RangeList = ranges(&["192.0.2.10"]).into();
    exclude.append(&mut more);
    assert!(more.is_empty() && exclude.len() == 3);
    exclude.merge();
    let left = Targets::without(ranges(&["192.0.2.0/28", "::/127"]), &exclude).unwrap();
    assert_eq!(left.count(), 6);
    assert_eq!(left.addr(0).to_string(), "192.0.2.11");
    assert_eq!(left.addr(5).to_string(), "::");
}
