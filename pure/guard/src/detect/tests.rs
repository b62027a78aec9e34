//! Floods on simulated time, with one tick per second.

use super::*;

const S: u64 = 1_000_000_000;
const WEB: u32 = 80;
const MAIL: u32 = 25;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// A detector, its clock, and its events: the second, the subject, whether the flood begins.
struct Run {
    detector: Detector<u32>,
    second: u64,
    events: Vec<(u64, Subject<u32>, bool)>,
}

impl Run {
    fn new(settings: Settings) -> Run {
        Run {
            detector: Detector::new(settings, 7 * S),
            second: 0,
            events: Vec::new(),
        }
    }

    /// Runs for `count` seconds with these rates.
    fn seconds(&mut self, count: u64, mut rates: impl FnMut(u64) -> Vec<(u32, u64)>) {
        for _ in 0..count {
            for (key, packets) in rates(self.second) {
                self.detector.add(&key, packets);
            }
            self.second += 1;
            for event in self.detector.tick((7 + self.second) * S) {
                self.events.push((self.second, event.subject, event.begins));
            }
        }
    }
}

fn noisy(random: &mut Random, rate: u64) -> u64 {
    rate / 2 + random.below(rate + 1)
}

#[test]
fn normal_traffic_is_not_a_flood() {
    let mut random = Random(1);
    let mut run = Run::new(Settings::default());
    // A day: the rate follows the hours between 2,000 and 10,000 a second, with bursts of one
    // second.
    run.seconds(86_400, |second| {
        let hour = (second as f64 / 86_400.0 * std::f64::consts::TAU).sin();
        let rate = (6_000.0 + 4_000.0 * hour) as u64;
        let burst = if random.below(500) == 0 { 100_000 } else { 0 };
        vec![
            (WEB, noisy(&mut random, rate) + burst),
            (MAIL, random.below(30)),
        ]
    });
    assert_eq!(run.events, []);
}

#[test]
fn a_flood_begins_once_and_ends_once() {
    let mut random = Random(2);
    let mut run = Run::new(Settings::default());
    let mut normal = |_| vec![(WEB, noisy(&mut random, 3_000)), (MAIL, 10)];
    run.seconds(600, &mut normal);
    let before = run.detector.normal_pps(&Subject::Key(WEB)).unwrap();
    assert!((2_800.0..3_200.0).contains(&before), "{before}");
    // An hour of it, with pauses that are shorter than what ends it.
    run.seconds(3_600, |second| {
        let is_pause = (second + 20) % 60 < 20;
        vec![(WEB, if is_pause { 3_000 } else { 300_000 }), (MAIL, 10)]
    });
    assert!(run.detector.is_flood(&Subject::Key(WEB)));
    assert!(!run.detector.is_flood(&Subject::Key(MAIL)));
    // It was not learned.
    assert_eq!(run.detector.normal_pps(&Subject::Key(WEB)), Some(before));
    run.seconds(600, &mut normal);
    let web = Subject::Key(WEB);
    // It begins at 600, and its last second before a pause is 4179.
    assert_eq!(run.events, [(603, web, true), (4_210, web, false)]);
    let after = run.detector.normal_pps(&web).unwrap();
    assert!((2_700.0..3_300.0).contains(&after), "{after}");
}

#[test]
fn packets_of_several_keys_belong_to_the_rest_once() {
    let settings = Settings {
        key_count_max: 1,
        ..Settings::default()
    };
    let mut detector = Detector::new(settings, 0);
    assert!(detector.add_key(&WEB, 5));
    assert!(!detector.add_key(&MAIL, 5));
    assert!(!detector.add_key(&(MAIL + 1), 5));
    detector.add_rest(5);
    detector.add(&MAIL, 2);
    assert_eq!(detector.tick(S), []);
    assert_eq!(detector.normal_pps(&Subject::Key(WEB)), Some(5.0));
    assert_eq!(detector.normal_pps(&Subject::Rest), Some(7.0));
}

#[test]
fn one_long_interval_does_not_end_a_flood() {
    let mut run = Run::new(Settings::default());
    run.seconds(600, |_| vec![(WEB, 1_000)]);
    run.seconds(10, |_| vec![(WEB, 50_000)]);
    let web = Subject::Key(WEB);
    assert!(run.detector.is_flood(&web));
    // The caller was held up for a minute, and its counts are incomplete.
    run.second += 59;
    run.seconds(1, |_| vec![(WEB, 6_000)]);
    assert!(run.detector.is_flood(&web));
    run.seconds(10, |_| vec![(WEB, 50_000)]);
    assert_eq!(run.events, [(603, web, true)]);
}

#[test]
fn a_new_key_is_compared_with_the_minimum_rate() {
    let mut run = Run::new(Settings::default());
    run.seconds(100, |_| vec![(WEB, 500)]);
    run.seconds(10, |_| vec![(WEB, 500), (MAIL, 1_001)]);
    assert_eq!(run.events, [(103, Subject::Key(MAIL), true)]);
    // Up to the least rate nothing is a flood, however far from normal.
    run.seconds(10, |_| vec![(WEB, 500), (1, 1_000)]);
    assert_eq!(run.events.len(), 1);
}

#[test]
fn while_learning_only_rates_above_the_maximum_are_floods() {
    let settings = Settings {
        rate_most_pps: 50_000.0,
        ..Settings::default()
    };
    let mut run = Run::new(settings);
    run.seconds(60, |_| vec![(WEB, 40_000), (MAIL, 60_000)]);
    assert_eq!(run.events, [(3, Subject::Key(MAIL), true)]);
    // What was there from the start is normal up to that rate.
    run.seconds(60, |_| vec![(WEB, 45_000)]);
    assert!(!run.detector.is_flood(&Subject::Key(WEB)));
    run.seconds(10, |_| vec![(WEB, 51_000)]);
    assert!(run.detector.is_flood(&Subject::Key(WEB)));
}

#[test]
fn excess_keys_are_bounded_and_flood_as_the_rest() {
    let mut random = Random(3);
    let settings = Settings {
        key_count_max: 100,
        ..Settings::default()
    };
    let mut run = Run::new(settings);
    run.seconds(100, |_| vec![(WEB, 2_000)]);
    // Ten thousand destinations, hardly one twice.
    run.seconds(20, |_| {
        let keys = (0..10_000).map(|_| (1_000 + random.below(1 << 30) as u32, 1));
        keys.chain([(WEB, 2_000)]).collect()
    });
    assert_eq!(run.events, [(103, Subject::Rest, true)]);
    assert!(run.detector.key_count() <= 100);
    run.seconds(100, |_| vec![(WEB, 2_000)]);
    assert_eq!(run.events[1].1, Subject::Rest);
    assert!(!run.events[1].2);
    // What is normal stays in the table; the others leave it.
    assert_eq!(run.detector.normal_pps(&Subject::Key(WEB)), Some(2_000.0));
    assert!(run.detector.key_count() <= 50);
}

#[test]
fn begin_and_end_alternate_for_any_counts_and_clocks() {
    let mut random = Random(4);
    for _ in 0..50 {
        let settings = Settings {
            rate_least_pps: random.below(100) as f64,
            learn_ns: random.below(100) * S,
            warm_up_ns: random.below(20) * S,
            begin_ns: random.below(5) * S,
            end_ns: random.below(5) * S,
            key_count_max: random.below(6) as usize,
            ..Settings::default()
        };
        let mut detector = Detector::new(settings, 0);
        let mut now_ns = 0;
        let mut floods = Vec::new();
        for _ in 0..500 {
            for _ in 0..random.below(5) {
                let packets = [1, 1_000, u64::MAX][random.below(3) as usize];
                detector.add(&(random.below(8) as u32), packets);
            }
            now_ns = match random.below(10) {
                0 => now_ns / 2,
                _ => now_ns + random.below(2 * S),
            };
            for event in detector.tick(now_ns) {
                let position = floods.iter().position(|subject| *subject == event.subject);
                match (event.begins, position) {
                    (true, None) => floods.push(event.subject),
                    (false, Some(at)) => drop(floods.remove(at)),
                    _ => panic!("{event:?}: {floods:?}"),
                }
                assert!(event.rate_pps.is_finite() && event.normal_pps.is_finite());
            }
            assert!(detector.key_count() <= settings.key_count_max);
            assert!(floods.iter().all(|subject| detector.is_flood(subject)));
        }
    }
}

#[test]
fn a_flood_that_is_taken_back_begins_again_only_if_the_rate_stays_high() {
    let mut run = Run::new(Settings::default());
    run.seconds(100, |_| vec![(WEB, 200), (MAIL, 200)]);
    run.seconds(3, |_| vec![(WEB, 5_000), (MAIL, 5_000)]);
    let (web, mail) = (Subject::Key(WEB), Subject::Key(MAIL));
    assert_eq!(run.detector.flood_pps(&web), Some(1_000.0));
    run.detector.retract(&WEB);
    run.detector.retract(&MAIL);
    assert_eq!(run.detector.flood_pps(&web), None);
    // No end of a flood that was taken back.
    run.seconds(60, |_| vec![(WEB, 200), (MAIL, 5_000)]);
    let begun = [(103, MAIL), (103, WEB), (106, MAIL)];
    let begun = begun.map(|(second, key)| (second, Subject::Key(key), true));
    assert_eq!(run.events, begun);
    assert!(run.detector.is_flood(&mail) && !run.detector.is_flood(&web));
}

#[test]
fn nothing_is_learned_of_a_key_that_is_held() {
    let settings = Settings::default();
    let mut detector = Detector::new(settings, 0);
    let mut second = 0;
    let mut run = |count: u64, packets: u64, is_held: bool| {
        let mut begun = 0;
        for _ in 0..count {
            detector.add(&WEB, packets);
            second += 1;
            begun += detector.tick_holding(second * S, |_| is_held).len();
        }
        (begun, detector.normal_pps(&Subject::Key(WEB)).unwrap())
    };
    let (_, before) = run(200, 2_000, false);
    assert_eq!(run(3_600, 10, true), (0, before));
    // A flood of it begins nevertheless.
    assert_eq!(run(3, 20_000, true), (1, before));
}
