//! The packet source of detection: a tap on the interface, on which the kernel samples one packet
//! in N, and the SYNs and ACKs of one TCP connection in N.

use bpf::cbpf::{Insn, Program};
use port::{Port, PortOptions, TapMethod, TimestampSource};
use sys::{Error, ErrorKind, Result};

use super::{Detection, FlowChoice};

/// Bytes captured of a packet: the headers, and the payload that rules compare.
const SNAPLEN: u32 = 256;
/// Memory of the ring; packets that find it full are lost and counted.
const RING_BYTES: usize = 4 << 20;
/// Maximum number of batches per call; the rest stays in the ring.
const BATCHES_MAX: usize = 64;

/// `ld rand` (`SKF_AD_RANDOM`), `mod`, `jeq`, `ret`. A load beyond the end of a packet rejects it,
/// so packets are sampled at random first.
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
    /// Sampled packets that were lost because the ring was full.
    pub lost: u64,
}

impl Tap {
    /// Opens a tap for received packets.
    ///
    /// # Errors
    /// As those of the port.
    pub fn open(interface: &str, choice: &FlowChoice) -> Result<Tap> {
        let options = PortOptions {
            queue_count: 1,
            snaplen: SNAPLEN,
            filter: filter(choice)?,
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

    /// Passes the packets in the ring to detection.
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

    /// The counters so far.
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

/// A filter that accepts one packet in N, at random, and the chosen ones; `None` for all packets.
fn filter(choice: &FlowChoice) -> Result<Option<Program>> {
    if choice.one_in() <= 1 {
        return Ok(None);
    }
    let (ld, random) = LD_RANDOM;
    let mut insns = vec![
        Insn::new(ld, 0, 0, random),
        Insn::new(MOD, 0, 0, choice.one_in()),
        Insn::new(JEQ, 0, 1, 0),
        Insn::new(RET, 0, 0, u32::MAX),
    ];
    insns.extend(choice.program());
    let refused = |why| {
        Error::new(
            ErrorKind::InvalidInput,
            "sample packets",
            format!("{why:?}"),
        )
    };
    Program::new(insns).map(Some).map_err(refused)
}
