//! Returns packets to the host: as received on the guarded interface (live frames), or through a
//! TAP interface. Both keep the order: the kernel has handled a packet when the call returns.

use std::sync::Arc;
use std::time::Instant;

use sys::tun::Tap;
use sys::{Error, ErrorKind, Result};
use xdp::{
    LIVE_HOST_HEAD_LEN, LIVE_LEN_MAX, LIVE_LEN_MIN, LiveTransmitter, Turns, with_identifier,
};

use super::complete::{Completer, Failed};

/// Packets per live run at most.
const SLOTS: u32 = 512;

/// How packets return to the host, as requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GiveBack {
    /// Live frames, or a TAP interface where these are not possible.
    #[default]
    Auto,
    /// Live frames (Linux 5.18): the ingress interface stays the same.
    Live,
    /// A TAP interface.
    Tap,
}

/// The way of one worker, or of all.
#[derive(Debug)]
pub enum Way {
    /// Live frames.
    Live(Box<Live>),
    /// A TAP interface, which the workers share.
    Tap(Arc<Tap>),
}

/// A transmitter to the host, with its pacing.
#[derive(Debug)]
pub struct Live {
    transmitter: LiveTransmitter,
    turns: Turns,
    /// Slots filled for the next run.
    filled: u32,
    /// Packets that end in these: one may be divided into several segments.
    ends: u64,
}

/// The receiving queue and interface of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Ingress {
    pub ifindex: u32,
    pub mtu: u32,
    pub queue_index: u32,
    /// Number of workers, which share the machine's runs.
    pub worker_count: u32,
    /// The mark of returned packets.
    pub mark: Option<u64>,
}

impl Live {
    /// Opens the way of a queue.
    ///
    /// # Errors
    /// `Unsupported` for packets longer than a live frame, or if the kernel has none.
    pub fn open(ingress: Ingress) -> Result<Self> {
        let what = "return packets by live frames";
        if ingress.mtu.saturating_add(LIVE_HOST_HEAD_LEN) > LIVE_LEN_MAX {
            let why = format!(
                "packets of MTU {} do not fit: {LIVE_LEN_MAX} bytes do",
                ingress.mtu
            );
            return Err(Error::new(ErrorKind::Unsupported, what, why)
                .with_hint("--give-back tap returns packets of any length"));
        }
        let (ifindex, queue_index) = (ingress.ifindex, ingress.queue_index);
        let transmitter = LiveTransmitter::to_host(ifindex, queue_index, SLOTS, ingress.mark)?;
        if !transmitter.has_fast_calls() {
            let why = "without CAP_SYS_ADMIN at the start, each call takes milliseconds";
            return Err(Error::new(ErrorKind::Permission, what, why)
                .with_hint("--give-back tap needs CAP_NET_ADMIN only"));
        }
        let gap = Turns::GAP * ingress.worker_count.max(1);
        Ok(Self {
            transmitter,
            turns: Turns::new(Instant::now(), gap),
            filled: 0,
            ends: 0,
        })
    }

    /// Puts a packet into the next run. There must be room.
    fn add(&mut self, packet: &[u8]) -> Result<()> {
        let slot = self.transmitter.next_slot() + self.filled as usize;
        let slot = slot % self.transmitter.slot_count();
        self.transmitter.write(slot, packet)?;
        self.filled += 1;
        Ok(())
    }

    /// Returns the packets to the host.
    fn run(&mut self, done: &mut Given) -> Result<()> {
        let mut left = u64::from(std::mem::take(&mut self.filled));
        let packets = std::mem::take(&mut self.ends);
        let refused_before = self.transmitter.refused();
        while left != 0 {
            let wait = self.turns.take(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait);
            }
            let before = self.transmitter.refused();
            let transmitter = &mut self.transmitter;
            let ran = with_identifier(|| transmitter.run(left as u32), std::thread::sleep);
            let submitted = match ran {
                Ok(submitted) => submitted,
                Err(error) => {
                    // How many it had returned by then is unknown: none of them is claimed.
                    done.failed += packets;
                    return Err(error);
                }
            };
            left = left.saturating_sub(submitted + self.transmitter.refused() - before);
        }
        // The program refuses no packet that fits a slot, as all do.
        let refused = (self.transmitter.refused() - refused_before).min(packets);
        done.given_back += packets - refused;
        done.failed += refused;
        Ok(())
    }
}

/// What happened to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Returned to the host: packets as received, however many segments they were divided into.
    pub given_back: u64,
    /// Not returned.
    pub failed: u64,
}

/// Returns the packets of one worker.
#[derive(Debug)]
pub struct Giver {
    way: Way,
    completer: Completer,
    /// Since the last call of [`Giver::flush`].
    done: Given,
    /// The first error since then.
    error: Option<Error>,
}

impl Giver {
    /// Creates one; see [`Completer::new`].
    pub fn new(way: Way, completer: Completer) -> Self {
        Self {
            way,
            completer,
            done: Given::default(),
            error: None,
        }
    }

    /// Returns a packet, at the latest with [`Giver::flush`].
    pub fn give(&mut self, packet: &[u8]) {
        let Self {
            way,
            completer,
            done,
            error,
        } = self;
        let result = completer.pass(packet, |part| match way {
            _ if part.len() < LIVE_LEN_MIN as usize => Err(too_short()),
            Way::Tap(tap) => tap
                .write(part)
                .map_err(|error| Error::from_io("write to the TAP interface", error)),
            Way::Live(live) => {
                if live.filled == SLOTS
                    && let Err(why) = live.run(done)
                {
                    error.get_or_insert(why);
                }
                live.add(part)
            }
        });
        match (result, way) {
            (Ok(()), Way::Tap(_)) => done.given_back += 1,
            // Counted by the run.
            (Ok(()), Way::Live(live)) => live.ends += 1,
            (Err(failed), _) => {
                done.failed += 1;
                // The way works: this packet is too short or too long for it, as its sender chose.
                if let Failed::Other(why) = failed
                    && why.kind() != ErrorKind::InvalidInput
                {
                    error.get_or_insert(why);
                }
            }
        }
    }

    /// Returns what is still waiting, to the host; reports what happened to all packets since the
    /// last call, and the first error.
    pub fn flush(&mut self) -> (Given, Option<Error>) {
        if let Way::Live(live) = &mut self.way
            && let Err(why) = live.run(&mut self.done)
        {
            self.error.get_or_insert(why);
        }
        (std::mem::take(&mut self.done), self.error.take())
    }
}

fn too_short() -> Error {
    let why = "it is shorter than an Ethernet header";
    Error::new(ErrorKind::InvalidInput, "return a packet", why)
}
