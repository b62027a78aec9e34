//! Common code of the tests of `afxdp:`.
#![allow(dead_code, reason = "the other test binary uses the rest")]

use std::time::{Duration, Instant};

use lab::packet::{self, Raw, Udp};
use lab::{End, Pair};
use port::{Port, PortAccount, PortOptions, RxQueue};

/// Time limit of a test that might hang.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Opens a port in the namespace of an end; `{}` in `name` is the interface.
pub fn try_open(end: &End, name: &str, options: &PortOptions) -> sys::Result<Port> {
    let name = name.replace("{}", &end.ifname);
    end.ns.run(|| port::open(&name, options)).unwrap()
}

/// As [`try_open`], which must succeed.
pub fn open(end: &End, name: &str, options: &PortOptions) -> Port {
    try_open(end, name, options).unwrap_or_else(|e| panic!("{e}\nhint: {:?}", e.hint()))
}

/// A packet socket that sends on an end.
pub fn sender(end: &End) -> Raw {
    end.ns.run(|| Raw::sender(&end.ifname)).unwrap().unwrap()
}

/// A packet socket that receives what arrives at an end.
pub fn receiver(end: &End) -> Raw {
    end.ns.run(|| Raw::open(&end.ifname)).unwrap().unwrap()
}

/// A value of a port's description.
pub fn fact(port: &Port, name: &str) -> String {
    let description = port.control.describe();
    let found = description.facts.iter().find(|(n, _)| *n == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {description:?}"))
        .1
        .clone()
}

/// The bytes of all segments.
pub fn whole(packet: &port::Packet<'_>) -> Vec<u8> {
    packet.segments().flatten().copied().collect()
}

/// Receives everything pending; every packet must be intact and sent by the test.
pub fn drain(rx: &mut RxQueue) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let batch = rx.receive().unwrap();
        if batch.is_empty() {
            return numbers;
        }
        for packet in batch.iter() {
            numbers.push(packet::number_of(&whole(&packet)).unwrap());
        }
    }
}

/// Receives on all queues until `count` packets arrived in total, at most for `LIMIT`; returns the
/// numbers by queue.
pub fn receive(port: &mut Port, count: usize) -> Vec<Vec<u64>> {
    let until = Instant::now() + LIMIT;
    let mut numbers = vec![Vec::new(); port.rx.len()];
    while numbers.iter().map(Vec::len).sum::<usize>() < count {
        assert!(
            Instant::now() < until,
            "{numbers:?} of {count}: {:?}",
            port.control.account()
        );
        for (rx, numbers) in port.rx.iter_mut().zip(&mut numbers) {
            rx.wait(Duration::from_millis(1)).unwrap();
            numbers.extend(drain(rx));
        }
    }
    numbers
}

/// Sends packets `from..to` of 60 bytes in small bursts and receives in between, so that nothing is
/// lost for lack of room.
pub fn exchange(pair: &Pair, port: &mut Port, flows: u16, from: u64, to: u64) -> Vec<Vec<u64>> {
    let out = sender(&pair.left);
    let udp = Udp::between(&pair.left, &pair.right).flows(flows);
    let mut numbers = vec![Vec::new(); port.rx.len()];
    let mut next = from;
    while next < to {
        let burst = (to - next).min(64);
        for number in next..next + burst {
            out.send(&udp.build(number, 60)).unwrap();
        }
        next += burst;
        for (all, new) in numbers.iter_mut().zip(receive(port, burst as usize)) {
            all.extend(new);
        }
    }
    numbers
}

/// The account after the intake was stopped and the rings drained.
pub fn settled(port: &mut Port) -> (Vec<Vec<u64>>, PortAccount) {
    port.control.stop().unwrap();
    let left = port.rx.iter_mut().map(drain).collect();
    (left, port.control.account().unwrap())
}

/// Checks every row of an account.
pub fn assert_balanced(account: &PortAccount) {
    for queue in &account.rx {
        assert_eq!(queue.imbalance(), 0, "{queue:?}");
        assert_eq!(queue.in_flight, 0, "{queue:?}");
    }
}
