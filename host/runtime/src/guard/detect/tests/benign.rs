//! Peaks of good traffic: it loses nothing, or nearly nothing.

use ::guard::Verdict;

use super::world::{World, tcp, udp};
use super::*;

const SERVER: u32 = 0xc000_0201;

/// Learns what is normal: 100 packets a second of 20 connections.
fn learned() -> World {
    let mut world = World::new("warm-up=10s");
    for _ in 0..20 {
        normal(&mut world);
        world.tick();
    }
    assert_eq!(world.words(), ["learned"], "{:?}", world.steps);
    world
}

fn normal(world: &mut World) {
    let at = world.second as u32;
    for number in 0..100 {
        let client = number % 20;
        let numbers = (at * 50_000 + number * 500, at * 900_000 + number * 9_000);
        let ports = (40_000 + client as u16, 443);
        world.send(&tcp(
            (0x0b01_0000 + client, SERVER),
            ports,
            numbers,
            (0x18, 500),
        ));
    }
}

/// Runs a peak for a minute, and returns the share of its packets that is lost.
fn lost(world: &mut World, mut peak: impl FnMut(&mut World, u64) -> (u64, u64)) -> f64 {
    let (mut sent, mut lost) = (0, 0);
    for at in 0..60 {
        normal(world);
        let (sent_now, lost_now) = peak(world, at);
        sent += sent_now;
        lost += lost_now;
        world.tick();
    }
    lost as f64 / sent as f64
}

fn verdicts(world: &World) -> Vec<(Verdict, Reason)> {
    let rules = world.steps.iter().filter_map(|step| match step {
        Step::Rule(found) => Some((found.spec.verdict, found.reason)),
        _ => None,
    });
    rules.collect()
}

/// What is reported, and that it gets limits for this reason only.
fn assert_spared(world: &World, reason: Reason) {
    let verdicts = verdicts(world);
    assert!(!verdicts.is_empty(), "{:?}", world.steps);
    for (verdict, why) in verdicts {
        let is_limit = matches!(verdict, Verdict::Limit(_));
        assert!(is_limit && why == reason, "{:?}", world.steps);
    }
}

/// One connection with 5,000 segments a second.
#[test]
fn a_backup_loses_nothing() {
    let mut world = learned();
    let mut sequence = 0_u32;
    let share = lost(&mut world, |world, _| {
        let mut lost = 0;
        for _ in 0..5_000 {
            let path = (0x0b02_0001, SERVER);
            let packet = tcp(path, (50_000, 873), (sequence, 1), (0x10, 1_448));
            sequence = sequence.wrapping_add(1_448);
            lost += u64::from(!world.send(&packet));
        }
        (5_000, lost)
    });
    assert!(share < 0.001, "{share} lost: {:?}", world.steps);
    assert_spared(&world, Reason::Connections);
}

/// The same over UDP, with nothing that proves it is wanted.
#[test]
fn a_stream_over_udp_loses_nothing() {
    let mut world = learned();
    let share = lost(&mut world, |world, _| {
        let mut lost = 0;
        for _ in 0..5_000 {
            let packet = udp(0x0b02_0001, SERVER, (50_000, 5_001), 57, &[0x55; 800]);
            lost += u64::from(!world.send(&packet));
        }
        (5_000, lost)
    });
    assert!(share < 0.001, "{share} lost: {:?}", world.steps);
    assert_spared(&world, Reason::Streams);
}

/// Eight connections that send faster every five seconds.
#[test]
fn a_speed_test_loses_nearly_nothing() {
    let mut world = learned();
    let mut sequence = [0_u32; 8];
    let share = lost(&mut world, |world, at| {
        let mut lost = 0;
        let count = 2_000 + 1_000 * (at / 5);
        for number in 0..count {
            let own = &mut sequence[number as usize % 8];
            let port = 50_000 + number as u16 % 8;
            let packet = tcp(
                (0x0b02_0001, SERVER),
                (port, 8_080),
                (*own, 1),
                (0x10, 1_448),
            );
            *own = own.wrapping_add(1_448);
            lost += u64::from(!world.send(&packet));
        }
        (count, lost)
    });
    assert!(share < 0.01, "{share} lost: {:?}", world.steps);
    assert_spared(&world, Reason::Connections);
}

/// 1,500 connections a second, of six packets each.
#[test]
fn a_busy_server_loses_nearly_nothing() {
    let mut world = learned();
    let mut number = 0_u32;
    let share = lost(&mut world, |world, _| {
        let (mut sent, mut lost) = (0, 0);
        for _ in 0..1_500 {
            number += 1;
            let client = 0x0b03_0000 + number.wrapping_mul(2_654_435_761) % 0x7000_0000;
            let ports = (1_024 + (number % 60_000) as u16, 443);
            let first = number.wrapping_mul(0x9e37_79b9);
            let segments = [(0, 0x02, 0), (1, 0x10, 0), (1, 0x18, 300), (301, 0x10, 0)];
            for (at, flags, len) in segments.into_iter().chain([(301, 0x10, 0), (301, 0x11, 0)]) {
                let acknowledged = if flags == 0x02 { 0 } else { 77 };
                let numbers = (first.wrapping_add(at), acknowledged);
                let packet = tcp((client, SERVER), ports, numbers, (flags, len));
                lost += u64::from(!world.send(&packet));
                sent += 1;
            }
        }
        (sent, lost)
    });
    assert!(share < 0.01, "{share} lost: {:?}", world.steps);
    assert_spared(&world, Reason::Connections);
}

/// 3,000 SYNs a second of a scanner to one port after the other, of which none is answered.
#[test]
fn a_scan_loses_nearly_nothing() {
    let mut world = learned();
    let mut number = 0_u32;
    let share = lost(&mut world, |world, _| {
        let mut lost = 0;
        for _ in 0..3_000 {
            number += 1;
            let ports = (45_000, (number % 65_535) as u16);
            let numbers = (number.wrapping_mul(0x9e37_79b9), 0);
            let packet = tcp((0x0b02_0001, SERVER), ports, numbers, (0x02, 0));
            lost += u64::from(!world.send(&packet));
        }
        (3_000, lost)
    });
    assert!(share < 0.01, "{share} lost: {:?}", world.steps);
    assert_spared(&world, Reason::Scan);
}

/// A connection that becomes faster when its limit cannot be raised.
#[test]
fn a_rule_stays_until_another_one_takes_its_place() {
    let mut world = learned();
    let mut sequence = 0_u32;
    let mut first = String::new();
    for at in 0..40 {
        normal(&mut world);
        let count = if at < 15 { 3_000 } else { 12_000 };
        for _ in 0..count {
            let path = (0x0b02_0001, SERVER);
            world.send(&tcp(path, (50_000, 873), (sequence, 1), (0x10, 1_448)));
            sequence = sequence.wrapping_add(1_448);
        }
        world.refuses = at >= 15;
        world.tick();
        if at == 14 {
            first = world.found()[0].spec.name.clone();
        }
        if at >= 14 {
            let found = world.found();
            assert_eq!(found.len(), 1, "{:?}", world.steps);
            assert_eq!(found[0].spec.name, first);
            let floods = world.floods();
            assert!(!floods.is_empty(), "{:?}", world.steps);
            for flood in floods {
                assert_eq!(flood.rules.len(), 1, "{flood:?}");
            }
        }
    }
    assert!(verdicts(&world).len() >= 2, "{:?}", world.steps);
}

/// A flood beside a backup: the rule drops the one and spares the other.
#[test]
fn a_flood_beside_a_backup_is_dropped_and_the_backup_is_not() {
    let mut world = learned();
    let mut sequence = 0_u32;
    let mut flood_passed = 0_u32;
    let share = lost(&mut world, |world, at| {
        let mut lost = 0;
        for _ in 0..5_000 {
            let packet = tcp(
                (0x0b02_0001, SERVER),
                (50_000, 873),
                (sequence, 1),
                (0x10, 1_448),
            );
            sequence = sequence.wrapping_add(1_448);
            lost += u64::from(!world.send(&packet));
            for _ in 0..3 {
                let random = world.below(1 << 30);
                let path = (random.wrapping_mul(2_654_435_761), SERVER);
                let numbers = (world.below(u32::MAX), world.below(u32::MAX));
                let ports = (random as u16 | 1, 80);
                let passed = world.send(&tcp(path, ports, numbers, (0x10, 0)));
                flood_passed += u32::from(passed && at >= 10);
            }
        }
        (5_000, lost)
    });
    assert!(share < 0.001, "{share} lost: {:?}", world.steps);
    assert!(flood_passed < 15_000, "{flood_passed}: {:?}", world.steps);
    let has_drop = verdicts(&world).iter().any(|row| row.0 == Verdict::Drop);
    assert!(has_drop, "{:?}", world.steps);
}

/// SYNs like those of clients, of which none is followed by an ACK.
#[test]
fn syns_like_those_of_clients_are_challenged_or_limited() {
    let mut world = World::new("warm-up=60s");
    let mut number = 0_u32;
    for _ in 0..10 {
        for _ in 0..5_000 {
            number += 1;
            let client = 0x0b03_0000 + number.wrapping_mul(2_654_435_761) % 0x7000_0000;
            let ports = (1_024 + (number % 60_000) as u16, 443);
            let numbers = (number.wrapping_mul(0x9e37_79b9), 0);
            world.send(&tcp((client, SERVER), ports, numbers, (0x02, 0)));
        }
        world.tick();
    }
    let rules: Vec<&Found> = world
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Rule(found) => Some(&**found),
            _ => None,
        })
        .collect();
    assert_eq!(rules.len(), 1, "{:?}", world.steps);
    assert_eq!(rules[0].spec.verdict, Verdict::Challenge);
    assert_eq!(rules[0].reason, Reason::LikeClients);
    let expression = &rules[0].spec.expression;
    assert_eq!(expression, "tcp and dst host 192.0.2.1 and (dst port 443)");
    let (otherwise, services) = rules[0].otherwise.as_ref().unwrap();
    assert_eq!(services, &[("192.0.2.1".parse().unwrap(), 443)]);
    let Verdict::Limit(limit) = otherwise.verdict else {
        panic!("{otherwise:?}");
    };
    assert_eq!(limit.rate_pps(), 1_000);
    // The limit is in force here, and what is over it is dropped.
    assert!(
        world.floods()[0].covered_percent > 50,
        "{:?}",
        world.floods()
    );
}
