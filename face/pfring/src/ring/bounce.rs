//! Sending packets on as they were received: one of them to an interface by its index, or all to a
//! device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use port::Direction;
use sys::link::Link;

use super::{Outcome, Ring, lock};
use crate::sender::{Sender, Sent};
use crate::settings::{Mode, Settings};
use crate::status::{
    self, GENERIC, INVALID_ARGUMENT, NO_MEMORY, NO_PACKET, NO_TX_SLOT, NOT_ENABLED, NOT_SUPPORTED,
};

/// Maximum number of interfaces to which a ring sends packets on.
const TARGET_COUNT_MAX: usize = 64;

/// Where packets are sent on to.
#[derive(Default)]
pub struct Bounce {
    /// Interfaces, by their index, opened with the first packet for each.
    targets: Mutex<Vec<(u32, Sender)>>,
    /// The device to which all received packets go.
    reflector: Mutex<Option<Box<Ring>>>,
    is_reflecting: AtomicBool,
}

/// Opens an interface for sending only.
fn open(if_index: u32) -> Outcome<Sender> {
    let link = Link::by_index(if_index).map_err(|error| status::of(&error))?;
    let options = Settings::new(0, 0).options(Direction::Tx);
    let opened = port::open(&format!("afpacket:{}", link.name), &options);
    let mut port = opened.map_err(|error| status::of(&error))?;
    port.tx.pop().map(Sender::new).ok_or(NOT_SUPPORTED)
}

impl Ring {
    /// Sends the packet that was received last to another interface: at once if no other packet
    /// waits here, otherwise with the next ones.
    ///
    /// # Errors
    /// `NO_PACKET` if there is none, `GENERIC` for one that was truncated; as
    /// [`send`](Self::send).
    pub fn send_last(&self, if_index: u32) -> Outcome<()> {
        let mut receiver = lock(&self.receiver);
        let receiver = receiver.as_mut().ok_or(NOT_ENABLED)?;
        let flush = !receiver.has_packet();
        let (bytes, is_whole) = receiver.last().ok_or(NO_PACKET)?;
        if !is_whole {
            return Err(GENERIC);
        }
        let mut targets = lock(&self.bounce.targets);
        let known = targets.iter().position(|target| target.0 == if_index);
        let at = match known {
            Some(at) => at,
            None if targets.len() == TARGET_COUNT_MAX => return Err(NO_MEMORY),
            None => {
                targets.push((if_index, open(if_index)?));
                targets.len() - 1
            }
        };
        match targets[at].1.send(bytes, flush) {
            Ok(Sent::Accepted) => Ok(()),
            Ok(Sent::NoRoom) => Err(NO_TX_SLOT),
            Ok(Sent::Refused) => Err(INVALID_ARGUMENT),
            Err(error) => {
                // Another interface may get this index, or this one may come back.
                targets.swap_remove(at);
                Err(status::of(&error))
            }
        }
    }

    /// Sends all packets that are received from now on to a device, or to none. A ring that is
    /// enabled later receives whole packets for it, whatever it returns of them.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn set_reflector(&self, device: Option<&str>) -> Outcome<()> {
        let opened = device.map(|device| -> Outcome<Box<Ring>> {
            let ring = Ring::new(device, 0, 0)?;
            ring.set(|settings| settings.mode = Mode::Send)?;
            ring.enable()?;
            Ok(Box::new(ring))
        });
        let opened = opened.transpose()?;
        let is_reflecting = opened.is_some();
        lock(&self.settings).bounces |= is_reflecting;
        *lock(&self.bounce.reflector) = opened;
        let flag = &self.bounce.is_reflecting;
        flag.store(is_reflecting, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a received packet to the device of [`set_reflector`](Self::set_reflector), if there is
    /// one. A packet that it cannot send is lost, as with PF_RING. So is one of which only a part
    /// was delivered (`None`), which [`send_last`](Self::send_last) refuses.
    pub(super) fn reflect(&self, whole: Option<&[u8]>) {
        if self.bounce.is_reflecting.load(Ordering::Relaxed)
            && let Some(packet) = whole
            && let Some(ring) = &*lock(&self.bounce.reflector)
        {
            let _ = ring.send(packet, false);
        }
    }
}
