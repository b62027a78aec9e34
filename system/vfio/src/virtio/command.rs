//! The control queue (VIRTIO 1.2 §5.1.6.5): a command, its data, and one byte of answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use sys::{Error, ErrorKind, Result};

use super::super::dma::{DmaArray, DmaSpace};
use super::super::driver::REVIVE;
use super::super::registers::Registers;
use super::ring::{Element, NO_FRAME, Ring, Used};
use super::transport::Doorbell;

/// Class and command (§5.1.6.5.1, §5.1.6.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    class: u8,
    command: u8,
    /// In words, for an error.
    what: &'static str,
    /// What helps where the device refuses it.
    without: &'static str,
}

const fn command(class: u8, command: u8, what: &'static str) -> Command {
    Command {
        class,
        command,
        what,
        without: "with QEMU: with -device virtio-net-pci,ctrl_rx=off it receives everything",
    }
}

/// Packets for every station.
pub(super) const PROMISC: Command = command(0, 0, "set promiscuous mode");
/// All multicast packets.
pub(super) const ALLMULTI: Command = command(0, 1, "set the multicast mode");
/// No multicast, no unicast, no broadcast packets (CTRL_RX_EXTRA).
pub(super) const NOMULTI: Command = command(0, 3, "stop multicast packets");
/// See above.
pub(super) const NOUNI: Command = command(0, 4, "stop unicast packets");
/// See above.
pub(super) const NOBCAST: Command = command(0, 5, "stop broadcast packets");
/// How many queue pairs are in use, as two bytes.
pub(super) const VQ_PAIRS_SET: Command = Command {
    without: "fewer queues=; with QEMU: as many queues= on the backend (-netdev) as the device has",
    ..command(4, 0, "set the number of queue pairs")
};

/// The device did it.
const OK: u8 = 0;
/// Not an answer of any device.
const NO_ANSWER: u8 = 0xa5;

/// Most bytes of data of a command.
const DATA_MAX: usize = 8;
/// Where in the memory the answer goes: a line of its own.
const ANSWER: usize = 64;

/// How long the device may take for a command.
const WAIT: Duration = Duration::from_secs(1);

/// The control queue; commands go one by one.
pub(super) struct Control<G, R> {
    ring: R,
    bell: Doorbell<G>,
    memory: DmaArray<AtomicU8>,
    /// A command was not answered: the device still has its buffer.
    stuck: bool,
}

impl<G: Registers, R: Ring> Control<G, R> {
    pub(super) fn new(dma: &Arc<DmaSpace>, ring: R, bell: Doorbell<G>) -> Result<Self> {
        let area = Arc::new(dma.allocate(2 * ANSWER)?);
        Ok(Self {
            ring,
            bell,
            memory: area.array(0, 2 * ANSWER),
            stuck: false,
        })
    }

    /// Has the device do something.
    ///
    /// # Errors
    /// `Unsupported` if it refuses, `Io` if it does not answer.
    pub(super) fn run(&mut self, command: Command, data: &[u8]) -> Result<()> {
        let fail = |kind, why: &str| Err(Error::new(kind, command.what, why).with_hint(REVIVE));
        if self.stuck || data.len() > DATA_MAX {
            return fail(
                ErrorKind::Io,
                "the device did not answer the previous command",
            );
        }
        let bytes = [command.class, command.command];
        for (place, byte) in self.memory.iter().zip(bytes.iter().chain(data)) {
            place.store(*byte, Ordering::Relaxed);
        }
        self.memory[ANSWER].store(NO_ANSWER, Ordering::Relaxed);
        let element = |offset: usize, len: usize| Element {
            iova: self.memory.iova() + offset as u64,
            len: len as u32,
            frame: NO_FRAME,
        };
        let elements = [element(0, 2 + data.len()), element(ANSWER, 1)];
        if !self.ring.offer_chain(&elements, true) {
            return fail(ErrorKind::Io, "the control queue is full");
        }
        if self.ring.publish() {
            self.bell.ring();
        }
        let end = Instant::now() + WAIT;
        loop {
            match self.ring.next_used() {
                Used::Buffer { id, .. } => {
                    self.ring.book_mut().leave(id, |_| {});
                    break;
                }
                Used::Foreign => {
                    self.stuck = true;
                    return fail(ErrorKind::Damaged, "the device sent an unexpected answer");
                }
                Used::Nothing if Instant::now() >= end => {
                    self.stuck = true;
                    return fail(ErrorKind::Io, "the device does not answer");
                }
                Used::Nothing => std::thread::sleep(Duration::from_micros(10)),
            }
        }
        match self.memory[ANSWER].load(Ordering::Relaxed) {
            OK => Ok(()),
            _ => {
                let (kind, why) = (ErrorKind::Unsupported, "the device refuses");
                Err(Error::new(kind, command.what, why).with_hint(command.without))
            }
        }
    }
}
