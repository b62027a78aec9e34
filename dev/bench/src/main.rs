//! Benchmarks: baselines and barewire alternating in one run; the result is a ratio with its
//! spread.
//!
//! A scenario is a file in `scenario/` and a row in [`scenario::SCENARIOS`]. Each writes a record
//! (CSV, by machine and date) and charts (SVG). Absolute times of a shared machine mean little:
//! quote ratios.
#![forbid(unsafe_code)]

mod applications;
mod balance;
mod bursts;
mod cpu;
mod guest;
mod hop;
mod link;
mod machine;
mod meter;
mod mix;
mod picture;
mod program;
mod reader;
mod record;
mod rounds;
mod scenario;
mod workload;

use anyhow::{Result, bail};
use clap::Parser;

/// Measure barewire against its baselines.
#[derive(Parser)]
struct Args {
    /// Scenarios to run; all by default
    scenarios: Vec<String>,
    /// Rounds: each runs every subject once, in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of load a run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Only these packet sizes, in bytes with the check sequence
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u32>,
    /// Fewer sizes, one round: does it run at all?
    #[arg(long)]
    quick: bool,
    /// Add the rounds to today's record in place of beginning a new one
    #[arg(long, conflicts_with = "quick")]
    append: bool,
    /// Directory of records and pictures
    #[arg(long, default_value = "dev/bench/record")]
    out: std::path::PathBuf,
    /// Dissect a capture this many times: the subject of `wire`, under callgrind
    #[arg(long, hide = true, num_args = 2, value_names = ["FILE", "ROUNDS"])]
    dissect: Option<Vec<String>>,
    /// Receive and send this many batches on a model of a card: the subject of `driver`, under
    /// callgrind
    #[arg(long, hide = true, num_args = 2, value_names = ["KIND", "ROUNDS"])]
    drive: Option<Vec<String>>,
    /// Receive from a port, touching every packet, until SIGTERM: the subject of `capture`
    #[arg(long, hide = true, value_name = "PORT")]
    read: Option<String>,
    /// Pass this many batches to this many consumers: the subject of `cluster`, under callgrind
    #[arg(long, hide = true, num_args = 2, value_names = ["CONSUMERS", "ROUNDS"])]
    hop: Option<Vec<String>>,
    /// Read a queue to its end on this processor, and spin or yield while it is empty: the other
    /// process of `cluster`
    #[arg(long, hide = true, num_args = 3, value_names = ["SOCKET", "CPU", "IDLE"])]
    hop_reader: Option<Vec<String>>,
    /// The series of `cluster` with this in their names, of balancing and of tcpdump, once each:
    /// for a profiler
    #[arg(long, hide = true, num_args = 2, value_names = ["SERIES", "SECONDS"])]
    alone: Option<Vec<String>>,
    /// Measure rates or cost in the guest: the inner part of `paths`
    #[arg(long, hide = true, value_name = "rates|cost")]
    in_guest: Option<String>,
    /// List the scenarios
    #[arg(long)]
    list: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.list {
        for row in scenario::SCENARIOS {
            println!("{:<12} {}", row.name, row.summary);
        }
        return Ok(());
    }
    if let Some(words) = &args.dissect {
        return scenario::wire::worker(&words[0], words[1].parse()?);
    }
    if let Some(words) = &args.drive {
        scenario::driver::drive(&words[0], words[1].parse()?)?;
        return Ok(());
    }
    if let Some(words) = &args.hop {
        return scenario::cluster::pass(&words[0], &words[1]);
    }
    if let Some(words) = &args.hop_reader {
        return hop::read(words[0].as_ref(), words[1].parse()?, &words[2]);
    }
    if let Some(words) = &args.alone {
        return scenario::cluster::alone(&words[0], words[1].parse()?);
    }
    if let Some(port) = &args.read {
        return reader::run(port);
    }
    if let Some(what) = &args.in_guest {
        return guest::run(guest::Plan {
            what: match what.as_str() {
                "rates" => guest::What::Rates,
                "cost" => guest::What::Cost,
                _ => bail!("neither rates nor cost: {what}"),
            },
            rounds: args.rounds,
            seconds: args.seconds,
        });
    }
    let chosen: Vec<_> = scenario::SCENARIOS
        .iter()
        .filter(|row| args.scenarios.is_empty() || args.scenarios.iter().any(|s| s == row.name))
        .collect();
    if let Some(unknown) = args
        .scenarios
        .iter()
        .find(|s| !scenario::SCENARIOS.iter().any(|row| row.name == **s))
    {
        bail!("there is no scenario {unknown:?}; --list shows them");
    }
    let plan = scenario::Plan {
        rounds: if args.quick { 1 } else { args.rounds.max(1) },
        seconds: if args.quick { 0.5 } else { args.seconds },
        sizes: args.sizes.clone(),
        quick: args.quick,
    };
    for row in chosen {
        eprintln!("== {}: {}", row.name, row.summary);
        let mut outcome = (row.run)(&plan)?;
        if args.append {
            record::prepend_earlier(&args.out, row.name, &mut outcome)?;
        }
        print!("{}", outcome.text());
        if !args.quick {
            let files = record::write(&args.out, row.name, &outcome)?;
            eprintln!("written: {}", files.join(", "));
        }
    }
    Ok(())
}
