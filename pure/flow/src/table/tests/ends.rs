//! When flows end, and which one is evicted.

use super::*;

/// A closed connection is evicted before an open one.
#[test]
fn the_flow_closest_to_its_timeout_is_evicted() {
    let hash_key = HashKey::from_seed(1);
    let mut table = Table::new(&TableConfig {
        flow_count_max: 2,
        ..TableConfig::default()
    })
    .unwrap();
    let none = &mut |record: &Record, _| panic!("{record:?} ended");
    table.observe(&[packet(&hash_key, 1, 2, 1, 6, S)], none);
    let mut reset = packet(&hash_key, 1, 2, 2, 6, 2 * S);
    reset.level.tcp_flags = 4;
    table.observe(&[reset], none);
    let mut ended = Vec::new();
    table.observe(
        &[packet(&hash_key, 1, 2, 3, 6, 2 * S)],
        &mut |r: &Record, _| ended.push(*r.key()),
    );
    assert_eq!(ended, [reset.key]);
}

#[test]
fn idle_flows_end_without_packets() {
    let hash_key = HashKey::from_seed(1);
    let mut table = Table::new(&TableConfig {
        flow_count_max: 1 << 16,
        ..TableConfig::default()
    })
    .unwrap();
    let mut ended = Vec::new();
    let start = 1_700_000_000 * S;
    for i in 0..1000 {
        table.observe(
            &[packet(&hash_key, 1, 2, i, 17, start)],
            &mut |_: &Record, _| panic!(),
        );
    }
    for tenth in 0..290 {
        table.tick(start + tenth * S / 10, &mut |_: &Record, _| {
            panic!("too early")
        });
    }
    for tenth in 290..335 {
        table.tick(start + tenth * S / 10, &mut |_: &Record, reason| {
            ended.push(reason)
        });
    }
    assert_eq!(ended, [EndReason::Idle; 1000]);
    // A pause longer than the range of the deadlines ends them too, if late.
    table.observe(
        &[packet(&hash_key, 1, 2, 3, 17, start + 40 * S)],
        &mut |_: &Record, _| panic!(),
    );
    let mut count = 0;
    for hour in 1..5 {
        table.tick(start + hour * 3600 * S, &mut |_: &Record, _| count += 1);
    }
    assert_eq!(count, 1);
}

/// A flow that outlives the maximum deadline is checked more than once.
#[test]
fn timeouts_over_an_hour_end_flows_on_time() {
    let (hash_key, start, minute) = (HashKey::from_seed(1), 1_700_000_000 * S, 60 * S);
    for (active, idle, reason) in [
        (1440, 59, EndReason::Idle),
        (1440, 61, EndReason::Idle),
        (1440, 90, EndReason::Idle),
        (1440, 121, EndReason::Idle),
        (1440, 1439, EndReason::Idle),
        (61, 1440, EndReason::Active),
        (200, 1440, EndReason::Active),
    ] {
        let mut config = TableConfig {
            flow_count_max: 64,
            ..TableConfig::default()
        };
        config.timeouts.active_ns = active * minute;
        config.timeouts.set_idle_ns(idle * minute);
        let mut table = Table::new(&config).unwrap();
        table.observe(
            &[packet(&hash_key, 1, 2, 3, 17, start)],
            &mut |_: &Record, _| panic!(),
        );
        let mut ended = Vec::new();
        for passed in 1..=1500 {
            table.tick(start + passed * minute, &mut |_: &Record, reason| {
                ended.push((passed, reason));
            });
        }
        // The first tick after the timeout.
        assert_eq!(ended, [(active.min(idle) + 1, reason)], "{active} {idle}");
    }
}

/// A flow that is never idle is split by the active timeout, exact to the nanosecond.
#[test]
fn the_active_timeout_is_exact() {
    let hash_key = HashKey::from_seed(1);
    let mut config = TableConfig {
        flow_count_max: 16,
        ..TableConfig::default()
    };
    config.timeouts.active_ns = 2 * S;
    let mut table = Table::new(&config).unwrap();
    let mut ended = Vec::new();
    let start = 1_700_000_000 * S;
    let times = [0, S, 2 * S, 2 * S + 1, 4 * S + 1, 4 * S + 2, 5 * S];
    for time in times {
        table.observe(
            &[packet(&hash_key, 1, 2, 1, 17, start + time)],
            &mut |r: &Record, reason| ended.push((r.packets(), r.duration_ns(), reason)),
        );
    }
    let active = EndReason::Active;
    assert_eq!(ended, [(3, 2 * S, active), (2, 2 * S, active)]);
    for i in 0..100_000 {
        table.observe(
            &[packet(
                &hash_key,
                1,
                2,
                2,
                17,
                start + 10 * S + i * S / 1000,
            )],
            &mut |r: &Record, _| assert!(r.duration_ns() <= 2 * S),
        );
    }
    // The last record of the first flow ends without a packet.
    assert_eq!(table.stats.ended[active as usize], 2 + 1 + 49);
}

/// A single packet with a time far ahead does not split all flows.
#[test]
fn a_clock_that_jumped_ahead_does_no_harm() {
    let hash_key = HashKey::from_seed(1);
    let mut table = Table::new(&TableConfig::default()).unwrap();
    let mut ended = Vec::new();
    let mut sink = |r: &Record, reason: EndReason| ended.push((r.packets(), reason));
    let start = 1_700_000_000 * S;
    table.observe(&[packet(&hash_key, 1, 2, 1, 17, start)], &mut sink);
    table.observe(&[packet(&hash_key, 3, 4, 1, 17, start * 2)], &mut sink);
    for i in 0..100 {
        table.observe(&[packet(&hash_key, 1, 2, 1, 17, start + i)], &mut sink);
    }
    table.finish(&mut sink);
    ended.sort_by_key(|(packets, _)| *packets);
    let forced = EndReason::Forced;
    assert_eq!(ended, [(1, EndReason::Idle), (1, forced), (100, forced)]);
    assert_eq!(table.stats.late, 100);
}

/// If only packets far behind the clock arrive, the clock was wrong.
#[test]
fn a_clock_that_was_wrong_is_set_back() {
    let hash_key = HashKey::from_seed(1);
    let mut table = Table::new(&TableConfig::default()).unwrap();
    let mut ended = Vec::new();
    let start = 1_700_000_000 * S;
    let mut sink = |r: &Record, reason: EndReason| ended.push((r.packets(), reason));
    table.observe(&[packet(&hash_key, 3, 4, 1, 17, start * 2)], &mut sink);
    for i in 0..2000 {
        let time = start + i * S / 1000;
        table.observe(&[packet(&hash_key, 1, 2, 1, 17, time)], &mut sink);
    }
    assert_eq!((table.stats.set_back, table.stats.late), (1, 1024));
    check(&table);
    // Silence is noticed again.
    table.observe(&[packet(&hash_key, 1, 2, 9, 17, start + 60 * S)], &mut sink);
    table.tick(start + 62 * S, &mut sink);
    assert!(ended.contains(&(2000, EndReason::Idle)));
}
