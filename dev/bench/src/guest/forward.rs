//! Programs that forward packets from the second card to the third.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use port::PortOptions;
use runtime::forward::{self, Options, Setup};
use runtime::{Pacing, Stop};

use super::cards::{Cards, NAMES, ip, run, wait_for_carrier};
use super::receive::ANOTHER;
use super::{CPU, LINK_LIMIT, Running, Subject};

/// All candidates, Linux first.
pub const SUBJECTS: &[Subject] = &[
    Subject {
        label: "Linux bridge",
        table: "forward",
        start: bridge,
    },
    Subject {
        label: "barewire, AF_XDP zero-copy",
        table: "forward",
        start: |cards| {
            let names = [1, 2].map(|index| -> Result<_> {
                let name = cards.up(index)?;
                Ok(format!("afxdp:{name}/0?attach=native&bind=zero-copy"))
            });
            let [from, to] = names;
            barewire([from?, to?], || {
                NAMES[1..]
                    .iter()
                    .try_for_each(|name| wait_for_carrier(name))
            })
        },
    },
    Subject {
        label: "barewire, user-mode drivers",
        table: "forward",
        start: |cards| {
            cards.to_vfio(1)?;
            cards.to_vfio(2)?;
            barewire([cards.vfio(1), cards.vfio(2)], || Ok(()))
        },
    },
];

/// `barewire forward`, in this process.
fn barewire(names: [String; 2], wait_for_links: impl FnOnce() -> Result<()>) -> Result<Running> {
    let mut opened = forward::open(&Setup {
        names,
        options: PortOptions {
            queue_count: 1,
            ..PortOptions::default()
        },
        ..Setup::default()
    })?;
    wait_for_links()?;
    for side in &mut opened.sides {
        let since = Instant::now();
        while side.port.control.link_is_up() == Some(false) {
            ensure!(since.elapsed() < LINK_LIMIT, "a card has no link");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let tx = opened.sides[1].port.tx.first().context("no queue")?;
    let counters = Arc::clone(tx.counters());
    let stop = Stop::new();
    let flag = stop.clone();
    let options = Options {
        pacing: Pacing::default(),
        cpus: vec![CPU],
        ..Options::default()
    };
    let thread = std::thread::spawn(move || forward::run(opened.sides, &options, &flag, |_| ()));
    Ok(Running {
        delivered: Box::new(move || Ok(counters.sent.get())),
        stop: Box::new(move || {
            stop.set();
            let outcome = thread.join().map_err(|_| anyhow!("it panicked"))?;
            if let Some(error) = outcome.error {
                return Err(error.into());
            }
            let (flow, sent) = (outcome.flows[0], outcome.accounts[1].tx_total());
            ensure!(
                flow.imbalance() == 0,
                "the account does not add up: {flow:?}"
            );
            ensure!(flow.copied == 0, "packets were copied: {flow:?}");
            ensure!(
                sent.sent + sent.failed == flow.forwarded,
                "{sent:?}, {flow:?}"
            );
            Ok(Some(format!("{} forwarded, none copied", flow.forwarded)))
        }),
        destination_mac: ANOTHER,
    })
}

/// A bridge with a static entry for the destination.
fn bridge(cards: &Cards) -> Result<Running> {
    let (from, to) = (cards.up(1)?, cards.up(2)?);
    ip("link add bridge0 type bridge mcast_snooping 0 stp_state 0")?;
    std::fs::write("/proc/sys/net/ipv6/conf/bridge0/disable_ipv6", "1")?;
    for name in [from, to] {
        ip(&format!("link set {name} master bridge0"))?;
    }
    ip("link set bridge0 up")?;
    let mac = ANOTHER.map(|byte| format!("{byte:02x}")).join(":");
    run(
        "bridge",
        &["fdb", "add", &mac, "dev", to, "master", "static"],
    )?;
    let file = format!("/sys/class/net/{to}/statistics/tx_packets");
    Ok(Running {
        delivered: Box::new(move || Ok(std::fs::read_to_string(&file)?.trim().parse()?)),
        stop: Box::new(|| {
            ip("link delete bridge0")?;
            Ok(None)
        }),
        destination_mac: ANOTHER,
    })
}
