//! Sending by live frames: the kernel makes XDP frames by itself, our program fills them, and the
//! device's `ndo_xdp_xmit` takes them. No socket buffer is made, and one system call sends
//! thousands of packets.
//!
//! This suits a load generator, not a host: there is no check for room. Packets that the device
//! does not accept are dropped and show only in the device's counters, so
//! [`LiveTransmitter::account`] reads those.
//!
//! # What a call costs
//! A test run of more than one round enters its program into the kernel's XDP dispatcher and takes
//! it out again (`bpf_prog_change_xdp` in `net/bpf/test_run.c`), and each time waits until all
//! processors have seen it: some 11 ms a call here, whatever it sends. A program that is in the
//! dispatcher already costs nothing of the kind: 11 µs a call. So we attach it where it never sees
//! a packet, to the loopback interface of a private namespace. Without the right to make one
//! (CAP_SYS_ADMIN) all works, but only long runs are fast; see [`LiveTransmitter::has_fast_calls`].
//!
//! # Since Linux
//! 5.18

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use sys::bpf::{Map, MapMemory, MapSpec, MapType, TestRun, UpdateMode};
use sys::link::{Link, LinkStats, XdpFeatures};
use sys::{Error, ErrorKind, Result};

use crate::programs::transmit::{self, SLOT_HEAD_LEN, TransmitMaps, control};
use crate::{AttachMode, XdpLink, XdpProgram};

/// Shortest packet: an Ethernet header.
pub const LIVE_LEN_MIN: u32 = 14;
/// Longest packet: what one page leaves besides the kernel's own things. (A page less 256 of
/// headroom, less the frame's head and tail; 3,300 is safe on every 64-bit kernel so far.)
pub const LIVE_LEN_MAX: u32 = 3_300;
/// Packets between two flushes: the kernel's default. A veth's ring holds 256, and a larger batch
/// fills it faster than it may be emptied.
const BATCH_SIZE: u32 = 64;

/// What a transmitter has done since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LiveAccount {
    /// Packets that our program handed to the device.
    pub submitted: u64,
    /// Packets that it could not: a slot never written, no room in the frame, no device any more.
    pub refused: u64,
    /// Packets that the device reports as sent, of any origin. Some devices do not count XDP.
    pub device_sent: u64,
    /// Packets that the device reports as dropped on sending, of any origin.
    pub device_dropped: u64,
}

/// Sends packets that were written into slots, in order.
///
/// Dropped, it leaves nothing behind: no program is attached anywhere.
#[derive(Debug)]
pub struct LiveTransmitter {
    program: XdpProgram,
    /// Held for the program's sake.
    _maps: [Map; 3],
    resident: Option<Resident>,
    control: MapMemory,
    slots: MapMemory,
    /// The frame that the kernel multiplies; only its length matters.
    frame: Vec<u8>,
    lens: Vec<u32>,
    next: usize,
    wrap: usize,
    stride: usize,
    len_max: u32,
    ifindex: u32,
    stats_before: LinkStats,
}

impl LiveTransmitter {
    /// For a device of this network namespace, with room for this many packets.
    ///
    /// # Errors
    /// `Unsupported` if the device takes no XDP frames: its driver cannot, or, for veth, the other
    /// end is not ready (the hint says how to make it); `Gone` if the link is down; `Permission`.
    pub fn new(ifindex: u32, slot_count: u32) -> Result<Self> {
        let device = Link::by_index(ifindex)?;
        check_ready(&device)?;
        // Link header and one VLAN tag: the kernel's own bound for redirected frames.
        let len_max = device.mtu.saturating_add(14 + 4).min(LIVE_LEN_MAX);
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
        let device_map = Map::create(&MapSpec {
            kind: MapType::Devmap,
            name: "bw_tx_device",
            value_size: 4,
            mappable: false,
            ..spec
        })?;
        device_map.update(&[0; 4], &ifindex.to_ne_bytes(), UpdateMode::Any)?;
        let insns = transmit::generate(&TransmitMaps {
            control_fd: control_map.as_fd().as_raw_fd(),
            slots_fd: slots_map.as_fd().as_raw_fd(),
            device_fd: device_map.as_fd().as_raw_fd(),
            slot_count,
            stride,
            len_max,
        })?;
        let program = XdpProgram::load("bw_transmit", &insns, false, None)?;
        Ok(Self {
            resident: Resident::new(&program).ok(),
            program,
            control: control_map.memory()?,
            slots: slots_map.memory()?,
            _maps: [slots_map, control_map, device_map],
            frame: vec![0; len_max as usize],
            // A slot that was never written is longer than any packet: refused, not sent.
            lens: vec![u32::MAX; slot_count as usize],
            next: 0,
            wrap: slot_count as usize,
            stride: stride as usize,
            len_max,
            ifindex,
            stats_before: device.stats,
        })
    }

    /// The program, to be looked at.
    pub fn program(&self) -> &XdpProgram {
        &self.program
    }

    /// Whether a run of a few packets costs microseconds. If not, each run costs milliseconds: let
    /// it be of 100,000 packets and more.
    pub fn has_fast_calls(&self) -> bool {
        self.resident.is_some()
    }

    /// How many packets there is room for.
    pub fn slot_count(&self) -> usize {
        self.lens.len()
    }

    /// The longest packet in bytes, by the device's MTU and the size of a page.
    pub fn len_max(&self) -> u32 {
        self.len_max
    }

    /// The slot that the next run begins with.
    pub fn next_slot(&self) -> usize {
        self.next
    }

    /// Puts a packet into a slot, from its link header on.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such slot, or the packet is shorter than [`LIVE_LEN_MIN`] or
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

    /// Where a slot's packet lies: room for [`LiveTransmitter::len_max`] bytes, to write it in
    /// place and then set its length with [`LiveTransmitter::set_len`]. The memory is the
    /// transmitter's; the kernel reads it during [`LiveTransmitter::run`] only.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub fn buffer(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.lens.len());
        self.slots.address(slot * self.stride + SLOT_HEAD_LEN)
    }

    /// Sets the length of the packet in a slot, after it was written in place.
    ///
    /// # Panics
    /// If there is no such slot, or the length is not [`LIVE_LEN_MIN`] to
    /// [`LiveTransmitter::len_max`].
    #[inline]
    pub fn set_len(&mut self, slot: usize, len: u32) {
        assert!((LIVE_LEN_MIN..=self.len_max).contains(&len));
        self.slots
            .word(slot * self.stride)
            .store(len.into(), Relaxed);
        self.lens[slot] = len;
    }

    /// Bytes of memory for packets.
    pub fn memory_len(&self) -> usize {
        self.slots.len()
    }

    /// Packets that the program could not hand to the device, ever.
    pub fn refused(&self) -> u64 {
        self.word(control::REFUSED).load(Relaxed)
    }

    /// Uses only the first `count` slots from now on, beginning with slot 0: with a few packets
    /// written once, [`LiveTransmitter::run`] sends them repeatedly.
    pub fn cycle(&mut self, count: usize) {
        self.wrap = count.clamp(1, self.lens.len());
        self.next = 0;
    }

    /// Sends the packets of the next `count` slots, around and around, and returns how many were
    /// handed to the device. All slots are free again when it returns. A signal ends it early.
    ///
    /// # Errors
    /// Those of the system call; packets sent before are in the account.
    pub fn run(&mut self, count: u32) -> Result<u64> {
        if count == 0 {
            return Ok(0);
        }
        // Frames come with the first packet's length; others are fitted one by one.
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
        let run = TestRun {
            data: &self.frame[..frame_len as usize],
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

    /// What happened to the packets, as far as is known. A device counts a packet when it is done
    /// with it, which can be after the run.
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

    /// Whether the device still takes XDP frames. Packets that it does not accept are lost without
    /// any counter, so check now and then in a long run.
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
    /// Goes first: the namespace must outlive it.
    _link: XdpLink,
    _namespace: OwnedFd,
}

impl Resident {
    fn new(program: &XdpProgram) -> Result<Self> {
        // Loopback is 1 in every namespace. It is down, and nothing would set it up.
        let (link, namespace) =
            sys::netns::in_new(|| XdpLink::attach(program, 1, AttachMode::Generic))?;
        Ok(Self {
            _link: link?,
            _namespace: namespace,
        })
    }
}

/// Refuses a device that would lose every frame in silence.
fn check_ready(device: &Link) -> Result<()> {
    let what = format!("send XDP frames on {}", device.name);
    if !device.is_up() {
        return Err(Error::new(ErrorKind::Gone, what, "the link is down")
            .with_hint(format!("ip link set {} up", device.name)));
    }
    // Kernels before 6.3 do not report it; there the account shows the result.
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
