//! Floods that change while there is a rule against them, and floods over a whole network.

use super::world::{World, udp};

const SERVER: u32 = 0xc000_0201;
const FLOOD_PPS: u32 = 15_000;
const GOOD_PPS: u32 = 200;
/// How long the flood stays the same, and within which time it must be covered again.
const SAME_SECONDS: u64 = 7;
const COVERED_SECONDS: u64 = 5;

/// A query of a client, from all over the Internet.
fn good(world: &mut World, server: u32) -> Vec<u8> {
    let number = world.below(1 << 30);
    let source = 0x0b00_0000 + number.wrapping_mul(2_654_435_761) % 0x7000_0000;
    let mut payload = (number as u16).to_be_bytes().to_vec();
    payload.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    payload.extend(b"\x03www\x07example\x03org\0\0\x01\0\x01");
    let ttl = 40 + (number % 24) as u8;
    udp(
        source,
        server,
        (1_024 + number as u16 % 60_000, 53),
        ttl,
        &payload,
    )
}

/// A second of the flood and of clients; the share of the flood that passes, and the clients'
/// packets that are lost.
fn second(world: &mut World, flood: &mut dyn FnMut(&mut World) -> Vec<u8>) -> (f64, u32) {
    let (mut passed, mut lost) = (0, 0);
    for number in 0..FLOOD_PPS {
        let packet = flood(world);
        passed += u32::from(world.send(&packet));
        if number % (FLOOD_PPS / GOOD_PPS) == 0 {
            let packet = good(world, SERVER);
            lost += u32::from(!world.send(&packet));
        }
    }
    world.tick();
    (f64::from(passed) / f64::from(FLOOD_PPS), lost)
}

/// What changes from one shape of the flood to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Sources,
    Ports,
    Payload,
}

fn flood(world: &mut World, change: Change, shape: u32) -> Vec<u8> {
    let random = world.below(1 << 30);
    let source = match change {
        Change::Sources => 0xc612_0000 + shape * 0x0001_0000 + random % 0x4000,
        _ => 0x0b00_0000 + random.wrapping_mul(2_654_435_761) % 0x7000_0000,
    };
    let ports = match change {
        Change::Ports => (2_000 + shape as u16 * 111, 53),
        _ => (1_024 + (random >> 7) as u16 % 60_000, 53),
    };
    let mut payload = vec![0; 41];
    for byte in &mut payload {
        *byte = world.below(256) as u8;
    }
    if change == Change::Payload {
        payload[..8].copy_from_slice(format!("shape{shape:03}").as_bytes());
    }
    udp(source, SERVER, ports, 40 + (random % 24) as u8, &payload)
}

/// Learns what is normal.
fn learned() -> World {
    let mut world = World::new("warm-up=10s");
    for _ in 0..20 {
        for _ in 0..GOOD_PPS {
            let packet = good(&mut world, SERVER);
            world.send(&packet);
        }
        world.tick();
    }
    assert_eq!(world.words(), ["learned"], "{:?}", world.steps);
    world
}

fn is_covered_again(change: Change) {
    let mut world = learned();
    for shape in 0..6 {
        for at in 0..SAME_SECONDS {
            let mut packet = |world: &mut World| flood(world, change, shape);
            let (passed, lost) = second(&mut world, &mut packet);
            let context = format!(
                "{change:?} {shape}, second {at}: {:?} {:?}",
                world.steps,
                world.found()
            );
            assert!(
                at < COVERED_SECONDS || passed < 0.02,
                "{passed} passed: {context}"
            );
            assert_eq!(lost, 0, "{context}");
        }
        // The share is reported.
        let floods = world.floods();
        assert_eq!(floods.len(), 1, "{floods:?}");
        assert!(floods[0].covered_percent >= 98, "{floods:?}");
        assert!(
            !floods[0].rules.is_empty() && floods[0].rules.len() <= 2,
            "{floods:?}"
        );
        assert!(
            floods[0].dropped_pps > u64::from(FLOOD_PPS) / 2,
            "{floods:?}"
        );
    }
    // One flood, whatever its shape; rules that no longer match are gone.
    let words = world.words();
    let count = |word| words.iter().filter(|w| **w == word).count();
    assert_eq!(count("begins"), 1, "{words:?}");
    assert!(world.found().len() <= 2, "{words:?}");
    // It ends, and so do its rules.
    for _ in 0..40 {
        for _ in 0..GOOD_PPS {
            let packet = good(&mut world, SERVER);
            assert!(world.send(&packet));
        }
        world.tick();
    }
    let words = world.words();
    assert_eq!(
        words.iter().filter(|w| **w == "over").count(),
        1,
        "{words:?}"
    );
    assert!(
        world.found().is_empty() && world.floods().is_empty(),
        "{words:?}"
    );
}

#[test]
fn a_flood_whose_sources_move_is_covered_again() {
    is_covered_again(Change::Sources);
}

#[test]
fn a_flood_whose_ports_change_is_covered_again() {
    is_covered_again(Change::Ports);
}

#[test]
fn a_flood_whose_payload_changes_is_covered_again() {
    is_covered_again(Change::Payload);
}

/// Everything changes each time.
#[test]
fn a_flood_of_another_kind_is_covered_again() {
    let mut world = learned();
    let changes = [Change::Sources, Change::Payload, Change::Ports];
    for shape in 0..6 {
        for at in 0..SAME_SECONDS {
            let change = changes[shape as usize % changes.len()];
            let (passed, lost) = second(&mut world, &mut |world| flood(world, change, shape));
            let context = format!("{shape}, second {at}: {:?}", world.steps);
            assert!(
                at < COVERED_SECONDS || passed < 0.02,
                "{passed} passed: {context}"
            );
            assert_eq!(lost, 0, "{context}");
        }
    }
}

/// 15,000 packets a second over 254 addresses, of which none gets more than 60.
#[test]
fn a_flood_of_a_whole_network_is_one_flood_with_a_rule() {
    for (net, of) in [
        (0xc633_6400_u32, "packets to 198.51.100.0/24"),
        // Over more than a network.
        (0, "packets to all addresses"),
    ] {
        let mut world = World::new("warm-up=10s");
        let host = |world: &mut World| match net {
            0 => 0xc633_0000 + world.below(0xffff),
            net => net + 1 + world.below(254),
        };
        let mut lost = 0;
        for at in 0..40 {
            for number in 0..FLOOD_PPS {
                if number % (FLOOD_PPS / GOOD_PPS) == 0 {
                    let server = host(&mut world);
                    let packet = good(&mut world, server);
                    lost += u32::from(!world.send(&packet));
                }
                if at >= 20 {
                    let (random, server) = (world.below(1 << 30), host(&mut world));
                    let source = 0x0b00_0000 + random.wrapping_mul(2_654_435_761) % 0x7000_0000;
                    let ports = (1_024 + (random >> 7) as u16 % 60_000, 4_000);
                    let ttl = 40 + (random % 24) as u8;
                    world.send(&udp(source, server, ports, ttl, &[b'x'; 41]));
                }
            }
            world.tick();
        }
        assert_eq!(
            world.words(),
            ["learned", "begins", "rule"],
            "{:?}",
            world.steps
        );
        let floods = world.floods();
        assert_eq!(floods[0].of, of);
        assert!(floods[0].covered_percent >= 98, "{floods:?}");
        assert_eq!(lost, 0, "{:?}", world.found());
    }
}

/// A flood of one address is one of that address, not of its network.
#[test]
fn a_flood_of_one_address_is_reported_once() {
    let mut world = learned();
    for _ in 0..10 {
        second(&mut world, &mut |world| flood(world, Change::Sources, 0));
    }
    assert_eq!(
        world.words(),
        ["learned", "begins", "rule"],
        "{:?}",
        world.steps
    );
    assert_eq!(world.floods()[0].of, "packets to 192.0.2.1");
    // After it, the rates of the network and the interface are what they were.
    for _ in 0..90 {
        for _ in 0..GOOD_PPS {
            let packet = good(&mut world, SERVER);
            world.send(&packet);
        }
        world.tick();
    }
    let words = ["learned", "begins", "rule", "over", "remove"];
    assert_eq!(world.words(), words, "{:?}", world.steps);
}
