//! Probers write the probes of a plan, in the order of their lanes.

use super::*;

/// The frames of SYNs that a prober writes are those that are made one by one, whatever lies
/// behind them in the buffer.
#[test]
fn batches_of_syns_are_the_probes_of_the_plan() {
    use crate::frame::{FrameOptions, Options};
    use crate::{Order, Payloads, Ports, Shard, Source, Targets, parse_range};
    let source = Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: Some("2001:db8:1::7".parse().unwrap()),
        ports: (61_000, 4_000),
    };
    let (mac, router) = (Mac([2, 0, 0, 0, 0, 1]), Mac([4, 5, 6, 7, 8, 9]));
    let hops = NextHops::routers(Some(router), Some(router));
    for (range, ports) in [
        ("192.0.2.0/26", "80"),
        ("10.0.0.0/29", "80-90,443"),
        ("2001:db8::/122", "80"),
        ("2001:db8::/122", "1-3"),
        ("2001:db8::/60", "65535"),
        ("2001:db8::/40", "80,443,8080"),
    ] {
        for options in [
            Options::Minimal,
            Options::Linux,
            Options::Windows,
            Options::Bsd,
        ] {
            let order = Order {
                seed: 3,
                shard: Shard { index: 1, count: 2 },
                attempts: 2,
                block: 21,
            };
            let targets = Targets::new(vec![parse_range(range).unwrap()], Vec::new());
            let ports = Ports::tcp(ports).unwrap();
            let plan = Plan::new(targets.unwrap(), ports, source, order).unwrap();
            let cookies = Cookies::new([9; 16], source);
            let look = FrameOptions {
                src_mac: mac,
                ttl: 64,
                options,
            };
            let frames = Frames::new(source, look, &Payloads::built_in());
            let mut prober = Prober::new(&plan, (5, Lane::WHOLE), &cookies, &frames, &hops);
            assert!(prober.syns.is_some(), "{range}");
            prober.set_clock(77);
            let mut count = 5;
            for (target, payload) in plan.probes(5).take(500) {
                let mut expected = [0xaa; 2048];
                let numbers = (&cookies.of(&target), 77);
                let len = frames.write((&target, payload), numbers, router, &mut expected);
                assert_eq!((prober.next_len(), prober.taken()), (len, count));
                let len = len.unwrap();
                let mut room = vec![0x55; if count % 2 == 0 { 2048 } else { len }];
                assert_eq!(prober.write(&mut room[..len - 1]), None);
                assert_eq!(prober.write(&mut room), Some(len));
                assert_eq!(room[..len], expected[..len], "{target:?}");
                count += 1;
            }
            assert!(count == 505 || prober.next_len().is_none());
        }
    }
}

#[test]
fn a_prober_that_goes_back_writes_the_same_probes_again() {
    use crate::frame::{FrameOptions, Options};
    use crate::{Order, Payloads, Ports, Shard, Source, Targets, parse_range};
    let source = Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: None,
        ports: (61_000, 4_000),
    };
    let targets = Targets::new(vec![parse_range("192.0.2.0/24").unwrap()], Vec::new());
    let order = Order {
        seed: 3,
        shard: Shard::WHOLE,
        attempts: 1,
        block: 21,
    };
    let ports = Ports::tcp("80").unwrap();
    let plan = Plan::new(targets.unwrap(), ports, source, order).unwrap();
    let cookies = Cookies::new([9; 16], source);
    let look = FrameOptions {
        src_mac: Mac([2; 6]),
        ttl: 64,
        options: Options::Minimal,
    };
    let frames = Frames::new(source, look, &Payloads::built_in());
    let router = NextHops::routers(Some(Mac([4; 6])), None);
    let lane = Lane {
        index: 1,
        count: 3,
        block_len: 8,
    };
    // With a batch of SYNs, and without: no target has a next hop.
    for (hops, written) in [(router, 88), (NextHops::default(), 0)] {
        let mut prober = Prober::new(&plan, (0, lane), &cookies, &frames, &hops);
        let all = |prober: &mut Prober<'_>| {
            let mut probes = Vec::new();
            let mut room = [0; 256];
            while prober.next_len().is_some() {
                let len = prober.write(&mut room).unwrap();
                probes.push((prober.taken(), room[..len].to_vec()));
            }
            (probes, prober.skipped().unreachable, prober.next_index())
        };
        let first = all(&mut prober);
        assert_eq!(first.0.len(), written);
        assert_eq!((first.1, first.2), (88 - written as u128, 256));
        prober.go_back(0, Skipped::default());
        assert_eq!(all(&mut prober), first);
        prober.go_back(100, Skipped::default());
        let (again, ..) = all(&mut prober);
        assert!(first.0.ends_with(&again), "{again:?}");
        assert!(written == 0 || again.first().is_some_and(|(taken, _)| *taken > 100));
        // Never forward.
        prober.go_back(0, Skipped::default());
        prober.go_back(200, Skipped::default());
        assert_eq!(prober.next_index(), 8);
    }
}

#[test]
fn lanes_share_all_indices_and_stop_at_a_boundary() {
    for (count, block_len) in [(1, 16), (2, 16), (3, 1), (4, 64), (7, 5)] {
        let lane = |index| Lane {
            index,
            count,
            block_len,
        };
        let owners: Vec<u32> = (0..1_000)
            .map(|n| {
                let mut own = (0..count).filter(|index| lane(*index).next(n) == n);
                let owner = own.next().expect("an owner");
                assert_eq!(own.next(), None, "{n}");
                owner
            })
            .collect();
        for index in 0..count {
            for n in 0..500_usize {
                let next = owners[n..].iter().position(|owner| *owner == index);
                let expected = (n + next.unwrap()) as u128;
                assert_eq!(lane(index).next(n as u128), expected);
            }
        }
        // Wherever they are, the lane that is furthest on has not passed the boundary.
        let at = [3, 77, 210];
        let boundary = lane(0).boundary(&at);
        assert!(boundary >= 210 && boundary < 210 + lane(0).round_len());
        let next = (0..count).map(|index| lane(index).next(boundary));
        assert_eq!(next.min(), Some(boundary));
    }
}

/// A plan of one port of a range, and what writes its probes through one router.
fn scene(range: &str, test: impl Fn(&Plan, &Cookies, &Frames, NextHops)) {
    use crate::frame::{FrameOptions, Options};
    use crate::{Order, Payloads, Ports, Shard, Source, Targets, parse_range};
    let source = Source {
        ipv4: Some([198, 51, 100, 7].into()),
        ipv6: Some("2001:db8:1::7".parse().unwrap()),
        ports: (61_000, 4_000),
    };
    let order = Order {
        seed: 3,
        shard: Shard::WHOLE,
        attempts: 1,
        block: 21,
    };
    let targets = Targets::new(vec![parse_range(range).unwrap()], Vec::new()).unwrap();
    let plan = Plan::new(targets, Ports::tcp("80").unwrap(), source, order).unwrap();
    let look = FrameOptions {
        src_mac: Mac([2; 6]),
        ttl: 64,
        options: Options::Minimal,
    };
    let frames = Frames::new(source, look, &Payloads::built_in());
    let router = Some(Mac([4; 6]));
    let hops = NextHops::routers(router, router);
    test(&plan, &Cookies::new([9; 16], source), &frames, hops);
}

fn written(prober: &mut Prober<'_>) -> usize {
    let mut room = [0; 256];
    let mut count = 0;
    while prober.next_len().is_some() {
        prober.write(&mut room).unwrap();
        count += 1;
    }
    count
}

#[test]
fn targets_that_are_this_host_are_skipped_and_counted_apart() {
    use crate::{Targets, parse_range};
    let set = |texts: &[&str]| {
        let ranges = texts.iter().map(|text| parse_range(text).unwrap());
        Targets::new(ranges.collect::<Vec<_>>(), Vec::new()).unwrap()
    };
    for range in ["192.0.2.0/24", "2001:db8::/120"] {
        scene(range, |plan, cookies, frames, mut hops| {
            hops.own = set(&["192.0.2.7-192.0.2.8", "2001:db8::7-2001:db8::8", "::1"]);
            // In batches of SYNs, and one by one: nobody on the link answers.
            for (on_link, unreachable) in
                [(&[][..], 0), (&["192.0.2.64/26", "2001:db8::40/122"], 64)]
            {
                hops.set_on_link(set(on_link));
                let mut prober = Prober::new(plan, (0, Lane::WHOLE), cookies, frames, &hops);
                assert_eq!(prober.syns.is_some(), unreachable == 0);
                assert_eq!(written(&mut prober) as u128, 254 - unreachable);
                let own = 2;
                assert_eq!(prober.skipped(), Skipped { unreachable, own });
            }
        });
    }
}

#[test]
fn next_hops_are_not_looked_up_before_they_are_known() {
    scene("192.0.2.0/24", |plan, cookies, frames, mut hops| {
        hops.set_on_link((**plan.targets()).clone());
        for lane in [
            Lane::WHOLE,
            Lane {
                index: 1,
                count: 2,
                block_len: 8,
            },
        ] {
            let mut prober = Prober::new(plan, (0, lane), cookies, frames, &hops);
            let mut count = 0;
            for held_at in [0, 1, 63, 64, 65, 200, 255] {
                for (target, _) in plan.probes(0).take(held_at) {
                    hops.learn(target.addr, Mac([6; 6]));
                }
                prober.hold_at(held_at as u128);
                count += written(&mut prober);
                assert!(prober.is_held(), "{held_at}");
                assert_eq!(prober.skipped(), Skipped::default());
            }
            prober.hold_at(u128::MAX);
            count += written(&mut prober);
            assert!(!prober.is_held());
            let skipped = prober.skipped().unreachable as usize;
            assert_eq!(count + skipped, 256 / lane.count as usize);
        }
    });
}
