//! Sends through live frames: the kernel creates XDP frames, a program fills them, and the device's
//! `ndo_xdp_xmit` sends them. No socket buffer is allocated, and one system call sends thousands of
//! packets.
//!
//! [`LiveTransmitter::to_host`] instead passes the packets to the host's network stack, as received
//! from the device.
//!
//! This suits a load generator, not a host: nothing checks for free ring space. Packets that the
//! device does not accept are dropped and appear only in the device's counters, so
//! [`LiveTransmitter::account`] reads those.
//!
//! # Cost of a call
//! A test run of more than one round enters its program into the kernel's XDP dispatcher and
//! removes it again (`bpf_prog_change_xdp` in `net/bpf/test_run.c`), and each time waits until all
//! processors have seen the change: some 11 ms per call here, whatever it sends. A program that is
//! already in the dispatcher avoids this: 11 µs per call. It is therefore attached where it never
//! sees a packet, to the loopback interface of a private namespace. Without the privilege to create
//! one (CAP_SYS_ADMIN) everything works, but only long runs are fast; see
//! [`LiveTransmitter::has_fast_calls`].
//!
//! # Since Linux
//! 5.18

pub mod turns;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use sys::bpf::{Map, MapMemory, MapSpec, MapType, TestRun, UpdateMode};
use sys::link::{Link, LinkStats, XdpFeatures};
use sys::{Error, ErrorKind, Result};

use crate::programs::transmit::{self, Exit, SLOT_HEAD_LEN, TransmitMaps, control};
use crate::{AttachMode, XdpLink, XdpProgram};

/// Minimum packet length: an Ethernet header.
pub const LIVE_LEN_MIN: u32 = 14;
/// Maximum packet length: a page less the kernel's overhead. (256 bytes of headroom, and the
/// frame's head and tail; 3,300 is safe on every 64-bit kernel so far.)
pub const LIVE_LEN_MAX: u32 = 3_300;
/// What a packet for the host may have beside an IP packet of the MTU: the link header, and two
/// VLAN tags.
pub const LIVE_HOST_HEAD_LEN: u32 = 14 + 2 * 4;
/// Packets between two flushes: the kernel's default. A veth's ring holds 256, and larger batches
/// may fill it faster than it is drained.
const BATCH_SIZE: u32 = 64;

/// Counters of a transmitter since its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LiveAccount {
    /// Packets that the program handed to the device.
    pub submitted: u64,
    /// Packets that could not be handed over: slot never written, no room in the frame, or device
    /// gone.
    pub refused: u64,
    /// Packets that the device reports as sent, from any source. Some devices do not count XDP.
    pub device_sent: u64,
    /// Packets that the device reports as dropped on transmit, from any source.
    pub device_dropped: u64,
}

/// Sends packets that were written into slots, in order.
///
/// Leaves nothing behind when dropped: no program stays attached.
#[derive(Debug)]
pub struct LiveTransmitter {
    program: XdpProgram,
    /// Kept alive for the program.
    _maps: Vec<Map>,
    resident: Option<Resident>,
    control: MapMemory,
    slots: MapMemory,
    /// The frame that the kernel replicates; only its length matters.
    frame: Vec<u8>,
    /// The device and the queue on which packets for the host arrive (`struct xdp_md`); otherwise
    /// empty.
    context: Vec<u8>,
    lens: Vec<u32>,
    next: usize,
    wrap: usize,
    stride: usize,
    len_max: u32,
    ifindex: u32,
    stats_before: LinkStats,
}

impl LiveTransmitter {
    /// Creates a transmitter for a device in this network namespace, with `slot_count` slots.
    ///
    /// # Errors
    /// `Unsupported` if the device accepts no XDP frames: its driver cannot, or, for veth, the
    /// other end is not ready (see the hint); `Gone` if the link is down; `Permission`.
    pub fn new(ifindex: u32, slot_count: u32) -> Result<Self> {
        let device = Link::by_index(ifindex)?;
        check_ready(&device)?;
        let map = Map::create(&MapSpec {
            kind: MapType::Devmap,
            name: "bw_tx_device",
            key_size: 4,
            value_size: 4,
            max_entries: 1,
            mappable: false,
        })?;
        map.update(&[0; 4], &ifindex.to_ne_bytes(), UpdateMode::Any)?;
        let exit = Exit::Device(map.as_fd().as_raw_fd());
        Self::with_exit(&device, slot_count, exit, vec![map])
    }

    /// Creates a transmitter to the host's network stack: packets arrive there as received on a
    /// queue of the device, behind its XDP program in the driver. One in generic mode sees them;
    /// with `mark`, this number is in the 8 bytes before each packet, where a program finds it
    /// through `bpf_xdp_adjust_meta`. There is room for [`LIVE_HOST_HEAD_LEN`] bytes beside an IP
    /// packet of the MTU, up to [`LIVE_LEN_MAX`] in all. Nothing tells whether the stack keeps a
    /// packet: it drops those of a link that is down.
    ///
    /// # Errors
    /// `NotFound` if there is no such device; `Permission`; the kernel's refusal before Linux 5.18.
    pub fn to_host(
        ifindex: u32,
        queue_index: u32,
        slot_count: u32,
        mark: Option<u64>,
    ) -> Result<Self> {
        let device = Link::by_index(ifindex)?;
        let mut new = Self::with_exit(&device, slot_count, Exit::Host { mark }, Vec::new())?;
        new.context_of(queue_index);
        Ok(new)
    }

    /// Fills in the context: data, data_end, data_meta, ingress_ifindex, rx_queue_index and
    /// egress_ifindex. The kernel checks the first two against the frame.
    fn context_of(&mut self, queue_index: u32) {
        self.context = [0, 0, 0, self.ifindex, queue_index, 0]
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect();
    }

    /// `maps`: those that the exit uses.
    fn with_exit(device: &Link, slot_count: u32, exit: Exit, mut maps: Vec<Map>) -> Result<Self> {
        let head_len = match exit {
            Exit::Host { .. } => LIVE_HOST_HEAD_LEN,
            // Link header and one VLAN tag: the kernel's own limit for redirected frames.
            _ => 14 + 4,
        };
        let len_max = device.mtu.saturating_add(head_len).min(LIVE_LEN_MAX);
        let stride = (len_max + SLOT_HEAD_LEN as u32).next_power_of_two();
        let slot_count = slot_count.max(1);
        let Some(value_size) = stride.checked_mul(slot_count).filter(|&n| n <= 1 << 28) else {
            let why = format!("{slot_count} slots of {stride} bytes are more than 256 MiB");
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "allocate memory for packets",
                why,
            ));
        };
        let spec = MapSpec {
            kind: MapType::Array,
            name: "bw_tx_slots",
            key_size: 4,
            value_size,
            max_entries: 1,
            mappable: true,
        };
        let slots_map = Map::create(&spec)?;
        let control_map = Map::create(&MapSpec {
            name: "bw_tx_control",
            value_size: control::LEN,
            ..spec
        })?;
        let insns = transmit::generate(&TransmitMaps {
            control_fd: control_map.as_fd().as_raw_fd(),
            slots_fd: slots_map.as_fd().as_raw_fd(),
            exit,
            slot_count,
            stride,
            len_max,
        })?;
        let (control, slots) = (control_map.memory()?, slots_map.memory()?);
        maps.extend([slots_map, control_map]);
        let program = XdpProgram::load("bw_transmit", &insns, false, None)?;
        Ok(Self {
            resident: Resident::new(&program).ok(),
            program,
            control,
            slots,
            _maps: maps,
            frame: vec![0; len_max as usize],
            context: Vec::new(),
            // A slot that was never written is longer than any packet: refused, not sent.
            lens: vec![u32::MAX; slot_count as usize],
            next: 0,
            wrap: slot_count as usize,
            stride: stride as usize,
            len_max,
            ifindex: device.index,
            stats_before: device.stats,
        })
    }

    /// The program, for inspection.
    pub fn program(&self) -> &XdpProgram {
        &self.program
    }

    /// Whether a run of a few packets takes microseconds. If not, every run takes milliseconds, and
    /// should send 100,000 packets or more.
    pub fn has_fast_calls(&self) -> bool {
        self.resident.is_some()
    }

    /// Number of slots.
    pub fn slot_count(&self) -> usize {
        self.lens.len()
    }

    /// Maximum packet length in bytes, given the device's MTU and the page size.
    pub fn len_max(&self) -> u32 {
        self.len_max
    }

    /// The first slot of the next run.
    pub fn next_slot(&self) -> usize {
        self.next
    }

    /// Writes a packet into a slot, from its link header on.
    ///
    /// # Errors
    /// `InvalidInput` if the slot does not exist, or the packet is shorter than [`LIVE_LEN_MIN`] or
    /// longer than [`LiveTransmitter::len_max`].
    pub fn write(&mut self, slot: usize, packet: &[u8]) -> Result<()> {
        let what = "write down a packet to send";
        if slot >= self.lens.len() {
            let why = format!("slot {slot} of {}", self.lens.len());
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        let len = packet.len() as u32;
        if packet.len() > self.len_max as usize || len < LIVE_LEN_MIN {
            let why = format!(
                "{} bytes, not {LIVE_LEN_MIN} to {}",
                packet.len(),
                self.len_max
            );
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        let at = slot * self.stride;
        self.slots.word(at).store(len.into(), Relaxed);
        self.slots.write(at + SLOT_HEAD_LEN, packet);
        self.lens[slot] = len;
        Ok(())
    }

    /// Buffer of a slot, with room for [`LiveTransmitter::len_max`] bytes: write the packet in
    /// place, then set its length with [`LiveTransmitter::set_len`]. The transmitter owns the
    /// memory; the kernel reads it only during [`LiveTransmitter::run`].
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn buffer(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.lens.len());
        self.slots.address(slot * self.stride + SLOT_HEAD_LEN)
    }

    /// Sets the length of a packet that was written in place.
    ///
    /// # Panics
    /// If the slot does not exist, or the length is not between [`LIVE_LEN_MIN`] and
    /// [`LiveTransmitter::len_max`].
    #[inline]
    pub fn set_len(&mut self, slot: usize, len: u32) {
        assert!((LIVE_LEN_MIN..=self.len_max).contains(&len));
        self.slots
            .word(slot * self.stride)
            .store(len.into(), Relaxed);
        self.lens[slot] = len;
    }

    /// Packet memory in bytes.
    pub fn memory_len(&self) -> usize {
        self.slots.len()
    }

    /// Packets that the program could not hand to the device, since creation.
    pub fn refused(&self) -> u64 {
        self.word(control::REFUSED).load(Relaxed)
    }

    /// Restricts runs to the first `count` slots from now on, starting at slot 0: with a few
    /// packets written once, [`LiveTransmitter::run`] sends them repeatedly.
    pub fn cycle(&mut self, count: usize) {
        self.wrap = count.clamp(1, self.lens.len());
        self.next = 0;
    }

    /// Sends the packets of the next `count` slots, wrapping around, and returns the number handed
    /// to the device. All slots are free again when it returns. A signal ends it early.
    ///
    /// # Errors
    /// Those of the system call; packets sent before the error are in the account.
    pub fn run(&mut self, count: u32) -> Result<u64> {
        if count == 0 {
            return Ok(0);
        }
        // Frames have the length of the first packet; others are adjusted one by one.
        let frame_len = match self.lens[self.next] {
            len if len <= self.len_max => len,
            _ => LIVE_LEN_MIN,
        };
        self.word(control::FRAME_LEN)
            .store(frame_len.into(), Relaxed);
        self.word(control::WRAP).store(self.wrap as u64, Relaxed);
        self.word(control::NEXT).store(self.next as u64, Relaxed);
        let before = self.word(control::SUBMITTED).load(Relaxed);
        self.slots.publish();
        // data_end: the kernel checks it against the length.
        if let Some(data_end) = self.context.get_mut(4..8) {
            data_end.copy_from_slice(&frame_len.to_ne_bytes());
        }
        let run = TestRun {
            data: &self.frame[..frame_len as usize],
            context: &self.context,
            repeat: count,
            live_frames: true,
            batch_size: BATCH_SIZE,
            ..TestRun::default()
        };
        let result = self.program.test_run(&run);
        self.next = self.word(control::NEXT).load(Relaxed) as usize;
        let submitted = self.word(control::SUBMITTED).load(Relaxed) - before;
        match result {
            Ok(_) => Ok(submitted),
            // EINTR
            Err(e) if e.os_code() == Some(4) => Ok(submitted),
            Err(e) => Err(e),
        }
    }

    fn word(&self, at: i16) -> &std::sync::atomic::AtomicU64 {
        self.control.word(at as usize)
    }

    /// What happened to the packets so far. A device counts a packet when it has finished with it,
    /// which may be after the run.
    ///
    /// # Errors
    /// `NotFound` if the device is gone.
    pub fn account(&self) -> Result<LiveAccount> {
        let stats = Link::by_index(self.ifindex)?.stats;
        Ok(LiveAccount {
            submitted: self.word(control::SUBMITTED).load(Relaxed),
            refused: self.word(control::REFUSED).load(Relaxed),
            device_sent: stats.tx_packets.wrapping_sub(self.stats_before.tx_packets),
            device_dropped: stats.tx_dropped.wrapping_sub(self.stats_before.tx_dropped),
        })
    }

    /// Checks that the device still accepts XDP frames. Packets that it does not accept are lost
    /// uncounted, so call this now and then during a long run.
    ///
    /// # Errors
    /// As [`LiveTransmitter::new`].
    pub fn check(&self) -> Result<()> {
        check_ready(&Link::by_index(self.ifindex)?)
    }
}

/// Keeps a program in the kernel's XDP dispatcher.
#[derive(Debug)]
struct Resident {
    /// Dropped first: the namespace must outlive it.
    _link: XdpLink,
    _namespace: OwnedFd,
}

impl Resident {
    fn new(program: &XdpProgram) -> Result<Self> {
        // Loopback has index 1 in every namespace. It is down, and nothing brings it up.
        let (link, namespace) =
            sys::netns::in_new(|| XdpLink::attach(program, 1, AttachMode::Generic))?;
        Ok(Self {
            _link: link?,
            _namespace: namespace,
        })
    }
}

/// Refuses a device that would silently lose every frame.
fn check_ready(device: &Link) -> Result<()> {
    let what = format!("send XDP frames on {}", device.name);
    if !device.is_up() {
        return Err(Error::new(ErrorKind::Gone, what, "the link is down")
            .with_hint(format!("ip link set {} up", device.name)));
    }
    // Kernels before 6.3 do not report this; the account shows the result there.
    let takes_frames = XdpFeatures::of(device.index).map_or(true, |f| f.has(XdpFeatures::NDO_XMIT));
    if takes_frames {
        return Ok(());
    }
    let error = |why| Error::new(ErrorKind::Unsupported, what, why);
    Err(if device.kind == "veth" {
        error("the other end of this veth pair is not ready for XDP frames").with_hint(
            "at the other end, while it is up: `ethtool -K INTERFACE gro on` (off first, if it is \
             on), or attach an XDP program in native mode",
        )
    } else {
        error("its driver accepts none at the moment").with_hint(
            "some drivers need an XDP program attached first; afpacket: sends on every interface",
        )
    })
}
