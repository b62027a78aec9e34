//! Programs that receive on the second card.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::process::{Process, Signal};
use port::{AttachMode, BindMode, PortOptions, TapMethod, TimestampSource};
use runtime::{Pacing, Stop, worker};

use super::cards::{Cards, ip, mac};
use super::generator::{DESTINATION, PORT};
use super::{CPU, Running, Subject};
use crate::reader::Touch;

/// Another station's address: the stack drops packets to it at once.
pub const ANOTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// All candidates, the kernel's stack first.
pub const SUBJECTS: &[Subject] = &[
    Subject {
        label: "kernel stack, recvmmsg",
        table: "receive",
        start: recvmmsg,
    },
    Subject {
        label: "TPACKET_V3",
        table: "receive",
        start: |cards| {
            let options = PortOptions {
                tap: TapMethod::Tpacket,
                ..PortOptions::default()
            };
            read(&format!("afpacket:{}", cards.up(1)?), options)
        },
    },
    Subject {
        label: "AF_XDP generic",
        table: "receive",
        start: |cards| {
            let options = PortOptions {
                attach: AttachMode::Generic,
                ..PortOptions::default()
            };
            read(&format!("afxdp:{}", cards.up(1)?), options)
        },
    },
    Subject {
        label: "AF_XDP zero-copy",
        table: "receive",
        start: |cards| {
            let options = PortOptions {
                attach: AttachMode::Native,
                bind: BindMode::ZeroCopy,
                ..PortOptions::default()
            };
            read(&format!("afxdp:{}", cards.up(1)?), options)
        },
    },
    Subject {
        label: "user-mode driver",
        table: "receive",
        start: |cards| {
            cards.to_vfio(1)?;
            read(&cards.vfio(1), PortOptions::default())
        },
    },
];

/// A barewire port with a reader that touches each packet.
fn read(name: &str, options: PortOptions) -> Result<Running> {
    let options = PortOptions {
        queue_count: 1,
        timestamp: TimestampSource::None,
        ..options
    };
    let mut port = port::open(name, &options)?;
    let mut rx = port.rx.pop().context("no queue")?;
    let counters = rx.counters().clone();
    let stop = Stop::new();
    let flag = stop.clone();
    let thread = std::thread::spawn(move || {
        sys::affinity::pin_current_thread(CPU)?;
        worker::run(&mut rx, &mut Touch::default(), &flag, Pacing::default())
    });
    Ok(Running {
        delivered: Box::new(move || Ok(counters.delivered.get())),
        stop: Box::new(move || {
            stop.set();
            let ended = thread.join();
            ended.map_err(|_| anyhow::anyhow!("the reader panicked"))??;
            drop(port);
            Ok(None)
        }),
        destination_mac: ANOTHER,
    })
}

/// A UDP socket.
fn recvmmsg(cards: &Cards) -> Result<Running> {
    let name = cards.up(1)?;
    let address = std::net::Ipv4Addr::from(DESTINATION);
    ip(&format!("address add {address}/24 dev {name}"))?;
    let mut command = Command::new("baseline-recvmmsg");
    command.args([format!("{address}:{PORT}"), CPU.to_string()]);
    let mut process = Process::spawn(&mut command)?;
    process.wait_stdout("receiving", Duration::from_secs(20))?;
    Ok(Running {
        delivered: Box::new(datagrams),
        stop: Box::new(move || {
            process
                .stop(Signal::SIGTERM, Duration::from_secs(20))?
                .checked()?;
            Ok(None)
        }),
        destination_mac: mac(name)?,
    })
}

/// Number of datagrams delivered to programs (RFC 4113 `udpInDatagrams`, proc(5) `/proc/net/snmp`).
fn datagrams() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/net/snmp")?;
    let line = text.lines().filter(|line| line.starts_with("Udp: ")).nth(1);
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    word.context("no counter of UDP")?
        .parse()
        .context("no number")
}
