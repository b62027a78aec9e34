//! The schedule under a simulated clock.

use super::*;
use crate::rng::Rng;

fn rate(text: &str, on_wire: bool) -> Pacer {
    let rate = Rate::parse(text).unwrap();
    Pacer::new(Pace::Rate { rate, on_wire })
}

/// A sender that reads the clock every `step_ns`, and occasionally pauses for `pause_ns`.
fn simulate(
    pacer: &mut Pacer,
    lens: &[usize],
    duration_ns: u64,
    step_ns: u64,
    pause_ns: u64,
) -> (u64, u64) {
    let (mut packets, mut bytes) = (0u64, 0u64);
    let (mut now, mut rng, mut pause_at) = (0u64, Rng::new(11), 40_000_000);
    while now < duration_ns {
        pacer.slip(now);
        while pacer.due_ns() <= now {
            let len = lens[packets as usize % lens.len()];
            pacer.sent(len);
            packets += 1;
            bytes += len as u64;
        }
        now += rng.up_to(2 * u128::from(step_ns)) as u64;
        if pause_ns != 0 && now > pause_at {
            now += pause_ns;
            pause_at += 40_000_000;
        }
    }
    (packets, bytes)
}

fn within(value: f64, wanted: f64, part: f64) {
    let off = (value - wanted).abs() / wanted;
    assert!(
        off <= part,
        "{value} instead of {wanted}: off by {:.3} %",
        off * 100.0
    );
}

#[test]
fn packet_rates_are_held() {
    for (text, wanted) in [
        ("1.2Mpps", 1.2e6),
        ("7pps", 7.0),
        ("333kpps", 333e3),
        ("14.88Mpps", 14.88e6),
    ] {
        let ns = if wanted < 100.0 {
            100_000_000_000
        } else {
            1_000_000_000
        };
        let step = if wanted < 100.0 { 1_000_000 } else { 20_000 };
        let (packets, _) = simulate(&mut rate(text, false), &[60], ns, step, 0);
        within(packets as f64 / (ns as f64 / 1e9), wanted, 0.003);
    }
}

#[test]
fn pauses_are_caught_up() {
    // 10 ms away in every 40: a rate that the rest of the time can carry is held all the same.
    let mut pacer = rate("1Mpps", false);
    let (packets, _) = simulate(&mut pacer, &[60], 2_000_000_000, 20_000, 10_000_000);
    within(packets as f64 / 2.0, 1e6, 0.01);
    assert_eq!(pacer.slipped_ns(), 0);
}

#[test]
fn bit_rates_count_the_documented_bytes() {
    let lens = [60, 590, 60, 1514, 60, 60, 590];
    let (_, bytes) = simulate(&mut rate("800Mbps", false), &lens, 1_000_000_000, 10_000, 0);
    within(bytes as f64 * 8.0, 800e6, 0.003);
    // 10 Gbit/s of wire are 14.88 Mpps of the shortest packets, and of those below the shortest.
    for len in [60, 42] {
        let (packets, _) = simulate(&mut rate("10Gbps", true), &[len], 100_000_000, 10_000, 0);
        within(packets as f64 * 10.0, 10e9 / (84.0 * 8.0), 0.003);
    }
}

#[test]
fn no_drift_over_a_day() {
    let mut pacer = rate("3pps", false);
    for _ in 0..3 * 86_400 {
        pacer.sent(60);
    }
    let day = 86_400_000_000_000u64;
    assert!(pacer.due_ns().abs_diff(day) < 200_000, "{}", pacer.due_ns());
}

#[test]
fn a_long_pause_is_skipped_and_counted() {
    let mut pacer = rate("1kpps", false);
    pacer.slip(0);
    pacer.sent(60);
    pacer.slip(5_000_000_000);
    assert_eq!(pacer.due_ns(), 4_900_000_000);
    assert_eq!(pacer.slipped_ns(), 4_899_000_000);
    let mut max = Pacer::new(Pace::Max);
    max.slip(u64::MAX);
    assert_eq!((max.due_ns(), max.slipped_ns()), (0, 0));
}

fn capture(pacer: &mut Pacer, times: &[u64]) -> Vec<u64> {
    let due = |time: &u64| {
        pacer.next_time(*time);
        let due = pacer.due_ns();
        pacer.sent(100);
        due
    };
    times.iter().map(due).collect()
}

#[test]
fn original_gaps_are_scaled_capped_and_never_negative() {
    let times = [5_000, 5_000, 9_000, 8_000, 10_000, 1_000_010_000];
    let original = |multiplier, gap_max_ns| {
        Pacer::new(Pace::Original {
            multiplier,
            gap_max_ns,
        })
    };
    let mut pacer = original(1.0, u64::MAX);
    assert_eq!(
        capture(&mut pacer, &times),
        [0, 0, 4_000, 4_000, 5_000, 1_000_005_000]
    );
    assert_eq!(
        capture(&mut original(2.0, u64::MAX), &times)[..3],
        [0, 0, 2_000]
    );
    assert_eq!(
        capture(&mut original(0.5, u64::MAX), &times)[..3],
        [0, 0, 8_000]
    );
    assert_eq!(capture(&mut original(1.0, 10_000), &times)[5], 15_000);
    // The next round starts one mean gap (of five) later and repeats the first.
    pacer.rewind();
    let again = capture(&mut pacer, &times);
    assert_eq!(again[0], 1_000_005_000 + 1_000_005_000 / 5);
    assert_eq!(again[5] - again[0], 1_000_005_000);
}
