//! Programs that capture on the second card to `/dev/null`: the cost of kernel, program and writing
//! together.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::process::{Process, Signal};
use port::file::{FileWriter, WriterOptions};
use port::{AttachMode, BindMode, PortOptions};
use runtime::capture::{self, Options, Recorder};
use runtime::{Pacing, Stop};

use super::receive::ANOTHER;
use super::{CARRIED, CPU, Running, Subject};

const LIMIT: Duration = Duration::from_secs(20);

/// All candidates; tcpdump, the reference, first.
pub const SUBJECTS: &[Subject] = &[
    Subject {
        label: "tcpdump",
        table: "capture",
        start: |cards| {
            let interface = cards.up(1)?;
            // It looks its user up before it drops privileges; the guest has no users.
            if !Path::new("/etc/passwd").exists() {
                std::fs::create_dir_all("/etc")?;
                std::fs::write("/etc/passwd", "root:x:0:0:root:/:/bin/sh\n")?;
            }
            let args = ["-i", interface, "-n", "-Z", "root", "-w", "/dev/null"];
            baseline(interface, "tcpdump", &args, "packets captured")
        },
    },
    Subject {
        label: "netsniff-ng",
        table: "capture",
        start: |cards| {
            let interface = cards.up(1)?;
            let args = ["--in", interface, "--out", "/dev/null", "--silent"];
            let more = ["--ring-size", "16MiB"];
            let args = [&args[..], &more[..]].concat();
            baseline(interface, "netsniff-ng", &args, "packets incoming")
        },
    },
    Subject {
        label: "netring (counts)",
        table: "capture",
        start: |cards| {
            let interface = cards.up(1)?;
            baseline(
                interface,
                "baseline-netring",
                &[interface],
                "packets captured",
            )
        },
    },
    Subject {
        label: "barewire afpacket:",
        table: "capture",
        start: |cards| {
            let name = format!("afpacket:{}", cards.up(1)?);
            barewire(&name, PortOptions::default())
        },
    },
    Subject {
        label: "barewire afxdp: generic",
        table: "capture",
        start: |cards| {
            let options = PortOptions {
                attach: AttachMode::Generic,
                ..PortOptions::default()
            };
            barewire(&format!("afxdp:{}", cards.up(1)?), options)
        },
    },
    Subject {
        label: "barewire afxdp: zero-copy",
        table: "capture",
        start: |cards| {
            let options = PortOptions {
                attach: AttachMode::Native,
                bind: BindMode::ZeroCopy,
                ..PortOptions::default()
            };
            barewire(&format!("afxdp:{}", cards.up(1)?), options)
        },
    },
    Subject {
        label: "barewire vfio:",
        table: "capture",
        start: |cards| {
            cards.to_vfio(1)?;
            barewire(&cards.vfio(1), PortOptions::default())
        },
    },
];

/// A program that captures on a kernel interface until SIGINT, then prints the number of packets
/// captured before `mark`. Fewer than the interface received are an error.
fn baseline(
    interface: &'static str,
    program: &str,
    args: &[&str],
    mark: &'static str,
) -> Result<Running> {
    let mut command = Command::new("taskset");
    command.args(["-c", &CPU.to_string(), program]).args(args);
    let mut process = Process::spawn(&mut command)?;
    // None of them reports when it is listening.
    std::thread::sleep(Duration::from_secs(2));
    ensure!(process.running()?, "{program} ended at once");
    let first = received(interface)?;
    Ok(Running {
        delivered: Box::new(move || received(interface)),
        stop: Box::new(move || {
            // It reads its ring one block at a time.
            std::thread::sleep(Duration::from_secs(2));
            let offered = received(interface)? - first;
            let finished = process.stop(Signal::SIGINT, LIMIT)?;
            let output = finished.stdout + &finished.stderr;
            let captured = number_before(&output, mark)
                .with_context(|| format!("no number of packets in: {output}"))?;
            ensure!(
                captured as f64 >= offered as f64 * CARRIED,
                "it captured {captured} of {offered} packets"
            );
            Ok(Some(format!("{captured} of {offered} packets captured")))
        }),
        destination_mac: ANOTHER,
    })
}

/// `barewire capture`, in this process.
fn barewire(name: &str, options: PortOptions) -> Result<Running> {
    let options = PortOptions {
        queue_count: 1,
        ..options
    };
    let port = port::open(name, &options)?;
    let counters = port.rx.first().context("no queue")?.counters().clone();
    let writer = FileWriter::create(WriterOptions::new("/dev/null"))?;
    let options = Options {
        linger: Duration::from_secs(1),
        is_live: true,
        pacing: Pacing::default(),
        cpus: vec![CPU],
        ..Options::default()
    };
    let stop = Stop::new();
    let flag = stop.clone();
    let recorder = Recorder::File(Box::new(writer));
    let thread = std::thread::spawn(move || {
        sys::affinity::pin_current_thread(CPU)?;
        anyhow::Ok(capture::run(port, recorder, &options, &flag, |_| ()))
    });
    Ok(Running {
        delivered: Box::new(move || Ok(counters.delivered.get())),
        stop: Box::new(move || {
            stop.set();
            let ended = thread.join();
            let outcome = ended.map_err(|_| anyhow::anyhow!("the capture panicked"))??;
            if let Some(error) = outcome.error {
                return Err(error.into());
            }
            let total = outcome.account.rx_total();
            ensure!(total.lost() == 0, "packets were lost: {total:?}");
            Ok(Some(format!("{} packets captured", outcome.totals.packets)))
        }),
        destination_mac: ANOTHER,
    })
}

/// Number of packets that an interface has received.
fn received(interface: &str) -> Result<u64> {
    let file = format!("/sys/class/net/{interface}/statistics/rx_packets");
    let text = std::fs::read_to_string(file)?;
    text.trim().parse().context("not a number")
}

/// The word before `mark`, as a number.
fn number_before(text: &str, mark: &str) -> Option<u64> {
    let at = text.find(mark)?;
    text[..at].split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_counts_are_parsed_from_the_output_of_programs() {
        let text = "12 packets captured\n14 packets received by filter\n";
        assert_eq!(number_before(text, "packets captured"), Some(12));
        assert_eq!(number_before(text, "packets incoming"), None);
    }
}
