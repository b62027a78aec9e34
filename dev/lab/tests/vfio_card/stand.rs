//! A port on a card bound to vfio-pci, and the kernel's card on the other end of its wire.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use lab::packet::{Raw, Udp, number_of};
use port::{Checksum, Direction, Port, PortEvent, PortOptions};

use super::{Peer, VfioCard};

/// Time limit of a test that might hang.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Number of probe packets; in no range of [`Stand::numbers`].
pub const ASKING: u64 = u64::MAX;

/// Both ends of a wire; dropped in order, the port first, the card last.
pub struct Stand {
    pub port: Port,
    pub out: Raw,
    pub into: Raw,
    pub peer: Peer,
    pub card: VfioCard,
    /// Packets passed to the port.
    pub handed: u64,
    /// Number of the next packet in either direction. Starts with the clock's nanoseconds: packets
    /// of an earlier stand on the same cards that are still in flight have others.
    next: u64,
}

/// A packet that the port has delivered.
#[derive(Clone, Debug)]
pub struct Got {
    pub queue: usize,
    /// Without a tag that the card stripped.
    pub bytes: Vec<u8>,
    /// TPID and TCI of the stripped tag.
    pub vlan: Option<(u16, u16)>,
    pub checksum: Checksum,
    pub hash: Option<u32>,
}

/// Opens a port on a card; `more` is the rest of the name.
pub fn open(card: &VfioCard, more: &str) -> sys::Result<Port> {
    let options = PortOptions {
        direction: Direction::Both,
        ..PortOptions::default()
    };
    port::open(&format!("vfio:{}{more}", card.address), &options)
}

/// The number of a packet, if it is one of these: others are late arrivals.
pub fn number_among(numbers: &Range<u64>, packet: &[u8]) -> Option<u64> {
    let number = number_of(packet).ok()?;
    numbers.contains(&number).then_some(number)
}

/// Receives pending packets on all queues.
pub fn take(port: &mut Port) -> Vec<Got> {
    let mut got = Vec::new();
    for (queue, rx) in port.rx.iter_mut().enumerate() {
        let batch = rx.receive().unwrap();
        got.extend(batch.iter().map(|packet| Got {
            queue,
            bytes: packet.segments().flatten().copied().collect(),
            vlan: packet.vlan().map(|vlan| (vlan.tpid, vlan.tci)),
            checksum: packet.checksum(),
            hash: packet.rss_hash(),
        }));
    }
    got
}

impl Stand {
    /// Takes the first card from the kernel, and brings the second up.
    pub fn new(names: [&str; 2], more: &str) -> Stand {
        let peer = Peer::up(names[1], 1500);
        Stand::on(peer, VfioCard::bind(names[0]), more)
    }

    /// Uses a card that is already bound to vfio-pci.
    pub fn on(peer: Peer, card: VfioCard, more: &str) -> Stand {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let port = open(&card, more).unwrap_or_else(|e| panic!("{e}\nhint: {:?}", e.hint()));
        Stand {
            port,
            out: peer.sender(),
            into: peer.receiver(),
            peer,
            card,
            handed: 0,
            next: now.unwrap().as_nanos() as u64,
        }
    }

    /// Closes the port and opens another.
    pub fn reopen(self, more: &str) -> Stand {
        drop(self.port);
        Stand::on(self.peer, self.card, more)
    }

    /// Numbers for this many packets, not used so far.
    pub fn numbers(&mut self, count: u64) -> Range<u64> {
        let first = self.next;
        self.next += count;
        first..self.next
    }

    /// One such number.
    pub fn number(&mut self) -> u64 {
        self.numbers(1).start
    }

    /// Packets to the port.
    pub fn there(&self) -> Udp {
        self.peer.plan(&self.card)
    }

    /// Packets from the port.
    pub fn back(&self) -> Udp {
        self.peer.plan_from(&self.card)
    }

    /// Waits a moment for packets, and receives them; services the sending side, as a forwarder
    /// does.
    pub fn look(&mut self, wait: Duration) -> Vec<Got> {
        self.port.tx[0].flush().unwrap();
        for rx in &mut self.port.rx {
            rx.wait(wait).unwrap();
        }
        take(&mut self.port)
    }

    /// Waits until packets arrive at the port, and for those in flight.
    pub fn wait_for_wire(&mut self) {
        let plan = self.there();
        let until = Instant::now() + LIMIT;
        loop {
            let _ = self.out.send(&plan.build(ASKING, 60));
            let got = self.look(Duration::from_millis(20));
            if got.iter().any(|got| number_of(&got.bytes) == Ok(ASKING)) {
                break;
            }
            assert!(Instant::now() < until, "no packet passes");
        }
        while !self.look(Duration::from_millis(100)).is_empty() {
            assert!(Instant::now() < until, "they come without an end");
        }
    }

    /// Waits for an event of the port.
    pub fn wait_for_event(&mut self, event: PortEvent) {
        let until = Instant::now() + LIMIT;
        loop {
            match self.port.control.event() {
                Some(reported) if reported == event => return,
                Some(reported) => panic!("{reported:?}, not {event:?}"),
                None => assert!(Instant::now() < until, "{event:?} never came"),
            }
            self.look(Duration::from_millis(5));
        }
    }

    /// Passes this many packets to the port, as far as there is room.
    pub fn hand(&mut self, count: u64) {
        self.try_hand(count).unwrap();
    }

    /// As [`hand`](Self::hand), with the port's error.
    pub fn try_hand(&mut self, count: u64) -> sys::Result<()> {
        let plan = self.back();
        let mut batch = self.port.tx[0].reserve(count as usize)?;
        for _ in 0..count {
            if !batch.write(&plan.build(self.next, 60)) {
                break;
            }
            self.next += 1;
            self.handed += 1;
        }
        batch.submit()?;
        self.port.tx[0].flush()
    }

    /// Sends this many packets each way: every byte arrives, once. Late arrivals are ignored.
    pub fn both_ways(&mut self, count: u64) {
        let (there, back) = (self.there(), self.back());
        let until = Instant::now() + LIMIT;
        // Room for what follows.
        while self
            .into
            .receive(Duration::from_millis(1))
            .unwrap()
            .is_some()
        {
            assert!(Instant::now() < until, "they come without an end");
        }
        let ours = self.numbers(count);
        let (mut sent, mut seen) = (ours.start, BTreeSet::new());
        loop {
            while sent < ours.end && sent < ours.start + seen.len() as u64 + 50 {
                self.out.send(&there.build(sent, 100)).unwrap();
                sent += 1;
            }
            let got = self.look(Duration::from_millis(5));
            // A check after the last one shows duplicates.
            if got.is_empty() && seen.len() as u64 == count {
                break;
            }
            for got in got {
                let Some(number) = number_among(&ours, &got.bytes) else {
                    continue;
                };
                assert!(got.bytes == there.build(number, 100), "packet {number}");
                assert!(seen.insert(number), "packet {number} twice");
            }
            assert!(
                Instant::now() < until,
                "{} of {count} came: {:?}",
                seen.len(),
                self.port.control.account()
            );
        }
        // Allocated by `hand`.
        let ours = self.next..self.next + count;
        let mut seen = BTreeSet::new();
        loop {
            let left = ours.end - self.next;
            if left != 0 && self.next < ours.start + seen.len() as u64 + 50 {
                self.hand(left.min(25));
            }
            self.port.tx[0].flush().unwrap();
            let mut is_quiet = true;
            while let Some(bytes) = self.into.receive(Duration::from_millis(1)).unwrap() {
                is_quiet = false;
                let Some(number) = number_among(&ours, &bytes) else {
                    continue;
                };
                assert!(bytes == back.build(number, 60), "packet {number}");
                assert!(seen.insert(number), "packet {number} twice");
            }
            if is_quiet && seen.len() as u64 == count {
                break;
            }
            assert!(Instant::now() < until, "{} of {count} left", seen.len());
        }
    }

    /// Checks that the account adds up on both sides; the card does not report more packets as sent
    /// than it was given.
    pub fn check_account(&mut self) {
        let account = self.port.control.account().unwrap();
        assert_eq!(account.rx_total().imbalance(), 0, "{account:?}");
        let sent = account.tx_total();
        assert_eq!(sent.sent + sent.failed, self.handed, "{account:?}");
        if let Some(by_card) = account.interface_sent {
            assert!(by_card <= sent.sent, "{account:?}");
        }
    }
}

/// A value of the description.
pub fn fact(port: &Port, name: &str) -> String {
    let facts = port.control.describe().facts;
    let found = facts.iter().find(|(n, _)| *n == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {facts:?}"))
        .1
        .clone()
}
