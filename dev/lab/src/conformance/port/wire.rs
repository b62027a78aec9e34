//! Requirements for ports on an interface, which can go down, change, be deleted, and outlive its
//! user.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use port::{Direction, PortEvent, PortOptions};
use sys::ErrorKind;

use super::line::{LIMIT, Line, reported};
use super::{Joint, RIGS, Rig};
use crate::packet::{Addresses, Udp};
use crate::process::{Process, Signal};
use crate::random::Random;
use crate::{End, Pair};

/// Events of an interface must arrive within this time.
const NEWS: Duration = Duration::from_secs(10);

fn pair(line: &Line) -> Result<&Pair> {
    line.pair.as_ref().context("this rig has no pair")
}

/// Waits for a matching event while receiving continues.
fn expect_event(line: &mut Line, what: &str, fits: impl Fn(&PortEvent) -> bool) -> Result<()> {
    let end = Instant::now() + NEWS;
    let mut others = Vec::new();
    while Instant::now() < end {
        let rx = line.rx()?;
        // Failures of the queue are tested by another case.
        let _ = rx.receive().map(drop);
        let _ = rx.wait(Duration::from_millis(5));
        while let Some(event) = line.rx_port()?.control.event() {
            if fits(&event) {
                return Ok(());
            }
            others.push(event);
        }
    }
    bail!("no news of {what} within {NEWS:?}, but {others:?}")
}

/// The link goes down and comes up at either end: packets flow again without reopening anything.
pub(super) fn link_flap(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 100, 100)?;
    line.expect_numbers(0..100)?;
    let mut number = 100;
    // On an emulated wire a card does not see that the other one is down.
    let rounds = if rig.joint.is_slow() { 2 } else { 4 };
    for round in 0..rounds {
        let ours = round % 2 == 0 || rig.joint.is_slow();
        let end = |line: &Line| -> Result<_> {
            let pair = pair(line)?;
            Ok(if ours {
                pair.right.ifname.clone()
            } else {
                pair.left.ifname.clone()
            })
        };
        let name = end(&line)?;
        let set = |line: &Line, up: bool| -> Result<()> {
            let pair = pair(line)?;
            let end = if ours { &pair.right } else { &pair.left };
            if up { end.set_up() } else { end.set_down() }
        };
        set(&line, false)?;
        expect_event(&mut line, "link down", |event| {
            *event == PortEvent::LinkDown
        })
        .with_context(|| format!("{name} set down"))?;
        // Sent while the link is down: refused and counted, or kept for later. An error may report
        // it, but not that the interface was removed.
        let packet = line.plan.build(u64::MAX, 100);
        let before = line.tx_account()?;
        for _ in 0..10 {
            let tx = line.tx()?;
            let mut send = || -> sys::Result<()> {
                let mut batch = tx.reserve(1)?;
                batch.write(&packet);
                batch.submit()?;
                tx.flush()
            };
            if let Err(error) = send() {
                let is_down = matches!(error.kind(), ErrorKind::Io | ErrorKind::Down);
                ensure!(is_down, "{:#}", reported(error));
            }
        }
        set(&line, true)?;
        expect_event(&mut line, "link up", |event| *event == PortEvent::LinkUp)
            .with_context(|| format!("{name} set up"))?;
        pair(&line)?.left.set_up()?;
        pair(&line)?.right.set_up()?;
        let after = line.tx_account()?;
        ensure!(
            after.sent + after.failed >= before.sent + before.failed,
            "{before:?} {after:?}"
        );
        // Packets that waited for the link may come first.
        line.send_numbers(number, number + 100, 100)?;
        expect_after_strays(&mut line, number..number + 100)
            .with_context(|| format!("after {name} was down and up"))?;
        number += 100;
    }
    let account = line.rx_account()?;
    ensure!(
        account.imbalance() == 0 && account.lost() == 0,
        "{account:?}"
    );
    line.close()
}

/// Receives these numbers in order; packets numbered `u64::MAX` may precede them, and on a slow
/// wire those sent to an earlier receiver.
fn expect_after_strays(line: &mut Line, numbers: std::ops::Range<u64>) -> Result<()> {
    let mut next = numbers.start;
    let end = Instant::now() + LIMIT;
    let is_slow = line.rig.joint.is_slow();
    while next < numbers.end {
        ensure!(Instant::now() < end, "packet {next} never came");
        line.receive(
            1,
            Duration::from_millis(500),
            |packet| match crate::packet::number_of(packet.bytes()) {
                Ok(u64::MAX) if next == numbers.start => Ok(()),
                Ok(number) if is_slow && next == numbers.start && number < next => Ok(()),
                Ok(number) if number == next => {
                    next += 1;
                    Ok(())
                }
                other => bail!("{other:?} came instead of packet {next}"),
            },
        )?;
    }
    Ok(())
}

/// The MTU changes under an open port: it is reported, and packets of the new size pass.
pub(super) fn mtu_change(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 10, 1514)?;
    line.expect_numbers(0..10)?;
    // Not below 1280: IPv6 would be reconfigured afterwards, and send packets.
    for end in [&pair(&line)?.left, &pair(&line)?.right] {
        end.set_mtu(1300)?;
    }
    expect_event(&mut line, "an MTU of 1300", |event| {
        *event == PortEvent::MtuChanged(1300)
    })?;
    line.wait_for_link()?;
    line.send_numbers(10, 20, 1314)?;
    line.expect_numbers(10..20)?;
    for end in [&pair(&line)?.right, &pair(&line)?.left] {
        end.set_mtu(1500)?;
    }
    expect_event(&mut line, "an MTU of 1500", |event| {
        *event == PortEvent::MtuChanged(1500)
    })?;
    line.wait_for_link()?;
    line.send_numbers(20, 30, 1514)?;
    line.expect_numbers(20..30)?;
    let account = line.rx_account()?;
    ensure!(
        account.imbalance() == 0 && account.lost() == 0,
        "{account:?}"
    );
    line.close()
}

/// The interface is deleted under an open port: packets received before are delivered, then both
/// ends report the removal, the account can still be read, and no frame is lost.
pub(super) fn deletion(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 50, 100)?;
    std::thread::sleep(Duration::from_millis(30));
    pair(&line)?.right.delete()?;
    let end = Instant::now() + NEWS;
    let mut got = 0;
    let kind = loop {
        ensure!(
            Instant::now() < end,
            "the queue never reported that its interface is gone"
        );
        let rx = line.rx()?;
        match rx.receive() {
            Ok(batch) => {
                for packet in batch.iter() {
                    let number = crate::packet::number_of(packet.bytes());
                    ensure!(number == Ok(got), "{number:?} instead of {got}");
                    got += 1;
                }
            }
            Err(error) => break error.kind(),
        }
        if let Err(error) = rx.wait(Duration::from_millis(20)) {
            break error.kind();
        }
    };
    ensure!(kind == ErrorKind::Gone, "the queue failed with {kind:?}");
    ensure!(got == 50, "{got} of 50 packets came before the end");
    let mut gone = false;
    while Instant::now() < end && !gone {
        while let Some(event) = line.rx_port()?.control.event() {
            gone |= event == PortEvent::DeviceGone;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    ensure!(gone, "no news that the device is gone");
    let account = line.rx_account()?;
    ensure!(
        account.imbalance() == 0 && account.delivered == 50,
        "{account:?}"
    );
    // The sender's interface was removed with it.
    let packet = line.plan.build(0, 100);
    let tx = line.tx()?;
    let mut reported_gone = false;
    while Instant::now() < end && !reported_gone {
        let mut send = || -> sys::Result<()> {
            let mut batch = tx.reserve(1)?;
            batch.write(&packet);
            batch.submit()?;
            tx.flush()
        };
        match send() {
            Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) if error.kind() == ErrorKind::Gone => reported_gone = true,
            Err(error) => return Err(reported(error)),
        }
    }
    ensure!(
        reported_gone,
        "the sending queue never reported that its interface is gone"
    );
    line.close()
}

/// The test that is the child process, in the file that runs this suite.
const CHILD_TEST: &str = "conformance_port::child";

/// Set to "RIG INTERFACE" in a process that only holds a port.
pub const CHILD_VAR: &str = "BAREWIRE_CONFORMANCE_CHILD";

/// A process is killed while it receives: the interface is as before, and another process can open
/// the port at once.
pub(super) fn kill_and_restart(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.close_rx();
    let mut from = 0;
    for _ in 0..2 {
        let mut child = spawn(rig, &pair(&line)?.right, "rx")?;
        child
            .wait_stdout("received", LIMIT)
            .with_context(|| format!("the child never opened its port: {}", child.stdout()))?;
        let link = pair(&line)?.right.link()?;
        line.send_numbers(from, from + 100, 100)?;
        from += 100;
        let finished = child.stop(Signal::SIGKILL, LIMIT)?;
        ensure!(finished.signal() == Some(Signal::SIGKILL), "{finished:?}");
        ensure!(
            link["promiscuity"].as_u64() > Some(0),
            "the child was not promiscuous: {link}"
        );
        expect_as_before(&pair(&line)?.right)?;
    }
    let end = Instant::now() + Duration::from_secs(1);
    while let Err(error) = line.open_rx() {
        ensure!(Instant::now() < end, "not to be opened again: {error:#}");
        std::thread::sleep(Duration::from_millis(5));
    }
    line.send_numbers(from, from + 100, 100)?;
    expect_after_strays(&mut line, from..from + 100)?;
    line.close()
}

/// The kernel detaches everything after a killed process has ended: within a second nothing is
/// left.
fn expect_as_before(end: &End) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        let link = end.link()?;
        if link["promiscuity"].as_u64() == Some(0) && end.xdp()?.is_none() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "left on the interface: {link}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A reader or a sender is killed at a random moment, while it opens, works or is idle: each time
/// the interface is as before, and in the end both ports open and work.
pub(super) fn random_kill(rig: &'static Rig) -> Result<()> {
    let mut random = Random::seeded("kill");
    let seed = random.seed();
    kill_at_random(rig, &mut random).with_context(|| format!("BAREWIRE_SEED={seed}"))
}

fn kill_at_random(rig: &'static Rig, random: &mut Random) -> Result<()> {
    if let Joint::Vfio(..) = rig.joint {
        return kill_on_cards(rig, random);
    }
    // An emulated card is slow to open.
    let (rounds, span_ms) = match rig.joint {
        Joint::Cards(..) => (4, 3000),
        _ => (8, 150),
    };
    let mut line = Line::open(rig, |_| ())?;
    line.close_rx();
    line.close_tx();
    for round in 0..rounds {
        let is_reader = round % 2 == 0;
        if !is_reader {
            // XDP frames are accepted only if a program receives.
            line.open_rx()?;
        }
        let pair = pair(&line)?;
        let (end, role) = match is_reader {
            true => (&pair.right, "rx"),
            false => (&pair.left, "tx"),
        };
        let mut child = spawn(rig, end, role)?;
        let after_ms = random.below(span_ms);
        std::thread::sleep(Duration::from_millis(after_ms));
        let finished = child.stop(Signal::SIGKILL, LIMIT)?;
        ensure!(
            finished.signal() == Some(Signal::SIGKILL),
            "round {round}, {role}: it ended before it was killed: {finished:?}"
        );
        expect_as_before(end).with_context(|| format!("{role} killed after {after_ms} ms"))?;
        line.close_rx();
    }
    line.open_rx()?;
    line.open_tx()?;
    expect_to_work(&mut line)?;
    line.close()
}

/// Sends 100 packets over a line whose sender was killed, and receives them in order.
///
/// An emulated wire still holds what the killed sender sent, and loses what is sent while it is
/// full. There the 100 are sent again, with other numbers, after some time without packets.
fn expect_to_work(line: &mut Line) -> Result<()> {
    if line.rig.joint.is_slow() {
        for from in (0..500).step_by(100) {
            line.send_numbers(from, from + 100, 100)?;
            let mut arrived = 0;
            line.receive(usize::MAX, Duration::from_secs(1), |packet| {
                let number = crate::packet::number_of(packet.bytes());
                arrived +=
                    u64::from(number.is_ok_and(|number| number >= from && number < from + 100));
                Ok(())
            })?;
            if arrived == 100 {
                break;
            }
        }
    }
    line.send_numbers(500, 600, 100)?;
    expect_after_strays(line, 500..600)
}

/// The same for a card in user space: each time its DMA must be off, and the next process gets it.
fn kill_on_cards(rig: &'static Rig, random: &mut Random) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    for round in 0..6 {
        line.close_rx();
        line.close_tx();
        let cards = line.cards.as_ref().context("this rig has no cards")?;
        let (card, role) = match round % 2 {
            0 => (&cards[1], "rx"),
            _ => (&cards[0], "tx"),
        };
        let command = Command::new(std::env::current_exe()?);
        let mut child = as_child(command, rig, &card.address().to_string(), role)?;
        // While it opens, or while it works.
        if round >= 4 {
            child.wait_stdout("ready", LIMIT)?;
        }
        let after_ms = random.below(2000);
        std::thread::sleep(Duration::from_millis(after_ms));
        let finished = child.stop(Signal::SIGKILL, LIMIT)?;
        ensure!(
            finished.signal() == Some(Signal::SIGKILL),
            "round {round}, {role}: it ended before it was killed: {finished:?}"
        );
        ensure!(
            !card.is_bus_master(),
            "{role} killed after {after_ms} ms: its card may still write memory"
        );
        line.open_rx()?;
        line.open_tx()?;
        expect_to_work(&mut line).with_context(|| format!("{role} killed after {after_ms} ms"))?;
    }
    line.close()
}

/// Starts this test binary in an end's namespace, as a child that holds a port.
fn spawn(rig: &Rig, end: &End, role: &str) -> Result<Process> {
    let command = end.ns.command(std::env::current_exe()?);
    as_child(command, rig, &end.ifname, role)
}

/// A command that runs this test binary as a child that holds the port on `device`.
fn as_child(mut command: Command, rig: &Rig, device: &str, role: &str) -> Result<Process> {
    // In the file that runs this suite.
    command.args(["--exact", CHILD_TEST, "--nocapture"]);
    command.env(CHILD_VAR, format!("{} {device} {role}", rig.name));
    Process::spawn(&mut command)
}

/// To be called by the test named `child` of a binary that runs this suite: opens the port named by
/// [`CHILD_VAR`] and receives or sends until it is killed. Does nothing without the variable.
///
/// # Panics
/// If the port cannot be opened.
pub fn child() {
    let order = ::skip::child_body!(CHILD_VAR);
    let words: Vec<&str> = order.split(' ').collect();
    let [rig, ifname, role] = words[..] else {
        panic!("rig, interface and role: {order}");
    };
    let rig = RIGS.iter().find(|row| row.name == rig).expect("a rig");
    let [tx_name, rx_name] = rig.joint.port_names().expect("a wire");
    let end = Instant::now() + LIMIT;
    if role == "rx" {
        let name = rx_name.replace("{}", ifname);
        let mut port = port::open(&name, &PortOptions::default()).unwrap();
        println!("ready: received packets are dropped");
        while Instant::now() < end {
            for rx in &mut port.rx {
                drop(rx.receive().unwrap());
                rx.wait(Duration::from_millis(5)).unwrap();
            }
        }
        return;
    }
    let options = PortOptions {
        direction: Direction::Tx,
        ..PortOptions::default()
    };
    let mut port = port::open(&tx_name.replace("{}", ifname), &options).unwrap();
    let plan = Udp {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 99],
        addresses: Addresses::V4([10, 77, 0, 1].into(), [10, 77, 0, 2].into()),
        source_port: 4000,
        destination_port: 9,
        flow_count: 1,
        vlan: None,
    };
    let packet = plan.build(u64::MAX, 100);
    println!("ready: packets are sent");
    while Instant::now() < end {
        for tx in &mut port.tx {
            let mut batch = tx.reserve(32).unwrap();
            while batch.write(&packet) {}
            batch.submit().unwrap();
            // The link may be down for a while.
            let _ = tx.flush();
            let _ = tx.wait(false, Duration::from_millis(10));
        }
    }
}
