//! The guard's limits in the kernel on packets that arrive at random times: the program in the
//! interpreter, at the same times, passes as many.

use std::time::Duration;

use guard::{Limit, Rule, SourceLimit, Verdict};
use lab::random::Random;
use lab::{require, skip};
use sys::clock::monotonic_ns;
use xdp::GuardHook;

use crate::guard_interpreted::Both;

const PASS: u32 = 2;
const SOURCES: u64 = 64;
const RATE: u32 = 10;
const SECONDS: u64 = 4;

fn packet(source: u8) -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend([10, 0, 0, source, 10, 1, 0, 1, 0, 1, 0, 2, 0, 8, 0, 0]);
    packet
}

/// Times of a Poisson process, each with a source.
fn arrivals(random: &mut Random) -> Vec<(u64, u8)> {
    let mean_ns = 1e9 / (2.0 * f64::from(RATE) * SOURCES as f64);
    let mut times = Vec::new();
    let mut now = 0.0;
    while now < SECONDS as f64 * 1e9 {
        let share = (random.below(1 << 40) as f64 + 0.5) / (1_u64 << 40) as f64;
        now -= share.ln() * mean_ns;
        times.push((now as u64, random.below(SOURCES) as u8));
    }
    times
}

fn rule(name: &str, verdict: Verdict) -> Rule {
    Rule::new(name, verdict)
}

/// The times are those at which packets really come, so a busy machine changes nothing.
#[test]
fn limits_pass_as_many_in_the_kernel_as_in_the_interpreter() {
    require!(skip::lab());
    let mut random = Random::seeded("guard, limits");
    let limit = |rate| Limit::new(rate, Limit::burst_of(rate)).unwrap();
    let source = SourceLimit::new(limit(RATE), 32, 64).unwrap();
    let total = limit(RATE * SOURCES as u32);
    for verdict in [
        Verdict::Limit(total),
        Verdict::LimitSources(source, None),
        Verdict::LimitSources(source, Some(total)),
    ] {
        let mut both = Both::new(&[rule("limit", verdict)], false, GuardHook::Xdp);
        let began = monotonic_ns();
        let (mut ours, mut kernels, mut sent) = (0_u64, 0_u64, 0_u64);
        for (at, source) in arrivals(&mut random) {
            let early = (began + at).saturating_sub(monotonic_ns());
            if early > 0 {
                std::thread::sleep(Duration::from_nanos(early));
            }
            let passed = both.run_at(&packet(source), monotonic_ns());
            ours += u64::from(passed.0 == PASS);
            kernels += u64::from(passed.1 == PASS);
            sent += 1;
        }
        // A packet near the moment at which the next one is due may pass in one of both.
        let context = format!("{verdict}: {ours} and {kernels} of {sent}");
        assert!(ours.abs_diff(kernels) * 50 <= ours, "{context}");
        assert!(ours > sent / 3 && ours < sent, "{context}");
    }
}
