//! Live ports embedded in a program: a descriptor to poll, a waker, a filter replaced while the
//! port is open.

use std::time::{Duration, Instant};

use bpf::cbpf::{Insn, Program};
use lab::packet::{Raw, Udp};
use lab::{Pair, Veth, require, skip};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use port::{DropReason, Port, PortOptions, Ready};

use crate::afxdp::{LIMIT, open, sender};

/// All ways to receive from an interface.
const PORTS: [&str; 6] = [
    "afpacket:{}?tap=tpacket&block_timeout_ms=1",
    "afpacket:{}?tap=tpacket&immediate=yes",
    "afpacket:{}?tap=bpf",
    "afpacket:{}?tap=bpf&immediate=yes",
    "afxdp:{}?attach=native",
    "afxdp:{}?attach=generic",
];

/// Selects IPv4 UDP from one source port.
fn from_port(port: u16) -> Program {
    let jump = |value: u32, miss: u8| Insn::new(0x15, 0, miss, value);
    let insns = vec![
        Insn::new(0x28, 0, 0, 12),
        jump(0x0800, 5),
        Insn::new(0x30, 0, 0, 23),
        jump(17, 3),
        Insn::new(0x28, 0, 0, 34),
        jump(port.into(), 1),
        Insn::new(0x06, 0, 0, u32::MAX),
        Insn::new(0x06, 0, 0, 0),
    ];
    Program::new(insns).unwrap()
}

/// To another station, so that the stack does not answer.
fn plan(pair: &Pair) -> Udp {
    let mut plan = Udp::between(&pair.left, &pair.right).flows(4);
    plan.destination_mac[5] ^= 0x40;
    plan
}

fn options() -> PortOptions {
    PortOptions {
        filter: Some(from_port(4000)),
        ..PortOptions::default()
    }
}

/// Sends packets `from..to`, of which every fourth is from port 4000.
fn send(out: &Raw, plan: &Udp, numbers: std::ops::Range<u64>) {
    for number in numbers {
        out.send(&plan.build(number, 60)).unwrap();
    }
}

/// Receives this many packets; returns their numbers.
fn receive(port: &mut Port, count: usize) -> Vec<u64> {
    let until = Instant::now() + LIMIT;
    let mut numbers = Vec::new();
    while numbers.len() < count {
        assert!(Instant::now() < until, "{numbers:?}");
        port.rx[0].wait(Duration::from_millis(10)).unwrap();
        let batch = port.rx[0].receive().unwrap();
        let number = |packet: port::Packet<'_>| lab::packet::number_of(packet.bytes()).unwrap();
        numbers.extend(batch.iter().map(number));
    }
    numbers
}

#[test]
fn a_waker_ends_the_wait_of_a_live_port() {
    require!(skip::lab());
    for name in PORTS {
        let pair = Veth::new().create().unwrap();
        let mut port = open(&pair.right, name, &options());
        let waker = port.rx[0].waker().unwrap();
        for _ in 0..10 {
            let rx = &mut port.rx[0];
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| rx.wait(LIMIT).unwrap());
                waker.wake();
                assert_eq!(thread.join().unwrap(), Ready::Woken, "{name}");
            });
        }
        // Packets end the wait as before.
        let (out, plan) = (sender(&pair.left), plan(&pair));
        send(&out, &plan, 0..1);
        assert_eq!(port.rx[0].wait(LIMIT).unwrap(), Ready::Packets, "{name}");
        assert_eq!(receive(&mut port, 1), [0]);
        // The removal of the interface is detected without a packet and without a wake-up.
        pair.right.delete().unwrap();
        let until = Instant::now() + LIMIT;
        let error = loop {
            assert!(Instant::now() < until, "{name}");
            if let Err(error) = port.rx[0].wait(LIMIT) {
                break error;
            }
        };
        assert_eq!(error.kind(), sys::ErrorKind::Gone, "{name}: {error}");
    }
}

#[test]
fn a_live_port_can_be_polled() {
    require!(skip::lab());
    for name in PORTS {
        let pair = Veth::new().create().unwrap();
        let mut port = open(&pair.right, name, &options());
        let (out, plan) = (sender(&pair.left), plan(&pair));
        let rx = &mut port.rx[0];
        let poll = |rx: &port::RxQueue, timeout: Duration| {
            let fd = PollFd::new(rx.poll_fd().unwrap(), PollFlags::POLLIN);
            let timeout = PollTimeout::try_from(timeout).unwrap();
            nix::poll::poll(&mut [fd], timeout).unwrap() == 1
        };
        for round in 0..20 {
            // There are no packets, and it does not become readable.
            assert!(rx.arm().unwrap(), "{name} {round}");
            assert!(!poll(rx, Duration::ZERO), "{name} {round}");
            send(&out, &plan, 4 * round..4 * round + 4);
            let until = Instant::now() + LIMIT;
            let mut got = 0;
            while got == 0 {
                assert!(Instant::now() < until);
                assert!(!rx.arm().unwrap() || poll(rx, LIMIT), "{name} {round}");
                got = rx.receive().unwrap().len();
            }
            assert_eq!(got, 1, "{name} {round}");
        }
    }
}

#[test]
fn the_filter_of_a_live_port_is_replaced() {
    require!(skip::lab());
    for name in PORTS {
        let pair = Veth::new().create().unwrap();
        let mut port = open(&pair.right, name, &options());
        let switch = port.filter_switch();
        let (out, plan) = (sender(&pair.left), plan(&pair));
        send(&out, &plan, 0..40);
        let of = |port: u64, from: u64| (from..from + 40).filter(move |n| n % 4 == port);
        assert!(receive(&mut port, 10).into_iter().eq(of(0, 0)), "{name}");
        for (round, wanted) in [(1, 3), (2, 1), (3, 0)] {
            let filter = from_port(4000 + wanted as u16);
            switch.set(port.control.as_mut(), Some(&filter)).unwrap();
            send(&out, &plan, 40 * round..40 * round + 40);
            let got = receive(&mut port, 10);
            assert!(got.into_iter().eq(of(wanted, 40 * round)), "{name}");
        }
        // Without a filter, all arrive.
        switch.set(port.control.as_mut(), None).unwrap();
        send(&out, &plan, 160..200);
        assert!(receive(&mut port, 40).into_iter().eq(160..200), "{name}");
        port.control.stop().unwrap();
        let account = port.control.account().unwrap();
        let queue = &account.rx[0];
        assert_eq!(queue.imbalance(), 0, "{name}: {queue:?}");
        assert_eq!((queue.delivered, queue.seen), (80, 200), "{name}");
        let rejected = queue.dropped[DropReason::Filter as usize] + queue.passed;
        assert_eq!((rejected, queue.lost()), (120, 0), "{name}");
    }
}

/// A tap that was opened without a filter gets one, which is removed again.
#[test]
fn a_filter_can_be_added_to_a_tap() {
    require!(skip::lab());
    for name in &PORTS[..4] {
        let pair = Veth::new().create().unwrap();
        let mut port = open(&pair.right, name, &PortOptions::default());
        let switch = port.filter_switch();
        let (out, plan) = (sender(&pair.left), plan(&pair));
        let mut delivered = 0;
        for (round, filter) in [None, Some(4002), None, Some(4001)].into_iter().enumerate() {
            let filter = filter.map(from_port);
            switch.set(port.control.as_mut(), filter.as_ref()).unwrap();
            let from = 40 * round as u64;
            send(&out, &plan, from..from + 40);
            delivered += receive(&mut port, if filter.is_some() { 10 } else { 40 }).len();
        }
        port.control.stop().unwrap();
        let queue = port.control.account().unwrap().rx[0];
        assert_eq!(queue.imbalance(), 0, "{name}: {queue:?}");
        assert_eq!((queue.delivered, queue.seen), (delivered as u64, 160));
        assert_eq!(queue.dropped[DropReason::Filter as usize], 60, "{name}");
    }
}
