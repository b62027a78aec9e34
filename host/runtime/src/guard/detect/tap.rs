//! The packets that detection looks at: a tap on the interface, of which the kernel passes on one
//! in so many.

use bpf::cbpf::{Insn, Program};
use port::{Port, PortOptions, TapMethod, TimestampSource};
use sys::{Error, ErrorKind, Result};

use super::Detection;

/// Bytes of a packet: headers, and what is compared behind them.
const SNAPLEN: u32 = 256;
/// Memory of the ring: what comes while nobody reads is lost beyond it, and counted.
const RING_BYTES: usize = 4 << 20;
/// Batches that are read at once at most; the rest waits in the ring.
const BATCHES_MAX: usize = 64;

/// `ld rand` (`SKF_AD_RANDOM`), `mod`, `jeq`, `ret`.
const LD_RANDOM: (u16, u32) = (0x20, 0xffff_f038);
const MOD: u16 = 0x94;
const JEQ: u16 = 0x15;
const RET: u16 = 0x06;

/// An open tap.
pub struct Tap {
    port: Port,
}

/// Counters of sampled packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounts {
    /// Packets that were sampled.
    pub sampled: u64,
    /// Packets of these that were not looked at, for lack of room.
    pub lost: u64,
}

impl Tap {
    /// Opens a tap for received packets.
    ///
    /// # Errors
    /// As those of the port.
    pub fn open(interface: &str, sample: u32) -> Result<Tap> {
        let options = PortOptions {
            queue_count: 1,
            snaplen: SNAPLEN,
            filter: filter(sample)?,
            ring_bytes: RING_BYTES,
            timestamp: TimestampSource::None,
            promiscuous: false,
            outgoing: false,
            tap: TapMethod::Tpacket,
            ..PortOptions::default()
        };
        let port = port::open(&format!("afpacket:{interface}"), &options)?;
        Ok(Tap { port })
    }

    /// Hands over what has come.
    ///
    /// # Errors
    /// As those of the port.
    pub fn read(&mut self, detection: &mut Detection) -> Result<()> {
        let Some(rx) = self.port.rx.first_mut() else {
            return Ok(());
        };
        for _ in 0..BATCHES_MAX {
            let batch = rx.receive()?;
            if batch.is_empty() {
                break;
            }
            for packet in batch.iter() {
                detection.packet(packet.bytes(), packet.vlan().is_some());
            }
        }
        Ok(())
    }

    /// What was sampled so far.
    ///
    /// # Errors
    /// If the kernel refuses to read its counters.
    pub fn counts(&mut self) -> Result<TapCounts> {
        let total = self.port.control.account()?.rx_total();
        Ok(TapCounts {
            sampled: total.delivered,
            lost: total.lost(),
        })
    }
}

/// Passes on one in so many packets, drawn at random; `None` if all.
fn filter(sample: u32) -> Result<Option<Program>> {
    if sample <= 1 {
        return Ok(None);
    }
    let (ld, random) = LD_RANDOM;
    let insns = vec![
        Insn::new(ld, 0, 0, random),
        Insn::new(MOD, 0, 0, sample),
        Insn::new(JEQ, 0, 1, 0),
        Insn::new(RET, 0, 0, u32::MAX),
        Insn::new(RET, 0, 0, 0),
    ];
    let refused = |why| {
        Error::new(
            ErrorKind::InvalidInput,
            "sample packets",
            format!("{why:?}"),
        )
    };
    Program::new(insns).map(Some).map_err(refused)
}
