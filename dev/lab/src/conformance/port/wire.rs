//! Demands on ports of an interface, which can go down, change, vanish, and outlive its user.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use port::{PortEvent, PortOptions};
use sys::ErrorKind;

use super::line::{LIMIT, Line, told};
use super::{RIGS, Rig};
use crate::Pair;
use crate::process::{Process, Signal};

/// Within this time news of an interface must have come.
const NEWS: Duration = Duration::from_secs(10);

fn pair(line: &Line) -> Result<&Pair> {
    line.pair.as_ref().context("this rig has no pair")
}

/// Waits for an event that fits, while receiving goes on.
fn expect_event(line: &mut Line, what: &str, fits: impl Fn(&PortEvent) -> bool) -> Result<()> {
    let end = Instant::now() + NEWS;
    let mut others = Vec::new();
    while Instant::now() < end {
        let port = line.rx_port()?;
        // Failures of the queue are another case's matter.
        let _ = port.rx[0].receive().map(drop);
        let _ = port.rx[0].wait(Duration::from_millis(5));
        while let Some(event) = port.control.event() {
            if fits(&event) {
                return Ok(());
            }
            others.push(event);
        }
    }
    bail!("no news of {what} within {NEWS:?}, but {others:?}")
}

/// The link goes down and comes up, at either end: packets flow again without anybody opening
/// anything.
pub(super) fn link_flap(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 100, 100)?;
    line.expect_numbers(0..100)?;
    let mut number = 100;
    for round in 0..4 {
        let ours = round % 2 == 0;
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
        // Sent into a dead link: refused and counted, or kept for later. An error may tell of it,
        // but not that the interface is gone.
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
                ensure!(error.kind() == ErrorKind::Io, "{:#}", told(error));
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
        // Those that waited for the link may come first.
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

/// Receives these numbers in order; packets numbered `u64::MAX` may come before.
fn expect_after_strays(line: &mut Line, numbers: std::ops::Range<u64>) -> Result<()> {
    let mut next = numbers.start;
    let end = Instant::now() + LIMIT;
    while next < numbers.end {
        ensure!(Instant::now() < end, "packet {next} never came");
        line.receive(
            1,
            Duration::from_millis(500),
            |packet| match crate::packet::number_of(packet.bytes()) {
                Ok(u64::MAX) if next == numbers.start => Ok(()),
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

/// The MTU changes under an open port: it is told, and packets of the new size pass.
pub(super) fn mtu_change(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.send_numbers(0, 10, 1514)?;
    line.expect_numbers(0..10)?;
    // Not below 1280: IPv6 would be set up anew on the way back, and speak.
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

/// The interface is deleted under an open port: what came before is delivered, then both ends say
/// that it is gone, the account can still be read, and no frame is lost.
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
            "the queue never said that its interface is gone"
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
    // The sender's interface went with it.
    let packet = line.plan.build(0, 100);
    let tx = line.tx()?;
    let mut told_gone = false;
    while Instant::now() < end && !told_gone {
        let mut send = || -> sys::Result<()> {
            let mut batch = tx.reserve(1)?;
            batch.write(&packet);
            batch.submit()?;
            tx.flush()
        };
        match send() {
            Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) if error.kind() == ErrorKind::Gone => told_gone = true,
            Err(error) => return Err(told(error)),
        }
    }
    ensure!(
        told_gone,
        "the sending queue never said that its interface is gone"
    );
    line.close()
}

/// Set to "RIG INTERFACE" in a process that shall only hold a port.
pub const CHILD_VAR: &str = "BAREWIRE_CONFORMANCE_CHILD";

/// A process is killed while it receives: the interface is as before, and another process opens the
/// port at once.
pub(super) fn kill_and_restart(rig: &'static Rig) -> Result<()> {
    let mut line = Line::open(rig, |_| ())?;
    line.close_rx();
    let mut from = 0;
    for _ in 0..2 {
        let mut child = spawn(rig, pair(&line)?)?;
        child
            .wait_stdout("received", LIMIT)
            .with_context(|| format!("the child never opened its port: {}", child.stdout()))?;
        let link = pair(&line)?.right.link()?;
        line.send_numbers(from, from + 100, 100)?;
        from += 100;
        let finished = child.stop(Signal::SIGKILL, LIMIT)?;
        ensure!(finished.signal() == Some(Signal::SIGKILL), "{finished:?}");
        let promiscuity = |link: &serde_json::Value| link["promiscuity"].as_u64();
        ensure!(
            promiscuity(&link) > Some(0),
            "the child was not promiscuous: {link}"
        );
        // The kernel takes things off behind the process's end.
        let end = Instant::now() + Duration::from_secs(1);
        loop {
            let after = pair(&line)?.right.link()?;
            let left = promiscuity(&after) == Some(0) && pair(&line)?.right.xdp()?.is_none();
            if left {
                break;
            }
            ensure!(Instant::now() < end, "left on the interface: {after}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let end = Instant::now() + Duration::from_secs(1);
    while let Err(error) = line.open_rx() {
        ensure!(Instant::now() < end, "not to be opened again: {error:#}");
        std::thread::sleep(Duration::from_millis(5));
    }
    line.send_numbers(from, from + 100, 100)?;
    line.expect_numbers(from..from + 100)?;
    line.close()
}

/// Starts this very test binary in the right end's namespace, as a child that holds a port.
fn spawn(rig: &Rig, pair: &Pair) -> Result<Process> {
    let binary = std::env::current_exe()?;
    let mut command = pair.right.ns.command(binary);
    command.args(["--exact", "child", "--nocapture"]);
    command.env(CHILD_VAR, format!("{} {}", rig.name, pair.right.ifname));
    Process::spawn(&mut command)
}

/// What the test named `child` of a binary that runs this suite must call: opens the port named by
/// [`CHILD_VAR`] and receives until it is killed. Does nothing without the variable.
///
/// # Panics
/// When the port cannot be opened.
pub fn child() {
    let Ok(order) = std::env::var(CHILD_VAR) else {
        return;
    };
    let (rig, ifname) = order.split_once(' ').expect("rig and interface");
    let rig = RIGS.iter().find(|row| row.name == rig).expect("a rig");
    let [_, name] = rig.joint.port_names().expect("a wire");
    let mut port = port::open(&name.replace("{}", ifname), &PortOptions::default()).unwrap();
    println!("ready: received packets are dropped");
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        drop(port.rx[0].receive().unwrap());
        port.rx[0].wait(Duration::from_millis(10)).unwrap();
    }
}
