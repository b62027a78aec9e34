//! The part of `paths` that runs in the guest: cards in a row, a generator on the first, and a
//! program that receives on the second, or forwards from there to the third. Results go to standard
//! output, one value per line, for [the scenario](crate::scenario) that has started the guest.

mod capture;
mod cards;
mod forward;
mod generator;
mod receive;
mod spare;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use cards::Cards;
use generator::{Generator, Load};
use spare::Spare;

/// The generator's processor.
const GENERATOR_CPU: usize = 0;
/// The processor of the measured program: program, interrupts and kernel packet threads.
const CPU: usize = 1;
/// Bytes of a packet, without FCS.
const LEN: usize = 60;
/// Packets per burst while the cost is measured, and packets per second.
const BURST: usize = 64;
const COST_PPS: u32 = 51_200;
/// Time under load before counting starts.
const WARM_UP: Duration = Duration::from_millis(400);
/// How long packets may take to pass after something was opened: links take seconds to come up.
const LINK_LIMIT: Duration = Duration::from_secs(60);
/// A candidate that delivers less than this share of its result at a lower rate is past its peak.
const PAST: f64 = 0.7;
/// If fewer than this share are delivered, the cost per packet is meaningless.
const CARRIED: f64 = 0.99;

/// Maximum number of loads per candidate.
pub const LOADS: usize = Load::RATES.len();

/// What to measure, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What to measure.
    pub what: What,
    /// Number of runs per candidate.
    pub rounds: usize,
    /// Seconds of load.
    pub seconds: f64,
}

/// The quantity measured for each candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Packets per second.
    Rates,
    /// Processor time per packet, for a clock that counts instructions.
    Cost,
}

/// A running candidate.
struct Running {
    /// Number of packets delivered so far.
    delivered: Box<dyn Fn() -> Result<u64>>,
    /// Ends it; returns its counters.
    stop: Box<dyn FnOnce() -> Result<Option<String>>>,
    /// MAC address and UDP port to send packets to.
    destination_mac: [u8; 6],
}

/// A candidate to measure.
struct Subject {
    label: &'static str,
    /// `receive`, `capture` or `forward`.
    table: &'static str,
    start: fn(&Cards) -> Result<Running>,
}

/// No receiver: the second card is down.
const NOBODY: Subject = Subject {
    label: "nobody",
    table: "base",
    start: |_| {
        Ok(Running {
            delivered: Box::new(|| Ok(0)),
            stop: Box::new(|| Ok(None)),
            destination_mac: receive::ANOTHER,
        })
    },
};

impl Subject {
    fn is_measured(&self) -> bool {
        self.table != NOBODY.table
    }
}

/// Measures all candidates in turn.
pub fn run(plan: Plan) -> Result<()> {
    let is_guest = lab::guest::inside();
    ensure!(
        is_guest.is_ok(),
        "this is for the guest: `cargo xtask bench paths`"
    );
    sys::affinity::pin_current_thread(GENERATOR_CPU)?;
    let cards = Cards::find()?;
    cards.to_vfio(0)?;
    let mut generator = Generator::open(&cards)?;
    for _ in 0..plan.rounds {
        let all = receive::SUBJECTS.iter().chain(forward::SUBJECTS);
        let is_cost = plan.what == What::Cost;
        // What a capturing program can do at most is mostly limited by the emulation.
        let captures = if is_cost { capture::SUBJECTS } else { &[] };
        let all = all.chain(captures);
        let first = is_cost.then_some(&NOBODY);
        for subject in first.into_iter().chain(all) {
            if let Err(error) = one(&plan, subject, &cards, &mut generator) {
                println!("refused\t{}\t{}\t{error:#}", subject.table, subject.label);
            }
        }
    }
    drop(generator);
    cards.to_kernel(0)
}

fn one(plan: &Plan, subject: &Subject, cards: &Cards, generator: &mut Generator) -> Result<()> {
    cards.reset()?;
    let running = (subject.start)(cards)?;
    generator.address(running.destination_mac);
    let result = measure(plan, subject, &running, generator);
    let reported = (running.stop)()?;
    if let Some(reported) = reported {
        println!("note\t{}: {reported}", subject.label);
    }
    result
}

fn measure(
    plan: &Plan,
    subject: &Subject,
    running: &Running,
    generator: &mut Generator,
) -> Result<()> {
    let delivered = &running.delivered;
    // Links come and go while drivers start up: packets pass or they do not.
    let since = Instant::now();
    let before = delivered()?;
    while subject.is_measured() && delivered()? == before {
        ensure!(since.elapsed() < LINK_LIMIT, "no packet passes");
        generator.put(8)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    match plan.what {
        What::Rates => rates(plan, subject, delivered, generator),
        What::Cost => cost(plan, subject, delivered, generator),
    }
}

fn say(what: &str, subject: &Subject, value: f64) {
    println!(
        "value\t{what}-{}\t{}\t{value}",
        subject.table, subject.label
    );
}

/// An overloaded candidate delivers less than it could, so the result is the best of several rates.
/// Once far fewer arrive twice in a row, only the generator's maximum is left to try.
fn rates(
    plan: &Plan,
    subject: &Subject,
    delivered: &dyn Fn() -> Result<u64>,
    generator: &mut Generator,
) -> Result<()> {
    let (mut best, mut offered) = (0.0_f64, 0.0_f64);
    let mut past = 0;
    for load in Load::RATES {
        if past >= 2 && !matches!(load, Load::Most) {
            continue;
        }
        let got = Window::take(generator, load, plan.seconds, delivered, None)?;
        let rate = got.delivered as f64 / got.elapsed_s;
        past = if rate < PAST * best { past + 1 } else { 0 };
        best = best.max(rate);
        offered = offered.max(got.offered as f64 / got.elapsed_s);
    }
    say("rate", subject, best);
    say("offered", subject, offered);
    Ok(())
}

/// The reduction of the processor's idle time compared with no packets. The generator's own work
/// reduces it too, where the two processors take turns; it is measured without a receiver.
fn cost(
    plan: &Plan,
    subject: &Subject,
    delivered: &dyn Fn() -> Result<u64>,
    generator: &mut Generator,
) -> Result<()> {
    let spare = Spare::on(CPU)?;
    let idle = Window::take(
        generator,
        Load::Nothing,
        plan.seconds,
        delivered,
        Some(&spare),
    )?;
    let load = Load::Bursts {
        packets: BURST,
        pps: COST_PPS,
    };
    let busy = Window::take(generator, load, plan.seconds, delivered, Some(&spare))?;
    let carried = busy.delivered as f64 >= busy.offered as f64 * CARRIED;
    if !carried && subject.is_measured() {
        bail!(
            "{} of {} packets came through",
            busy.delivered,
            busy.offered
        );
    }
    let a_second = idle.spare as f64 / idle.elapsed_s;
    let busy_s = busy.elapsed_s - busy.spare as f64 / a_second;
    say("cost", subject, busy_s / busy.offered as f64 * 1e9);
    Ok(())
}

/// A time window in which packets are counted.
struct Window {
    offered: u64,
    delivered: u64,
    elapsed_s: f64,
    /// Count of the thread that runs while the processor is idle.
    spare: u64,
}

impl Window {
    fn take(
        generator: &mut Generator,
        load: Load,
        seconds: f64,
        delivered: &dyn Fn() -> Result<u64>,
        spare: Option<&Spare>,
    ) -> Result<Self> {
        generator.run(load, WARM_UP)?;
        let read = || -> Result<_> {
            let spare = spare.map_or(0, Spare::count);
            Ok((Instant::now(), delivered()?, spare))
        };
        let (at, got, spared) = read()?;
        let offered = generator.run(load, Duration::from_secs_f64(seconds))?;
        let (at_after, got_after, spared_after) = read()?;
        // Packets still in rings belong to no window.
        std::thread::sleep(Duration::from_millis(200));
        let elapsed_s = (at_after - at).as_secs_f64();
        Ok(Self {
            offered,
            delivered: got_after - got,
            elapsed_s,
            spare: spared_after - spared,
        })
    }
}
