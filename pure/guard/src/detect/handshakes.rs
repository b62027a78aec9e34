//! Handshakes that nobody completes. After the SYN of a connection comes an ACK, the handshake's
//! third segment (RFC 9293, section 3.5), within a round trip. A SYN that no ACK follows leaves the
//! host with a half-open connection: some are normal (refused, scanned, a client that has gone),
//! many are a SYN flood, whatever the normal rates are.

use std::collections::BTreeMap;

/// Number of ticks after which a SYN is abandoned. A tick is about a second, and the first one may
/// come at once.
const WAIT_TICKS: u32 = 2;

/// SYNs that wait for their ACK. `F` identifies a connection, `S` is what the caller keeps of its
/// SYN.
#[derive(Clone, Debug)]
pub struct Handshakes<F, S> {
    waiting: BTreeMap<F, (u32, S)>,
    waiting_max: usize,
}

impl<F: Ord, S> Handshakes<F, S> {
    /// Creates a table for `waiting_max` SYNs; further ones are ignored.
    pub fn new(waiting_max: usize) -> Self {
        Handshakes {
            waiting: BTreeMap::new(),
            waiting_max,
        }
    }

    /// A SYN. One that is repeated does not wait longer.
    pub fn syn(&mut self, flow: F, syn: impl FnOnce() -> S) {
        if self.waiting.len() < self.waiting_max {
            self.waiting.entry(flow).or_insert_with(|| (0, syn()));
        }
    }

    /// A segment with an ACK; returns the SYN if it has waited for this.
    pub fn ack(&mut self, flow: &F) -> Option<S> {
        self.waiting.remove(flow).map(|(_, syn)| syn)
    }

    /// Ends an interval, and returns the SYNs that have waited for too long.
    pub fn tick(&mut self) -> Vec<S> {
        let over = self.waiting.extract_if(.., |_, (ticks, _)| {
            *ticks += 1;
            *ticks >= WAIT_TICKS
        });
        over.map(|(_, (_, syn))| syn).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_without_an_ack_is_abandoned_once() {
        let mut handshakes = Handshakes::new(10);
        handshakes.syn(1, || "one");
        handshakes.syn(2, || "two");
        assert_eq!(handshakes.ack(&1), Some("one"));
        assert_eq!(handshakes.ack(&1), None);
        assert!(handshakes.tick().is_empty());
        handshakes.syn(2, || "repeated");
        handshakes.syn(3, || "three");
        assert_eq!(handshakes.tick(), ["two"]);
        assert_eq!(handshakes.tick(), ["three"]);
        assert!(handshakes.tick().is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut handshakes = Handshakes::new(3);
        for flow in 0..10 {
            handshakes.syn(flow, || flow);
        }
        handshakes.tick();
        assert_eq!(handshakes.tick(), [0, 1, 2]);
        handshakes.syn(4, || 4);
        assert_eq!(handshakes.ack(&4), Some(4));
    }
}
