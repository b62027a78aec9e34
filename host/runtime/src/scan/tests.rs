//! Tests of target selection.

use ::scan::{RESERVED, parse_range};

use super::*;

fn setup(include: &[&str]) -> Setup {
    let ranges = include.iter().map(|text| parse_range(text).unwrap());
    Setup {
        include: ranges.collect(),
        random_count: 0,
        pairs: Vec::new(),
        exclude: RangeList::default(),
        opt_out: RangeList::default(),
        ports: Ports::tcp("80").unwrap(),
        port: None,
        source_addrs: Vec::new(),
        routers: Vec::new(),
        source_ports: (40_000, 10),
        router_mac: None,
        rate: Rate::Packets(100.0),
        rate_min: None,
        control: None,
        attempts: 1,
        shard: Shard::WHOLE,
        seed: 1,
        block: None,
        from: 0,
        wait: Duration::ZERO,
        options: Options::Minimal,
        ttl: 64,
        grab: None,
        queues: None,
        vendors: Default::default(),
        firewall: false,
    }
}

#[test]
fn reserved_ranges_are_scanned_only_on_request() {
    let count = |include: &[&str]| without_reserved(&setup(include)).unwrap().count();
    assert_eq!(count(&["10.0.0.0/24"]), 256);
    assert_eq!(count(&["10.0.0.0/8"]), 1 << 24);
    assert_eq!(count(&["9.255.255.0-10.0.0.255"]), 256);
    assert_eq!(count(&["9.255.255.0-10.0.0.255", "10.0.0.7"]), 257);
    let left = (1 << 32) - (3 << 24) - (1 << 22) - (1 << 20) - (1 << 17) - (2 << 16) - 4 * 256;
    assert_eq!(count(&["0.0.0.0/0"]), left - (2 << 28));
    assert_eq!(count(&["127.0.0.1"]), 1);
}

#[test]
fn scanning_nothing_is_refused() {
    let mut all = setup(&["192.0.2.0/24"]);
    all.exclude = all.include.clone();
    let error = prepare(all).err().expect("nothing is left");
    assert!(
        error.to_string().contains("after the exclusions"),
        "{error}"
    );
}

#[test]
fn a_card_needs_a_source_address_and_a_router() {
    let hints = |targets: &[&str], sources: &[&str], routers: &[&str]| {
        let mut card = setup(targets);
        card.port = Some("vfio:0000:01:00.0".into());
        card.source_addrs = sources.iter().map(|text| text.parse().unwrap()).collect();
        card.routers = routers.iter().map(|text| text.parse().unwrap()).collect();
        let error = prepare(card).err()?;
        Some(format!("{error} {}", error.hint().unwrap_or_default()))
    };
    let v4 = hints(&["192.0.2.0/28"], &[], &[]).unwrap();
    assert!(
        v4.contains("no IPv4 address") && v4.contains("192.0.2.7/24"),
        "{v4}"
    );
    let both = ["192.0.2.0/28", "2001:db8::/120"];
    let v6 = hints(&both, &["192.0.2.20/24"], &[]).unwrap();
    assert!(
        v6.contains("no IPv6 address") && v6.contains("2001:db8::7/64"),
        "{v6}"
    );
    let router = hints(&["192.0.2.0/28"], &["192.0.2.20"], &[]).unwrap();
    assert!(
        router.contains("--router-ip") && router.contains("192.0.2.0 is"),
        "{router}"
    );
    let router = hints(&["192.0.2.0/28"], &["192.0.2.20/29"], &["fe80::1"]).unwrap();
    assert!(router.contains("192.0.2.0 is"), "{router}");
    for (sources, routers) in [
        (&["192.0.2.20/24", "2001:db8::ff/64"][..], &[][..]),
        (&["192.0.2.20/24", "2001:db8::ff"], &["fe80::1"]),
    ] {
        assert_eq!(hints(&both, sources, routers), None);
    }
}

#[test]
fn random_addresses_are_public_and_not_excluded() {
    let mut random = setup(&[]);
    random.random_count = 1_000;
    random.exclude.push(parse_range("64.0.0.0/2").unwrap());
    let addrs = random_addrs(&random).unwrap();
    assert_eq!(addrs.len(), 1_000);
    let exclude: Vec<AddrRange> = random
        .exclude
        .iter()
        .chain(RESERVED.iter().copied())
        .collect();
    let is_public = |addr: &AddrRange| !exclude.iter().any(|range| range.covers(addr));
    assert!(addrs.iter().all(is_public));
    assert_eq!(random_addrs(&random).unwrap(), addrs);
    random.seed += 1;
    assert_ne!(random_addrs(&random).unwrap(), addrs);
}

#[test]
fn the_opt_out_list_is_excluded_and_counted_once() {
    let range = |text| parse_range(text).unwrap();
    let mut setup = setup(&["192.0.2.0/24", "2001:db8::/120", "9.255.255.0-10.0.0.255"]);
    setup.exclude.push(range("192.0.2.0/25"));
    setup.random_count = 0;
    // Half of it is excluded already, and 10.0.0.0/24 is reserved.
    setup.opt_out = [
        "192.0.2.64/26",
        "192.0.2.128/26",
        "2001:db8::7",
        "10.0.0.0/8",
    ]
    .map(range)
    .into_iter()
    .collect();
    assert_eq!(opt_out(&mut setup), Some(65));
    let left = without_reserved(&setup).unwrap();
    assert_eq!(left.count(), 64 + 255 + 256);
    assert!(!left.contains([192, 0, 2, 130].into()));
    assert_eq!(opt_out(&mut setup), Some(0));
}

#[test]
fn a_scan_of_this_host_alone_is_refused() {
    for (include, first) in [
        (&["127.0.0.1"][..], "127.0.0.1"),
        (&["127.0.0.0/8"], "127.0.0.0 and 16777215 other"),
        (&["::1", "127.8.0.1"], "127.8.0.1 and 1 other"),
        (&["0.0.0.0"], "0.0.0.0"),
    ] {
        let mut own = setup(include);
        let error = prepare(own.clone()).err().expect("it is refused");
        let text = error.to_string();
        assert!(text.contains(&format!("scan {first}")), "{text}");
        assert!(text.contains("this host itself"), "{text}");
        // Whatever port is given.
        own.port = Some("lo".into());
        assert!(prepare(own).is_err());
    }
}

#[test]
fn addresses_of_this_host_are_in_the_plan_and_are_skipped() {
    let mut card = setup(&["192.0.2.0/28"]);
    card.port = Some("vfio:0000:01:00.0".into());
    card.source_addrs = vec!["192.0.2.7/24".parse().unwrap()];
    let scan = prepare(card).unwrap();
    assert_eq!((scan.own_count(), scan.on_link_count()), (1, 15));
    // The same on every host that scans a shard.
    assert_eq!(scan.plan().probe_count(), 16);
    let own: std::net::IpAddr = [192, 0, 2, 7].into();
    let sent = scan.sample(100);
    assert_eq!(sent.len(), 15);
    assert!(sent.iter().all(|frame| frame[30..34] != [192, 0, 2, 7]));
    assert!(scan.plan().targets().contains(own));
}
