//! The control queue (VIRTIO 1.2 §5.1.6.5): a command, its data, and a one-byte response.

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
    /// Description for errors.
    what: &'static str,
    /// Workaround if the device refuses it.
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

/// Receive packets for all stations.
pub(super) const PROMISC: Command = command(0, 0, "set promiscuous mode");
/// Receive all multicast packets.
pub(super) const ALLMULTI: Command = command(0, 1, "set the multicast mode");
/// Receive no multicast packets (CTRL_RX_EXTRA).
pub(super) const NOMULTI: Command = command(0, 3, "stop multicast packets");
/// Receive no unicast packets.
pub(super) const NOUNI: Command = command(0, 4, "stop unicast packets");
/// Receive no broadcast packets.
pub(super) const NOBCAST: Command = command(0, 5, "stop broadcast packets");
/// Set the number of queue pairs in use, as two bytes.
pub(super) const VQ_PAIRS_SET: Command = Command {
    without: "fewer queues=; with QEMU: as many queues= on the backend (-netdev) as the device has",
    ..command(4, 0, "set the number of queue pairs")
};

/// Response: success.
const OK: u8 = 0;
/// Not a response of any device.
const NO_ANSWER: u8 = 0xa5;

/// Maximum length of a command's data.
const DATA_MAX: usize = 8;
/// Offset of the response in the memory: on its own cache line.
const ANSWER: usize = 64;

/// Maximum time that the device may take for a command.
const WAIT: Duration = Duration::from_secs(1);

/// The control queue; commands are executed one by one.
pub(super) struct Control<G, R> {
    ring: R,
    bell: Doorbell<G>,
    memory: DmaArray<AtomicU8>,
    /// Whether a command was not answered: the device still has its buffer.
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

    /// Executes a command.
    ///
    /// # Errors
    /// `Unsupported` if the device refuses it, `Io` if it does not respond.
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
