//! What the tests of both taps share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
pub use std::time::{Duration, Instant};

pub use lab::packet::{Raw, Udp};
pub use lab::{End, Pair};
pub use port::{Packet, Port, PortOptions};

/// Longest time that a test waits for anything.
pub const LIMIT: Duration = Duration::from_secs(10);
/// After this long without a packet none is under way.
pub const QUIET: Duration = Duration::from_millis(200);

/// Longest sleep between two looks at all queues.
pub const LOOK: Duration = Duration::from_millis(5);

/// The name of a port on an end, by the tap that this binary tries; `query` may name another.
pub fn name(end: &End, query: &str) -> String {
    format!("afpacket:{}?tap={}&{query}", end.ifname, super::TAP)
}

/// Opens `afpacket:` on an end, inside its namespace.
pub fn try_open(end: &End, query: &str, options: &PortOptions) -> sys::Result<Port> {
    let name = name(end, query);
    end.ns.run(|| port::open(&name, options)).unwrap()
}

/// The same where it must work.
pub fn open(end: &End, query: &str) -> Port {
    try_open(end, query, &PortOptions::default()).unwrap()
}

/// A plain packet socket that sends on an end.
pub fn sender(end: &End) -> Raw {
    end.ns.run(|| Raw::sender(&end.ifname)).unwrap().unwrap()
}

/// Packets from left to right, for a third station, so that no host answers.
pub fn plan(pair: &Pair) -> Udp {
    Udp {
        destination_mac: [2, 0, 0, 0, 0, 99],
        ..Udp::between(&pair.left, &pair.right)
    }
}

/// Receives from all queues until `count` packets came or none for a while; calls back with the
/// queue's index.
pub fn receive(port: &mut Port, count: usize, mut each: impl FnMut(usize, Packet<'_>)) -> usize {
    // Where a number is known, only a failure waits long. Looks are counted, not time: a test that
    // did not run for a while has not looked.
    let looks = if count == usize::MAX { QUIET } else { LIMIT }.as_millis() / LOOK.as_millis();
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
            port.rx[0].wait(LOOK).unwrap();
            empty += 1;
        }
    }
    got
}

/// Receives until nothing comes any more; gives the packets' bytes.
pub fn collect(port: &mut Port) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    receive(port, usize::MAX, |_, packet| {
        packets.push(packet.bytes().to_vec())
    });
    packets
}

/// Sends packets one after the other in the background as long as it lives, also when its test
/// fails.
pub struct Flood<'scope> {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, u64>>,
}

impl<'scope> Flood<'scope> {
    /// Begins. What the interface refuses is left out.
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
