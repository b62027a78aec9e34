//! Captures to `/dev/null` from a file that is read repeatedly. Two runs of different length,
//! counted by callgrind, give the instructions per packet:
//!
//! ```text
//! cargo build --release -p barewire-runtime --example capture_cost
//! valgrind --tool=callgrind target/release/examples/capture_cost FILE 1
//! valgrind --tool=callgrind target/release/examples/capture_cost FILE 11
//! ```
#![forbid(unsafe_code)]

use barewire_runtime::Stop;
use barewire_runtime::capture::{Options, Recorder, run};
use port::PortOptions;
use port::file::{FileWriter, WriterOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(rounds)) = (args.next(), args.next()) else {
        return Err("FILE ROUNDS".into());
    };
    let mut packets = 0;
    for _ in 0..rounds.parse::<u64>()? {
        let port = port::open(&format!("file:{file}"), &PortOptions::default())?;
        let writer = FileWriter::create(WriterOptions::new("/dev/null"))?;
        let options = Options {
            // As on an interface: with the direction of each packet.
            is_live: true,
            ..Options::default()
        };
        let recorder = Recorder::File(Box::new(writer));
        let outcome = run(port, recorder, &options, &Stop::default(), |_| {});
        if let Some(error) = outcome.error {
            return Err(error.into());
        }
        packets += outcome.totals.packets;
    }
    println!("{packets} packets");
    Ok(())
}
