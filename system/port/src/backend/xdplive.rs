//! `xdplive:` sends without socket buffers: the kernel creates XDP frames, a program fills each
//! from a mapped ring, and the driver's `ndo_xdp_xmit` sends them.
//!
//! One system call (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`) sends the whole ring. It
//! costs some ten microseconds by itself, so the ring is long, and this port is for high rates.
//! Nothing is attached to the interface. Such packets bypass queueing disciplines and taps: a
//! tcpdump on the same interface does not see them.
//!
//! Packets that the driver refuses appear only in the interface's own counters, which other senders
//! update as well; they are read when the sender waits for everything to be sent, and the refused
//! packets then move from `sent` to `failed`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::slot::Slot;
use ring::{Frame, Pool};
use sys::link::{Link, LinkStats};
use sys::netlink::Socket;
use sys::privileges::Capability;
use sys::{Error, ErrorKind, Result};
use xdp::{LIVE_LEN_MIN, LiveTransmitter, Turns, with_identifier};

use crate::account::{PortAccount, TxAccount, TxCounters};
use crate::control::{Capabilities, Intake, PortControl, PortDescription, PortEvent};
use crate::options::PortOptions;
use crate::port::Port;
use crate::registry::{Backend, PortName, Target};
use crate::tx::{TxBackend, TxQueue};

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "sends without socket buffers, many packets per system call; taps do not see them",
    example: "xdplive:eth0",
    needs: "CAP_BPF and CAP_NET_ADMIN; Linux 5.18; a driver that accepts XDP frames (veth: GRO or \
        XDP at the other end)",
    target: Target::Interface,
    // Each batch is a run of its program.
    to_send: Some(Capability::Bpf),
    calls_bpf: true,
    faster: "a receiver with GRO accepts longer packets",
    ..Backend::new("xdplive", open)
};

/// Default number of packets per system call: its own cost is then below a tenth of theirs.
const RING_LEN: u32 = 2048;
const RING_LEN_MAX: u32 = 1 << 16;

/// How long the interface's counters must be unchanged to be final.
const SETTLE: Duration = Duration::from_millis(20);

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let what = format!("open xdplive:{}", name.target);
    let refuse = |why: String| Error::new(ErrorKind::InvalidInput, what.clone(), why);
    if options.direction.has_rx() {
        let hint = "receive with afpacket: or afxdp:";
        return Err(refuse("it only sends".into()).with_hint(hint));
    }
    if options.queue_count > 1 {
        return Err(refuse("it has one queue".into()));
    }
    let ring_len = ring_len(options).map_err(refuse)?;
    let link = Link::by_name(&name.target)?;
    if ![HARDWARE_ETHERNET, HARDWARE_LOOPBACK].contains(&link.hardware) {
        let why = format!(
            "its packets have no Ethernet header (hardware type {})",
            link.hardware
        );
        return Err(refuse(why));
    }
    let transmitter = LiveTransmitter::new(link.index, ring_len)?;
    let len_max = transmitter.len_max();
    let memory_len = transmitter.memory_len();
    let counters = Arc::new(TxCounters::default());
    let tx = Tx {
        ring_len: ring_len as usize,
        transmitter,
        start: 0,
        filled: 0,
        filled_bytes: 0,
        len_max,
        device: Device::new(link.clone())?,
        lost: 0,
        turns: Turns::new(Instant::now(), Turns::GAP),
        counters: counters.clone(),
    };
    let facts = vec![
        ("ring", format!("{ring_len} packets per system call")),
        ("longest", format!("{len_max} bytes")),
    ];
    let control = Control {
        device: Device::new(link.clone())?,
        counters: counters.clone(),
        is_gone: false,
        description: PortDescription {
            intake: Intake::Live,
            scheme: "xdplive",
            target: link.name.clone(),
            link_type: 1,
            facts,
            memory_len,
            interfaces: vec![(1, link.name)],
        },
    };
    Ok(Port {
        name: format!("xdplive:{}", name.target),
        rx: Vec::new(),
        tx: vec![TxQueue::new(Box::new(tx), 0, counters)],
        control: Box::new(control),
        capabilities: Capabilities {
            packet_len_max: len_max,
            ..Capabilities::default()
        },
    })
}

/// Number of packets per system call.
fn ring_len(options: &PortOptions) -> std::result::Result<u32, String> {
    match options.ring_len {
        0 => Ok(RING_LEN),
        len if len <= RING_LEN_MAX => Ok(len.next_power_of_two()),
        len => Err(format!("a ring of {len} is longer than {RING_LEN_MAX}")),
    }
}

/// Hardware types with Ethernet headers (Linux `include/uapi/linux/if_arp.h`).
const HARDWARE_ETHERNET: u16 = 1;
const HARDWARE_LOOPBACK: u16 = 772;

/// The interface's counters, read in the namespace in which the port was opened.
struct Device {
    link: Link,
    route: Socket,
    before: LinkStats,
}

impl Device {
    fn new(link: Link) -> Result<Self> {
        Ok(Self {
            before: link.stats,
            link,
            route: Socket::route()?,
        })
    }

    fn ask(&mut self) -> Result<()> {
        let asked = Link::ask_by_index(&mut self.route, self.link.index);
        self.link = asked.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let what = format!("send on {}", self.link.name);
                Error::new(ErrorKind::Gone, what, "the interface has been deleted")
            }
            _ => error,
        })?;
        Ok(())
    }

    /// Packets sent according to the interface since the port was opened, by any program.
    fn sent(&self) -> u64 {
        self.link
            .stats
            .tx_packets
            .saturating_sub(self.before.tx_packets)
    }

    fn dropped(&self) -> u64 {
        self.link
            .stats
            .tx_dropped
            .saturating_sub(self.before.tx_dropped)
    }
}

struct Tx {
    transmitter: LiveTransmitter,
    ring_len: usize,
    /// The first filled slot; those from here on are sent by the next run.
    start: usize,
    filled: usize,
    filled_bytes: u64,
    len_max: u32,
    device: Device,
    /// Packets that appeared to be sent and were then found missing.
    lost: u64,
    turns: Turns,
    counters: Arc<TxCounters>,
}

impl Tx {
    fn slot(&self, offset: usize) -> usize {
        (self.start + offset) % self.ring_len
    }

    /// Sends the filled slots. All slots are free afterwards.
    fn run(&mut self) -> Result<()> {
        let (mut left, mut sent) = (self.filled, 0);
        let mut result = Ok(());
        while left != 0 && result.is_ok() {
            let refused_before = self.transmitter.refused();
            self.counters.kicks.add(1);
            let wait = self.turns.take(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait);
            }
            let transmitter = &mut self.transmitter;
            let ran = with_identifier(|| transmitter.run(left as u32), std::thread::sleep);
            let submitted = match ran {
                Ok(submitted) => submitted as usize,
                Err(error) => {
                    // How much it had sent by then is unknown: none of it is claimed.
                    self.counters.failed.add(left as u64);
                    result = Err(error);
                    break;
                }
            };
            let refused = (self.transmitter.refused() - refused_before) as usize;
            sent += submitted;
            self.counters.failed.add(refused as u64);
            if refused != 0 {
                // One possible reason is that the device is gone.
                result = self.device.ask();
            }
            let done = submitted + refused;
            if done == 0 {
                // Interrupted before the first: the signal's handler has run by now.
                std::thread::yield_now();
            }
            left = left.saturating_sub(done);
        }
        // Packets refused by the program have no length here: use a share of the whole.
        let bytes = self.filled_bytes * sent as u64 / self.filled.max(1) as u64;
        self.counters.sent.add(sent as u64);
        self.counters.sent_bytes.add(bytes);
        self.start = self.transmitter.next_slot();
        self.filled = 0;
        self.filled_bytes = 0;
        result
    }

    /// Reads the interface's counters until they stop changing or account for everything, and moves
    /// lost packets from `sent` to `failed`.
    fn settle(&mut self, timeout: Duration) -> Result<()> {
        let sent = self.counters.sent.get() + self.lost;
        let end = Instant::now() + timeout.min(Duration::from_secs(1));
        let (mut seen, mut since) = (u64::MAX, Instant::now());
        // veth counts what its other end has received, so it lags; others may not count at all.
        let counts = self.device.link.kind == "veth";
        loop {
            self.device.ask()?;
            let now = self.device.sent() + self.device.dropped();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if !counts || now >= sent || since.elapsed() > SETTLE || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let missing = if counts {
            sent.saturating_sub(self.device.sent())
        } else {
            0
        };
        let lost = self.device.dropped().max(missing).min(sent);
        if lost > self.lost {
            let more = lost - self.lost;
            let mean = self.counters.sent_bytes.get() / self.counters.sent.get().max(1);
            self.counters.sent.add(more.wrapping_neg());
            self.counters.sent_bytes.add((more * mean).wrapping_neg());
            self.counters.failed.add(more);
            self.lost = lost;
        }
        Ok(())
    }
}

impl TxBackend for Tx {
    #[inline]
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let room = (self.ring_len - self.filled).min(max);
        for offset in self.filled..self.filled + room {
            let index = self.slot(offset);
            let data = self.transmitter.buffer(index);
            // SAFETY: each buffer has room for the longest packet, and this one is not waiting.
            slots.push(unsafe { Slot::over(data, self.len_max, self.len_max, index as u64) });
        }
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let mut at = 0;
        while at < filled {
            let slot = &slots[at];
            let mut count = 1;
            while slots[at + count - 1].has(Slot::CONTINUES) && at + count < filled {
                count += 1;
            }
            at += count;
            // A packet in several segments is longer than a page, the size of a live frame.
            if count > 1 || slot.cap_len() < LIVE_LEN_MIN {
                self.counters.failed.add(1);
                continue;
            }
            let index = self.slot(self.filled);
            if slot.token() != index as u64 {
                // An earlier packet was refused: close the gap. SAFETY: both are slots of the ring,
                // at least as long as the packet, and not the same one; the batch that borrowed
                // them is over.
                unsafe {
                    let to = self.transmitter.buffer(index);
                    to.copy_from_nonoverlapping(slot.data(), slot.cap_len() as usize);
                }
            }
            self.transmitter.set_len(index, slot.cap_len());
            self.filled += 1;
            self.filled_bytes += u64::from(slot.cap_len());
        }
        slots.clear();
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        drop(frame);
        let why = "it has no pool, so no frame can be of its pool";
        Err(Error::new(ErrorKind::Unsupported, "send a frame", why)
            .with_hint("write packets with reserve, or open afxdp: with a shared pool"))
    }

    fn flush(&mut self) -> Result<()> {
        if self.filled == 0 { Ok(()) } else { self.run() }
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        self.flush()?;
        if all {
            self.settle(timeout)?;
        }
        Ok(true)
    }

    fn pool(&self) -> Option<&Pool> {
        None
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Submitted packets are sent; there is no caller left to report a failure to.
        let _ = self.flush();
    }
}

struct Control {
    device: Device,
    counters: Arc<TxCounters>,
    is_gone: bool,
    description: PortDescription,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        let counters = &self.counters;
        let tx = TxAccount {
            queue_index: 0,
            sent: counters.sent.get(),
            sent_bytes: counters.sent_bytes.get(),
            failed: counters.failed.get(),
            copied: counters.copied.get(),
        };
        Ok(PortAccount {
            rx: Vec::new(),
            tx: vec![tx],
            interface_seen: None,
            interface_sent: None,
            rx_names: Vec::new(),
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        if self.is_gone {
            return None;
        }
        let (was_running, mtu) = (self.device.link.is_running(), self.device.link.mtu);
        match self.device.ask() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Gone => {
                self.is_gone = true;
                return Some(PortEvent::DeviceGone);
            }
            Err(_) => return None,
        }
        let link = &self.device.link;
        match (was_running, link.is_running()) {
            (true, false) => Some(PortEvent::LinkDown),
            (false, true) => Some(PortEvent::LinkUp),
            _ if mtu != link.mtu => Some(PortEvent::MtuChanged(link.mtu)),
            _ => None,
        }
    }

    fn describe(&self) -> PortDescription {
        self.description.clone()
    }

    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}
