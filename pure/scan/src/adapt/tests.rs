//! The law on simulated networks: a bottleneck drops what exceeds its rate, and answers arrive with
//! a delay.

use std::collections::VecDeque;

use super::*;

/// Time between two observations.
const STEP_NS: u64 = 250_000_000;
/// Steps that an answer takes.
const DELAY: usize = 2;

struct Random(u64);

impl Random {
    /// A number from 0 to 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Network {
    law: AdaptiveRate,
    random: Random,
    /// Part of the probes that are answered.
    share: f64,
    /// Probes that come through in a second.
    capacity: f64,
    now_ns: u64,
    credit: f64,
    sent: u64,
    lost: u64,
    answers: u64,
    in_flight: VecDeque<u64>,
    changes: Vec<RateChange>,
}

impl Network {
    fn new((min, max): (f64, f64), share: f64, capacity: f64, seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            law: AdaptiveRate::new(min, max),
            random: Random(seed),
            share,
            capacity,
            now_ns: 0,
            credit: 0.0,
            sent: 0,
            lost: 0,
            answers: 0,
            in_flight: VecDeque::from(vec![0; DELAY]),
            changes: Vec::new(),
        }
    }

    fn run(&mut self, seconds: u64) {
        let step = STEP_NS as f64 / 1e9;
        for _ in 0..seconds * 1_000_000_000 / STEP_NS {
            self.now_ns += STEP_NS;
            self.credit += self.law.rate() * step;
            let sending = self.credit as u64;
            self.credit -= sending as f64;
            self.sent += sending;
            let through = sending.min((self.capacity * step) as u64);
            self.lost += sending - through;
            let hits = (0..through)
                .filter(|_| self.random.unit() < self.share)
                .count();
            self.in_flight.push_back(hits as u64);
            self.answers += self.in_flight.pop_front().unwrap();
            let change = self.law.observe(self.now_ns, self.sent, self.answers);
            if let Some(change) = change {
                assert_eq!(change.to, self.law.rate());
                self.changes.push(change);
            }
        }
    }

    fn falls(&self) -> usize {
        self.changes.iter().filter(|c| c.share.is_some()).count()
    }

    /// Runs on, and returns the mean rate and the part of the probes that was lost.
    fn measured(&mut self, seconds: u64) -> (f64, f64) {
        let (sent, lost) = (self.sent, self.lost);
        self.run(seconds);
        let sent = (self.sent - sent) as f64;
        (sent / seconds as f64, (self.lost - lost) as f64 / sent)
    }
}

#[test]
fn without_losses_the_rate_reaches_its_maximum_and_stays() {
    for (seed, share) in [
        (1, 0.9),
        (2, 0.3),
        (3, 0.02),
        (4, 0.001),
        (5, 0.0),
        (6, 1.0),
    ] {
        let mut network = Network::new((100.0, 5_000.0), share, f64::MAX, seed);
        network.run(120);
        assert_eq!(network.law.rate(), 5_000.0, "{share}");
        let (mean, _) = network.measured(600);
        assert_eq!(network.falls(), 0, "{share}: {:?}", network.changes);
        assert!((4_999.0..5_001.0).contains(&mean));
    }
}

#[test]
fn at_a_bottleneck_few_probes_are_lost() {
    for seed in 1..=8 {
        for share in [0.9, 0.3, 0.05] {
            let mut network = Network::new((50.0, 100_000.0), share, 2_000.0, seed);
            network.run(120);
            let (mean, lost) = network.measured(600);
            assert!((1_200.0..2_500.0).contains(&mean), "{share}: {mean}");
            // Few answers show small losses late.
            let limit = if share < 0.1 { 0.15 } else { 0.08 };
            assert!(lost < limit, "{share}: {lost}");
            assert!(network.falls() > 0);
        }
    }
}

#[test]
fn the_rate_recovers_when_the_bottleneck_is_gone() {
    for seed in 1..=4 {
        let mut network = Network::new((50.0, 4_000.0), 0.3, 500.0, seed);
        network.run(200);
        let (mean, _) = network.measured(100);
        assert!(mean < 600.0, "{mean}");
        network.capacity = f64::MAX;
        network.run(600);
        assert_eq!(network.law.rate(), 4_000.0, "{:?}", network.changes);
    }
}

#[test]
fn a_network_that_answers_less_is_scanned_at_full_rate_again() {
    let mut network = Network::new((100.0, 2_000.0), 0.5, f64::MAX, 7);
    network.run(60);
    network.share = 0.1;
    network.run(30);
    assert!(network.law.rate() < 2_000.0);
    network.run(300);
    assert_eq!(network.law.rate(), 2_000.0);
}

/// The link is down, for example, or the scanner is blocked for a while.
#[test]
fn while_nothing_is_answered_the_rate_stays_at_its_minimum() {
    for (seed, outage) in [(11, 60), (12, 600), (13, 61), (14, 603)] {
        let mut network = Network::new((100.0, 50_000.0), 0.5, f64::MAX, seed);
        network.run(60);
        assert_eq!(network.law.rate(), 50_000.0);
        network.share = 0.0;
        network.run(30);
        assert_eq!(network.law.rate(), 100.0, "{:?}", network.changes);
        let changes = network.changes.len();
        network.run(outage - 30);
        assert_eq!(network.changes.len(), changes, "{:?}", network.changes);

        (network.share, network.capacity) = (0.5, 2_000.0);
        network.run(60);
        let (mean, lost) = network.measured(600);
        assert!((1_200.0..2_500.0).contains(&mean), "{mean}");
        assert!(lost < 0.08, "{lost}");
    }
}

#[test]
fn rates_stay_within_their_limits_for_any_counts() {
    let mut random = Random(9);
    for _ in 0..200 {
        let (min, max) = (1.0 + random.unit() * 100.0, 1.0 + random.unit() * 1e6);
        let mut law = AdaptiveRate::new(min, max);
        let (mut now, mut sent, mut answers) = (0u64, 0u64, 0u64);
        for _ in 0..300 {
            now += (random.unit() * 1e9) as u64;
            // More answers than probes, and counts that fall, are possible at a resumed scan.
            sent =
                (sent + (random.unit() * 1e4) as u64).saturating_sub((random.unit() * 10.0) as u64);
            answers += (random.unit() * random.unit() * 1e4) as u64;
            law.observe(now, sent, answers);
            assert!((min.min(max)..=max).contains(&law.rate()), "{law:?}");
        }
    }
}
