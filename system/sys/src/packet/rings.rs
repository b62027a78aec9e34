//! The rings of a packet socket, which the kernel allocates and both sides map. The version of
//! their headers (`PACKET_VERSION`) holds for the whole socket.

use std::ffi::c_int;
use std::os::fd::AsFd;

use super::{PacketSocket, SOL_PACKET};
use crate::mmap::Mapping;
use crate::{Error, ErrorKind, Result};

const PACKET_RX_RING: c_int = 5;
const PACKET_VERSION: c_int = 10;
const PACKET_TX_RING: c_int = 13;
const TPACKET_V2: c_int = 1;
const TPACKET_V3: c_int = 2;
const TP_FT_REQ_FILL_RXHASH: u32 = 1;

/// A TPACKET_V3 receive ring (`struct tpacket_req3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxRing {
    /// Bytes per block: a power of two, at least a page.
    pub block_len: u32,
    /// Number of blocks.
    pub block_count: u32,
    /// Milliseconds after which the kernel hands over a block that is not full; at least 1.
    pub block_timeout_ms: u32,
    /// Makes the kernel write each packet's flow hash, which it computes if the card did not.
    pub hash: bool,
}

/// A TPACKET_V2 receive ring (`struct tpacket_req`): one packet per frame, handed over at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRing {
    /// Bytes per frame, including its header: a multiple of 16.
    pub frame_len: u32,
    /// Bytes per block, which is contiguous memory: a power of two, at least a page, in which as
    /// many frames lie one after another as fit.
    pub block_len: u32,
    /// Number of blocks.
    pub block_count: u32,
}

impl FrameRing {
    /// Number of frames in a block.
    pub fn frames_per_block(&self) -> u32 {
        self.block_len / self.frame_len
    }

    /// Number of frames.
    pub fn frame_count(&self) -> u32 {
        self.block_count * self.frames_per_block()
    }
}

/// A TPACKET_V2 transmit ring (`struct tpacket_req`): one packet per frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxRing {
    /// Bytes per frame, including its header: a power of two.
    pub frame_len: u32,
    /// Number of frames.
    pub frame_count: u32,
}

/// `struct tpacket_req`.
#[repr(C)]
struct Request {
    block_size: u32,
    block_nr: u32,
    frame_size: u32,
    frame_nr: u32,
}

impl PacketSocket {
    /// Creates and maps a TPACKET_V3 receive ring of `block_len` times `block_count` bytes. (Since
    /// Linux 3.2)
    ///
    /// # Errors
    /// `NoSpace` where memory is short, `InvalidInput` for a shape that the kernel refuses.
    pub fn rx_ring(&self, ring: &RxRing) -> Result<Mapping> {
        /// `struct tpacket_req3`.
        #[repr(C)]
        struct Request3 {
            block_size: u32,
            block_nr: u32,
            frame_size: u32,
            frame_nr: u32,
            retire_blk_tov: u32,
            sizeof_priv: u32,
            feature_req_word: u32,
        }
        /// The kernel only checks it for consistency: packets lie one after another in a block.
        const FRAME_LEN: u32 = 2048;
        let len = u64::from(ring.block_len) * u64::from(ring.block_count);
        let what = format!("create a receive ring of {len} bytes");
        self.set(SOL_PACKET, PACKET_VERSION, &TPACKET_V3, &what)?;
        let request = Request3 {
            block_size: ring.block_len,
            block_nr: ring.block_count,
            frame_size: FRAME_LEN,
            frame_nr: (len / u64::from(FRAME_LEN)) as u32,
            retire_blk_tov: ring.block_timeout_ms.max(1),
            sizeof_priv: 0,
            feature_req_word: if ring.hash { TP_FT_REQ_FILL_RXHASH } else { 0 },
        };
        let set = self.set(SOL_PACKET, PACKET_RX_RING, &request, &what);
        set.map_err(smaller_ring)?;
        Mapping::shared(self.fd.as_fd(), len as usize, 0)
    }

    /// Creates and maps a TPACKET_V2 receive ring of `block_len` times `block_count` bytes. (Since
    /// Linux 2.6.27)
    ///
    /// # Errors
    /// `NoSpace` where memory is short, `InvalidInput` for a shape that the kernel refuses.
    pub fn frame_ring(&self, ring: &FrameRing) -> Result<Mapping> {
        let request = Request {
            block_size: ring.block_len,
            block_nr: ring.block_count,
            frame_size: ring.frame_len,
            frame_nr: ring.frame_count(),
        };
        self.version_2(PACKET_RX_RING, "receive", &request)
    }

    /// Creates and maps a TPACKET_V2 transmit ring of `frame_len` times `frame_count` bytes. (Since
    /// Linux 2.6.31)
    ///
    /// # Errors
    /// `NoSpace` where memory is short, `InvalidInput` for a shape that the kernel refuses.
    pub fn tx_ring(&self, ring: &TxRing) -> Result<Mapping> {
        let len = u64::from(ring.frame_len) * u64::from(ring.frame_count);
        // Whole pages, and not more contiguous memory than is available on a fragmented machine.
        let block_len = ring.frame_len.max(64 << 10).min(len as u32);
        let request = Request {
            block_size: block_len,
            block_nr: (len / u64::from(block_len)) as u32,
            frame_size: ring.frame_len,
            frame_nr: ring.frame_count,
        };
        self.version_2(PACKET_TX_RING, "transmit", &request)
    }

    fn version_2(&self, option: c_int, kind: &str, request: &Request) -> Result<Mapping> {
        let len = u64::from(request.block_size) * u64::from(request.block_nr);
        let what = format!("create a {kind} ring of {len} bytes");
        self.set(SOL_PACKET, PACKET_VERSION, &TPACKET_V2, &what)?;
        let set = self.set(SOL_PACKET, option, request, &what);
        set.map_err(smaller_ring)?;
        Mapping::shared(self.fd.as_fd(), len as usize, 0)
    }
}

fn smaller_ring(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => error
            .with_why("the kernel has no memory for it")
            .with_hint("use a smaller ring_bytes="),
        _ => error,
    }
}
