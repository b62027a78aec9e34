//! A pair of connected ports: packets sent on one are received on the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use port::testing::ModelWire;
use port::{Direction, Packet, Port, PortAccount, PortOptions, QueueAccount, Ready, RxQueue};
use port::{TxAccount, TxQueue};
use ring::{Pool, PoolConfig};

use super::hub::Hub;
use super::kept::Cards;
use super::{Joint, Rig, flows, kept};
use crate::guest::Bound;
use crate::oracle::{TempFile, write_pcap};
use crate::packet::{Addresses, Udp};
use crate::{Pair, Veth};

/// Time limit of any wait here.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Number of frames in the pool that both ports share.
pub const POOL_FRAMES: u32 = 4096;

/// Two connected open ports.
pub struct Line {
    /// The rig.
    pub rig: &'static Rig,
    /// Builds packets with addresses that fit the line.
    pub plan: Udp,
    /// The veth pair, or the cards in namespaces, if any.
    pub pair: Option<Pair>,
    /// MTU of the pair.
    mtu: u32,
    /// The receiving port; on a loop also the sending one.
    rx: Option<Port>,
    tx: Option<Port>,
    /// Packets to be written to the file.
    packets: Vec<Vec<u8>>,
    file: Option<TempFile>,
    options: PortOptions,
    /// The pool of both ports.
    pub pool: Pool,
    /// The models, if any. They outlive the ports.
    models: Option<ModelWire>,
    /// The cards bound to vfio-pci, if any: the sender's and the receiver's.
    pub cards: Option<[Bound; 2]>,
    /// What is between the ports, if it is a process of its own.
    hub: Option<Hub>,
    /// The queue in use on both ports; it receives the packets of `plan`.
    queue: usize,
}

/// Number of lines opened so far: if ports have several queues, each line uses the next one.
static OPENED: AtomicUsize = AtomicUsize::new(0);

impl Line {
    /// Opens a line with an MTU of 1500, with these changes to the options of both ports.
    pub fn open(rig: &'static Rig, change: impl FnOnce(&mut PortOptions)) -> Result<Line> {
        Line::open_mtu(rig, 1500, change)
    }

    /// Opens a line with another MTU.
    pub fn open_mtu(
        rig: &'static Rig,
        mtu: u32,
        change: impl FnOnce(&mut PortOptions),
    ) -> Result<Line> {
        let pool = Pool::new(PoolConfig {
            frame_count: POOL_FRAMES,
            ..PoolConfig::default()
        })?;
        let mut options = PortOptions {
            pool: Some(pool.clone()),
            ..PortOptions::default()
        };
        change(&mut options);
        let (pair, cards) = match (rig.joint, kept::take(rig, mtu)?) {
            (Joint::Wire(..), _) => (Some(Veth::new().mtu(mtu).create()?), None),
            (_, Some(Cards::Kernel(pair, _))) => (Some(pair), None),
            (_, Some(Cards::User(cards))) => (None, Some(cards)),
            (_, None) => (None, None),
        };
        let models = match rig.joint {
            Joint::Models(kind) => Some(ModelWire::new(kind).map_err(reported)?),
            _ => None,
        };
        let plan = match &pair {
            // To a third station: the host behind the tap must not answer.
            Some(pair) => Udp {
                destination_mac: [2, 0, 0, 0, 0, 99],
                ..Udp::between(&pair.left, &pair.right)
            },
            None => Udp {
                source_mac: [2, 0, 0, 0, 0, 1],
                destination_mac: [2, 0, 0, 0, 0, 2],
                addresses: Addresses::V4([10, 77, 0, 1].into(), [10, 77, 0, 2].into()),
                source_port: 4000,
                destination_port: 9,
                flow_count: 1,
                vlan: None,
            },
        };
        let mut line = Line {
            rig,
            plan,
            pair,
            mtu,
            rx: None,
            tx: None,
            packets: Vec::new(),
            file: None,
            options,
            pool,
            models,
            cards,
            hub: None,
            queue: OPENED.fetch_add(1, Ordering::Relaxed) % rig.queues as usize,
        };
        if rig.joint.is_slow() {
            line.plan.source_port = flows::ready(&mut line)?[line.queue];
        }
        line.open_ports()?;
        Ok(line)
    }

    /// Calls `act` with both ports open with default options.
    pub(super) fn with_plain_ports<T>(
        &mut self,
        work: impl FnOnce(&mut Line) -> Result<T>,
    ) -> Result<T> {
        let plain = PortOptions {
            pool: Some(self.pool.clone()),
            ..PortOptions::default()
        };
        let options = std::mem::replace(&mut self.options, plain);
        let result = self.open_ports().and_then(|()| work(self));
        (self.rx, self.tx) = (None, None);
        self.options = options;
        result
    }

    fn open_ports(&mut self) -> Result<()> {
        match self.rig.joint {
            Joint::Loop(name) => {
                let options = self.directed(Direction::Both);
                self.rx = Some(port::open(name, &options).map_err(reported)?);
            }
            Joint::File(_) => {}
            Joint::Cluster | Joint::Guests => {
                // The ports of the last one are closed by now.
                let mut hub = match self.rig.joint {
                    Joint::Cluster => Hub::cluster(&self.options)?,
                    _ => Hub::guests(),
                };
                let mut rx = hub.open(1, &self.directed(Direction::Rx))?;
                let mut tx = hub.open(0, &self.directed(Direction::Tx))?;
                hub.connect([&mut rx, &mut tx])?;
                (self.rx, self.tx, self.hub) = (Some(rx), Some(tx), Some(hub));
            }
            Joint::Wire(..) | Joint::Cards(..) | Joint::Vfio(..) => {
                self.rx = Some(self.open_end(1, Direction::Rx)?);
                self.tx = Some(self.open_end(0, Direction::Tx)?);
                // Once for both: an emulated card takes seconds to find its link.
                self.wait_for_link()?;
            }
            Joint::Models(_) => {
                let models = self.models.as_ref().context("no models")?;
                let [left, right] = models.ends();
                self.rx = Some(
                    right
                        .open(&self.directed(Direction::Rx))
                        .map_err(reported)?,
                );
                self.tx = Some(left.open(&self.directed(Direction::Tx)).map_err(reported)?);
            }
        }
        Ok(())
    }

    /// Whether the ends are independent, so that a packet without a reader is lost.
    pub fn is_wire(&self) -> bool {
        let is_cluster = matches!(self.rig.joint, Joint::Cluster);
        self.pair.is_some() || self.models.is_some() || self.cards.is_some() || is_cluster
    }

    /// Opens the receiving port of a wire.
    pub fn open_rx(&mut self) -> Result<()> {
        self.rx = Some(self.open_end(1, Direction::Rx)?);
        self.wait_for_link()
    }

    /// Opens the sending port of a wire.
    pub fn open_tx(&mut self) -> Result<()> {
        self.tx = Some(self.open_end(0, Direction::Tx)?);
        self.wait_for_link()
    }

    /// Opens the port on the left (0) or right (1) end of a wire.
    fn open_end(&self, index: usize, direction: Direction) -> Result<Port> {
        let names = self.rig.joint.port_names().context("not a wire")?;
        let options = self.directed(direction);
        if let Some(cards) = &self.cards {
            let name = names[index].replace("{}", &cards[index].address().to_string());
            return port::open(&name, &options).map_err(reported);
        }
        let pair = self.pair.as_ref().context("no pair")?;
        let end = [&pair.left, &pair.right][index];
        let name = names[index].replace("{}", &end.ifname);
        end.ns
            .run(|| port::open(&name, &options))?
            .map_err(reported)
    }

    /// A card loses its link for seconds when a program is attached, its MTU changes or its driver
    /// starts.
    pub fn wait_for_link(&mut self) -> Result<()> {
        if let (Joint::Cards(..), Some(pair)) = (self.rig.joint, &self.pair) {
            pair.left.wait_up(LIMIT)?;
            pair.right.wait_up(LIMIT)?;
        }
        if self.cards.is_some() {
            let end = Instant::now() + LIMIT;
            for port in [&mut self.rx, &mut self.tx].into_iter().flatten() {
                while !port.control.link_is_up().unwrap_or(true) {
                    ensure!(Instant::now() < end, "the link never came");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        Ok(())
    }

    fn directed(&self, direction: Direction) -> PortOptions {
        PortOptions {
            direction,
            // The sender has nothing to filter or truncate.
            filter: (direction != Direction::Tx)
                .then(|| self.options.filter.clone())
                .flatten(),
            ..self.options.clone()
        }
    }

    /// The receiving port; that of a file is opened now, with what was sent so far.
    pub fn rx_port(&mut self) -> Result<&mut Port> {
        if let (Joint::File(suffix), None) = (self.rig.joint, &self.rx) {
            let file = write_pcap(&self.packets)?;
            ensure!(
                file.path().to_string_lossy().ends_with(suffix),
                "suffix {suffix}"
            );
            let name = format!("file:{}", file.path().display());
            self.rx = Some(port::open(&name, &self.directed(Direction::Rx)).map_err(reported)?);
            self.file = Some(file);
        }
        self.rx.as_mut().context("the receiving port is closed")
    }

    /// The receive queue.
    pub fn rx(&mut self) -> Result<&mut RxQueue> {
        let queue = self.queue;
        let port = self.rx_port()?;
        port.rx.get_mut(queue).context("a receiving queue")
    }

    /// The transmit queue.
    pub fn tx(&mut self) -> Result<&mut TxQueue> {
        let queue = self.queue;
        let port = match self.rig.joint {
            Joint::Loop(_) => self.rx.as_mut(),
            _ => self.tx.as_mut(),
        };
        let port = port.context("the sending port is closed")?;
        port.tx.get_mut(queue).context("a sending queue")
    }

    /// Closes the receiving port (on a loop the only one).
    pub fn close_rx(&mut self) {
        self.rx = None;
    }

    /// Closes the sending side, if it is separate.
    pub fn close_tx(&mut self) {
        self.tx = None;
        if let (Joint::Loop(_), Some(port)) = (self.rig.joint, &mut self.rx) {
            port.tx.clear();
        }
        if let (Joint::Cluster, Some(hub)) = (self.rig.joint, &self.hub) {
            hub.stop();
        }
    }

    /// Sends packets, waiting for room; returns how many were accepted before nothing more was for
    /// `patience`.
    pub fn send_some(&mut self, packets: &[Vec<u8>], patience: Duration) -> Result<usize> {
        if let Joint::File(_) = self.rig.joint {
            self.packets.extend_from_slice(packets);
            return Ok(packets.len());
        }
        let tx = self.tx()?;
        let mut sent = 0;
        let mut moved = Instant::now();
        while sent < packets.len() {
            // Not only as many as packets are left: a large one takes several.
            let mut batch = tx.reserve(64).map_err(reported)?;
            let before = sent;
            while sent < packets.len() && batch.write(&packets[sent]) {
                sent += 1;
            }
            batch.submit().map_err(reported)?;
            if sent > before {
                moved = Instant::now();
            } else if moved.elapsed() >= patience {
                break;
            } else {
                tx.wait(false, Duration::from_millis(5)).map_err(reported)?;
            }
        }
        tx.flush().map_err(reported)?;
        Ok(sent)
    }

    /// Sends all these packets.
    pub fn send(&mut self, packets: &[Vec<u8>]) -> Result<()> {
        let sent = self.send_some(packets, LIMIT)?;
        ensure!(
            sent == packets.len(),
            "only {sent} of {} packets were accepted",
            packets.len()
        );
        Ok(())
    }

    /// Sends packets numbered `from..to`, all of this length.
    pub fn send_numbers(&mut self, from: u64, to: u64, len: usize) -> Result<()> {
        let packets: Vec<_> = (from..to)
            .map(|number| self.plan.build(number, len))
            .collect();
        self.send(&packets)
    }

    /// Receives until `count` packets arrived, or none for `quiet`. Calls back for each; returns
    /// their number.
    pub fn receive(
        &mut self,
        count: usize,
        quiet: Duration,
        mut each: impl FnMut(Packet<'_>) -> Result<()>,
    ) -> Result<usize> {
        const CHECK_INTERVAL: Duration = Duration::from_millis(10);
        let rx = self.rx()?;
        // Polls are counted, not time: a process that was not scheduled has not polled.
        let looks = quiet.as_millis().div_ceil(CHECK_INTERVAL.as_millis());
        let (mut got, mut empty) = (0, 0);
        while got < count {
            let batch = rx.receive().map_err(reported)?;
            for packet in batch.iter() {
                each(packet)?;
            }
            let arrived = batch.len();
            drop(batch);
            if arrived != 0 {
                (got, empty) = (got + arrived, 0);
            } else if empty > looks || rx.wait(CHECK_INTERVAL).map_err(reported)? == Ready::End {
                break;
            } else {
                empty += 1;
            }
        }
        Ok(got)
    }

    /// Receives on all queues until `count` packets arrived, or none for `quiet`. Calls back with
    /// the index of the queue and the packet.
    pub fn receive_on_all(
        &mut self,
        count: usize,
        quiet: Duration,
        mut each: impl FnMut(usize, Packet<'_>) -> Result<()>,
    ) -> Result<usize> {
        let (mut got, mut moved) = (0, Instant::now());
        while got < count && moved.elapsed() < quiet {
            for (at, rx) in self.rx_port()?.rx.iter_mut().enumerate() {
                let batch = rx.receive().map_err(reported)?;
                for packet in batch.iter() {
                    each(at, packet)?;
                }
                if !batch.is_empty() {
                    (got, moved) = (got + batch.len(), Instant::now());
                }
            }
            self.rx()?
                .wait(Duration::from_millis(5))
                .map_err(reported)?;
        }
        Ok(got)
    }

    /// Receives exactly these numbers in this order, each packet complete, and nothing after them.
    pub fn expect_numbers(&mut self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        self.take_numbers(numbers)?;
        self.receive(1, Duration::from_millis(30), |packet| {
            bail!("more came than was sent: {:02x?}", whole(packet));
        })?;
        Ok(())
    }

    /// Receives these numbers in this order, each packet complete. The next receiver gets what
    /// arrives later.
    pub fn take_numbers(&mut self, mut numbers: impl Iterator<Item = u64>) -> Result<()> {
        let mut missing = numbers.next();
        let plan = self.plan.clone();
        let mut check = |packet: Packet<'_>| {
            let bytes = whole(packet);
            let number = crate::packet::number_of(&bytes)
                .map_err(|alien| anyhow::anyhow!("a packet of {} bytes: {alien:?}", bytes.len()))?;
            ensure!(
                Some(number) == missing,
                "packet {number} came instead of {missing:?}"
            );
            ensure!(
                bytes == plan.build(number, bytes.len()),
                "packet {number} has other headers"
            );
            ensure!(
                packet.wire_len() as usize == bytes.len(),
                "packet {number}: wire_len"
            );
            missing = numbers.next();
            Ok(missing.is_none())
        };
        // One at a time, because the count is unknown.
        let (mut done, mut got) = (false, 0);
        self.receive_until(LIMIT, |packet| {
            got += 1;
            done = check(packet)?;
            Ok(done)
        })?;
        ensure!(
            done,
            "after {got} packets no more came: {missing:?} is missing"
        );
        Ok(())
    }

    /// Receives until the callback returns true, or nothing arrives for `quiet`.
    fn receive_until(
        &mut self,
        quiet: Duration,
        mut each: impl FnMut(Packet<'_>) -> Result<bool>,
    ) -> Result<()> {
        let mut done = false;
        while !done {
            let got = self.receive(1, quiet, |packet| {
                ensure!(!done, "more came than was sent");
                done = each(packet)?;
                Ok(())
            })?;
            if got == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The receiving port's account.
    pub fn rx_account(&mut self) -> Result<QueueAccount> {
        Ok(self.account()?.rx_total())
    }

    /// The whole account of the receiving port.
    pub fn account(&mut self) -> Result<PortAccount> {
        self.rx_port()?.control.account().map_err(reported)
    }

    /// The sending port's account.
    pub fn tx_account(&mut self) -> Result<TxAccount> {
        let port = match self.rig.joint {
            Joint::Loop(_) => self.rx.as_mut(),
            _ => self.tx.as_mut(),
        };
        let port = port.context("the sending port is closed")?;
        Ok(port.control.account().map_err(reported)?.tx_total())
    }

    /// Fails unless everything in the account was seen and delivered, and nothing is missing or
    /// counted twice.
    pub fn expect_account(&mut self, seen: u64, delivered: u64) -> Result<()> {
        let account = self.rx_account()?;
        ensure!(
            account.imbalance() == 0,
            "the account does not add up: {account:?}"
        );
        ensure!(account.seen == seen, "seen should be {seen}: {account:?}");
        ensure!(
            account.delivered == delivered,
            "delivered should be {delivered}: {account:?}"
        );
        Ok(())
    }

    /// Whether everything sent was seen at the other end.
    fn has_arrived(&mut self) -> bool {
        match (self.tx_account(), self.rx_account()) {
            (Ok(tx), Ok(rx)) => tx.sent == rx.seen,
            // One of them is already closed.
            _ => false,
        }
    }

    /// Closes both ports, after which every frame of the pool must be free.
    pub fn close(mut self) -> Result<()> {
        if self.rig.joint.is_slow() && self.has_arrived() {
            flows::none_under_way(self.rig);
        }
        (self.rx, self.tx) = (None, None);
        self.hub.as_mut().map_or(Ok(()), Hub::finish)?;
        let counts = self.pool.counts();
        let all_free = counts.free == POOL_FRAMES;
        ensure!(all_free, "frames are still out after closing: {counts:?}");
        match (self.rig.joint, self.pair.take(), self.cards.take()) {
            (Joint::Cards(..), Some(pair), _) => {
                kept::put(self.rig, Cards::Kernel(pair, self.mtu));
            }
            (_, _, Some(cards)) => kept::put(self.rig, Cards::User(cards)),
            _ => {}
        }
        Ok(())
    }
}

/// All bytes of a packet.
pub fn whole(packet: Packet<'_>) -> Vec<u8> {
    packet.segments().flatten().copied().collect()
}

/// Converts an error with its hint, for the output of a failed test.
pub fn reported(error: sys::Error) -> anyhow::Error {
    let hint = error.hint().map(|hint| format!(" (hint: {hint})"));
    anyhow::anyhow!("{error}{}", hint.unwrap_or_default())
}
