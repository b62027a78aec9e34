//! Common code of the tests of both taps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
pub use std::time::{Duration, Instant};

pub use lab::packet::{Raw, Udp};
pub use lab::{End, Pair};
pub use port::{Packet, Port, PortOptions};

/// Time limit of any wait in a test.
pub const LIMIT: Duration = Duration::from_secs(10);
/// After this long without a packet, none is in flight.
pub const QUIET: Duration = Duration::from_millis(200);

/// Longest sleep between two checks of all queues.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The name of a port on an end, with the tap that this module tests; `query` may name another.
pub fn name(end: &End, query: &str) -> String {
    format!("afpacket:{}?tap={}&{query}", end.ifname, super::TAP)
}

/// Opens `afpacket:` on an end, inside its namespace.
pub fn try_open(end: &End, query: &str, options: &PortOptions) -> sys::Result<Port> {
    let name = name(end, query);
    end.ns.run(|| port::open(&name, options)).unwrap()
}

/// As [`try_open`], which must succeed.
pub fn open(end: &End, query: &str) -> Port {
    try_open(end, query, &PortOptions::default()).unwrap()
}

/// A plain packet socket that sends on an end.
pub fn sender(end: &End) -> Raw {
    end.ns.run(|| Raw::sender(&end.ifname)).unwrap().unwrap()
}

/// Packets from left to right, to a third station, so that no host answers.
pub fn plan(pair: &Pair) -> Udp {
    Udp {
        destination_mac: [2, 0, 0, 0, 0, 99],
        ..Udp::between(&pair.left, &pair.right)
    }
}

/// Receives from all queues until `count` packets arrived or none for a while; calls back with the
/// queue's index.
pub fn receive(port: &mut Port, count: usize, mut each: impl FnMut(usize, Packet<'_>)) -> usize {
    // If the number is known, only a failure waits long. Checks are counted, not time: a test that
    // was not scheduled has not checked.
    let looks =
        if count == usize::MAX { QUIET } else { LIMIT }.as_millis() / CHECK_INTERVAL.as_millis();
    let (mut got, mut empty) = (0, 0);
    while got < count && empty < looks {
        let before = got;
        for (index, rx) in port.rx.iter_mut().enumerate() {
            let batch = rx.receive().unwrap();
            batch.iter().for_each(|packet| each(index, packet));
            got += batch.len();
        }
        if got > before {
            empty = 0;
        } else {
            port.rx[0].wait(CHECK_INTERVAL).unwrap();
            empty += 1;
        }
    }
    got
}

/// Receives until no more packets arrive; returns their bytes.
pub fn collect(port: &mut Port) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    receive(port, usize::MAX, |_, packet| {
        packets.push(packet.bytes().to_vec())
    });
    packets
}

/// Sends packets continuously in the background until dropped, also when its test fails.
pub struct Flood<'scope> {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, u64>>,
}

impl<'scope> Flood<'scope> {
    /// Starts sending. Packets that the interface refuses are skipped.
    pub fn begin<'env>(
        scope: &'scope Scope<'scope, 'env>,
        sender: &'scope Raw,
        plan: &'scope Udp,
    ) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = scope.spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                let _ = sender.send(&plan.build(number, 64));
                number += 1;
            }
            number
        });
        Flood {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Flood<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.thread.take().map(ScopedJoinHandle::join);
        println!("flood ended: {sent:?}");
    }
}
