//! A port on a card that VFIO has, and the kernel's card on the other end of its wire.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lab::packet::{Raw, Udp, number_of};
use port::{Checksum, Direction, Port, PortEvent, PortOptions};

use super::{Peer, VfioCard};

/// Longer than anything here takes, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Number of the packets that only ask whether any pass.
pub const ASKING: u64 = u64::MAX;

/// Both ends of a wire; dropped from the port to the card.
pub struct Stand {
    pub port: Port,
    pub out: Raw,
    pub into: Raw,
    pub peer: Peer,
    pub card: VfioCard,
    /// Packets that were handed to the port.
    pub handed: u64,
    /// Number of the next packet of either direction.
    next: u64,
}

/// A packet that the port has delivered.
#[derive(Clone, Debug)]
pub struct Got {
    pub queue: usize,
    /// Without a tag that the card took out.
    pub bytes: Vec<u8>,
    /// TPID and TCI of that tag.
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

/// What there is now, on all queues.
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
    /// Takes the first card from the kernel, the second up.
    pub fn new(names: [&str; 2], more: &str) -> Stand {
        let peer = Peer::up(names[1], 1500);
        Stand::on(peer, VfioCard::bind(names[0]), more)
    }

    /// With a card that VFIO has already.
    pub fn on(peer: Peer, card: VfioCard, more: &str) -> Stand {
        let port = open(&card, more).unwrap_or_else(|e| panic!("{e}\nhint: {:?}", e.hint()));
        Stand {
            port,
            out: peer.sender(),
            into: peer.receiver(),
            peer,
            card,
            handed: 0,
            next: 0,
        }
    }

    /// Closes the port and opens another.
    pub fn reopen(self, more: &str) -> Stand {
        drop(self.port);
        Stand::on(self.peer, self.card, more)
    }

    /// Packets to the port.
    pub fn there(&self) -> Udp {
        self.peer.plan(&self.card)
    }

    /// And from it.
    pub fn back(&self) -> Udp {
        self.peer.plan_from(&self.card)
    }

    /// Waits a moment for packets, and takes them; looks after the sending side, as whoever
    /// forwards does.
    pub fn look(&mut self, wait: Duration) -> Vec<Got> {
        self.port.tx[0].flush().unwrap();
        for rx in &mut self.port.rx {
            rx.wait(wait).unwrap();
        }
        take(&mut self.port)
    }

    /// Waits until packets arrive at the port, and for those that are on their way.
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
        while !self.look(Duration::from_millis(100)).is_empty() {}
    }

    /// Waits for an event of the port.
    pub fn wait_for_event(&mut self, event: PortEvent) {
        let until = Instant::now() + LIMIT;
        loop {
            match self.port.control.event() {
                Some(told) if told == event => return,
                Some(told) => panic!("{told:?}, not {event:?}"),
                None => assert!(Instant::now() < until, "{event:?} never came"),
            }
            self.look(Duration::from_millis(5));
        }
    }

    /// Hands so many packets to the port, as far as there is room.
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

    /// So many packets each way: every byte, once.
    pub fn both_ways(&mut self, count: u64) {
        let (there, back) = (self.there(), self.back());
        // What was sent before, and is not asked for.
        while self
            .into
            .receive(Duration::from_millis(1))
            .unwrap()
            .is_some()
        {}
        let first = self.next;
        self.next += count;
        let (mut sent, mut seen) = (first, BTreeSet::new());
        let until = Instant::now() + LIMIT;
        while (seen.len() as u64) < count {
            assert!(
                Instant::now() < until,
                "{} of {count} came: {:?}",
                seen.len(),
                self.port.control.account()
            );
            while sent < self.next && sent < first + seen.len() as u64 + 50 {
                self.out.send(&there.build(sent, 100)).unwrap();
                sent += 1;
            }
            for got in self.look(Duration::from_millis(5)) {
                let Ok(number) = number_of(&got.bytes) else {
                    continue;
                };
                assert!(got.bytes == there.build(number, 100), "packet {number}");
                assert!(seen.insert(number), "packet {number} twice");
            }
        }
        let first = self.next;
        let mut seen = BTreeSet::new();
        while (seen.len() as u64) < count {
            assert!(Instant::now() < until, "{} of {count} left", seen.len());
            let left = first + count - self.next;
            if left != 0 && self.next < first + seen.len() as u64 + 50 {
                self.hand(left.min(25));
            }
            self.port.tx[0].flush().unwrap();
            while let Some(bytes) = self.into.receive(Duration::from_millis(1)).unwrap() {
                let Ok(number) = number_of(&bytes) else {
                    continue;
                };
                assert!(bytes == back.build(number, 60), "packet {number}");
                assert!(seen.insert(number), "packet {number} twice");
            }
        }
    }

    /// The account adds up, on both sides; what the card says it has sent is not more than what it
    /// was given.
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

/// What the description says of something.
pub fn fact(port: &Port, name: &str) -> String {
    let facts = port.control.describe().facts;
    let found = facts.iter().find(|(n, _)| *n == name);
    found
        .unwrap_or_else(|| panic!("no {name}: {facts:?}"))
        .1
        .clone()
}
