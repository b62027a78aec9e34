//! Memory: regions, context, loads, stores, atomic operations, and packet loads of socket filters.

use super::{HEADROOM, Hook, Kernel, Machine, Next, width};
use crate::cbpf::Place;
use crate::ebpf::{ATOMIC_COMPARE_EXCHANGE, Insn, MODE_ABS, MODE_IND};

type Result<T> = core::result::Result<T, &'static str>;

/// Addresses: the upper half identifies the region, the lower half the offset. A region begins in
/// the middle of its addresses, so that an offset below it is not an address of the previous
/// region.
const BEGIN: u64 = 1 << 31;
pub(super) const CONTEXT: u64 = 1 << 32 | BEGIN;
const PACKET: u64 = 2 << 32 | BEGIN;
pub(super) const STACK: u64 = 3 << 32 | BEGIN;
const MAPS: u64 = 4 << 32;
const VALUES: u64 = 16;

/// Address of a map, none of whose bytes can be read.
pub(super) fn map(number: i32) -> u64 {
    MAPS | u64::from(number as u32)
}

/// The map that an argument refers to.
pub(super) fn map_of(address: u64) -> Result<i32> {
    match address >> 32 {
        4 => Ok(address as u32 as i32),
        _ => Err("an argument is no map"),
    }
}

/// Address of the first byte of a map's value.
pub(super) fn value(number: u32) -> u64 {
    (VALUES + u64::from(number)) << 32 | BEGIN
}

/// Checks an access to a region of `of` bytes and returns its offset.
fn place(address: u64, len: usize, of: usize) -> Result<usize> {
    let at = (address & 0xffff_ffff).checked_sub(BEGIN);
    let at = at.ok_or("outside")? as usize;
    match at.checked_add(len) {
        Some(end) if end <= of => Ok(at),
        _ => Err("outside"),
    }
}

impl<K: Kernel> Machine<'_, K> {
    /// Checks a direct access to the packet's first buffer or its metadata, and returns its offset.
    fn packet_place(&self, address: u64, len: usize) -> Result<usize> {
        let (Hook::Xdp { first_len } | Hook::Tc { first_len }) = self.hook else {
            return Err("direct access to a socket's packet");
        };
        match place(address, len, HEADROOM + first_len)? {
            at if at < self.packet.meta => Err("outside"),
            at => Ok(at),
        }
    }

    /// Copies bytes out of the packet, the stack or a map's value.
    pub(super) fn read(&mut self, address: u64, to: &mut [u8]) -> Result<()> {
        let len = to.len();
        match address >> 32 {
            2 => {
                let at = self.packet_place(address, len)?;
                to.copy_from_slice(&self.packet.buffer[at..at + len]);
            }
            3 => {
                let at = place(address, len, self.stack.len())?;
                for (byte, from) in to.iter_mut().zip(&self.stack[at..at + len]) {
                    *byte = from.ok_or("reads stack that is not set")?;
                }
            }
            region if region >= VALUES => {
                let bytes = self.kernel.value((region - VALUES) as u32);
                let bytes = bytes.ok_or("no such value")?;
                let at = place(address, len, bytes.len())?;
                to.copy_from_slice(&bytes[at..at + len]);
            }
            _ => return Err("loads from no pointer"),
        }
        Ok(())
    }

    /// Copies bytes into the packet, the stack or a map's value.
    pub(super) fn write(&mut self, address: u64, from: &[u8]) -> Result<()> {
        let len = from.len();
        match address >> 32 {
            2 => {
                let at = self.packet_place(address, len)?;
                self.packet.buffer[at..at + len].copy_from_slice(from);
            }
            3 => {
                let at = place(address, len, self.stack.len())?;
                for (to, byte) in self.stack[at..at + len].iter_mut().zip(from) {
                    *to = Some(*byte);
                }
            }
            region if region >= VALUES => {
                let bytes = self.kernel.value((region - VALUES) as u32);
                let bytes = bytes.ok_or("no such value")?;
                let at = place(address, len, bytes.len())?;
                bytes[at..at + len].copy_from_slice(from);
            }
            _ => return Err("stores to no pointer"),
        }
        Ok(())
    }

    pub(super) fn load(&mut self, address: u64, len: usize) -> Result<u64> {
        if address >> 32 == CONTEXT >> 32 {
            return self.context(address, len);
        }
        self.check_alignment(address, len)?;
        let mut word = [0; 8];
        let bytes = match cfg!(target_endian = "little") {
            true => &mut word[..len],
            false => &mut word[8 - len..],
        };
        self.read(address, bytes)?;
        Ok(u64::from_ne_bytes(word))
    }

    pub(super) fn store(&mut self, address: u64, len: usize, value: u64) -> Result<()> {
        self.check_alignment(address, len)?;
        let word = value.to_ne_bytes();
        let bytes = match cfg!(target_endian = "little") {
            true => &word[..len],
            false => &word[8 - len..],
        };
        self.write(address, bytes)
    }

    /// The verifier requires aligned stack accesses; packets and values have no alignment.
    fn check_alignment(&self, address: u64, len: usize) -> Result<()> {
        match address >> 32 == STACK >> 32 && !address.is_multiple_of(len as u64) {
            true => Err("unaligned on the stack"),
            false => Ok(()),
        }
    }

    /// Reads a field of `struct xdp_md` or `struct __sk_buff`.
    fn context(&self, address: u64, len: usize) -> Result<u64> {
        let info = self.info;
        if len != 4 {
            return Err("loads part of a context's field");
        }
        let at = address.wrapping_sub(CONTEXT);
        let (protocol, tci) = info.vlan.unwrap_or_default();
        let data = PACKET + HEADROOM as u64;
        Ok(match (self.hook, at) {
            (Hook::Xdp { .. }, 0) => data,
            (Hook::Xdp { first_len }, 4) => data + first_len as u64,
            (Hook::Xdp { .. }, 8) => PACKET + self.packet.meta as u64,
            (Hook::Xdp { .. }, 12) | (Hook::Socket | Hook::Tc { .. }, 40) => info.ifindex.into(),
            (Hook::Xdp { .. }, 16) | (Hook::Socket | Hook::Tc { .. }, 12) => {
                info.queue_index.into()
            }
            (Hook::Tc { .. }, 76) => data,
            (Hook::Tc { first_len }, 80) => data + first_len as u64,
            (Hook::Socket | Hook::Tc { .. }, 0) => self.packet.bytes().len() as u64,
            (Hook::Socket, 4) => info.packet_type.into(),
            (Hook::Socket, 8) => info.mark.into(),
            (Hook::Socket, 16) => info.protocol.to_be().into(),
            (Hook::Socket | Hook::Tc { .. }, 20) => info.vlan.is_some().into(),
            (Hook::Socket, 24) => tci.into(),
            (Hook::Socket, 28) => protocol.to_be().into(),
            (Hook::Socket, 68) => info.rx_hash.into(),
            _ => return Err("no such field in the context"),
        })
    }

    /// `BPF_LD | BPF_ABS` and `BPF_IND`, as in `bpf_gen_ld_abs` and `__bpf_skb_load`.
    pub(super) fn load_packet(&mut self, insn: Insn) -> Result<Next> {
        if self.hook != Hook::Socket || self.reg(6)? != CONTEXT {
            return Err("packet load without a socket's context");
        }
        let index = match insn.code & 0xe0 {
            MODE_ABS => insn.imm as u32,
            MODE_IND => (self.reg(insn.src)? as u32).wrapping_add(insn.imm as u32),
            _ => return Err("unknown packet load"),
        };
        let at = match Place::of(index) {
            Place::Packet(at) | Place::Link(at) => Some(at),
            Place::Network(at) => self.info.network_offset.checked_add(at),
            Place::Ancillary(_) | Place::Nothing => None,
        };
        self.forget_arguments();
        let len = width(insn.code);
        if len == 8 {
            return Err("a packet load of 64 bits");
        }
        let packet = self.packet.bytes();
        let found = at.and_then(|at| packet.get(at as usize..)?.get(..len));
        let Some(bytes) = found else {
            return Ok(Next::Exit(0));
        };
        let value = bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.set(0, value)?;
        Ok(Next::Behind)
    }

    /// Invalidates the arguments and the old result, as after a call.
    pub(super) fn forget_arguments(&mut self) {
        self.regs[..6].fill(None);
    }

    /// Atomic operations on 32 or 64 bits (RFC 9669, section 5.3).
    pub(super) fn atomic(&mut self, insn: Insn) -> Result<()> {
        let len = width(insn.code);
        if len < 4 {
            return Err("an atomic operation on less than 32 bits");
        }
        let address = self.reg(insn.dst)?.wrapping_add_signed(insn.off.into());
        if address >> 32 == PACKET >> 32 {
            return Err("an atomic operation on the packet");
        }
        let source = self.reg(insn.src)?;
        let old = self.load(address, len)?;
        let cut = |value: u64| if len == 4 { value & 0xffff_ffff } else { value };
        let new = match insn.imm & !1 {
            0x00 => old.wrapping_add(source),
            0x40 => old | source,
            0x50 => old & source,
            0xa0 => old ^ source,
            0xe0 if insn.imm == 0xe1 => source,
            0xf0 if insn.imm == ATOMIC_COMPARE_EXCHANGE => {
                let expected = cut(self.reg(0)?);
                if old == expected { source } else { old }
            }
            _ => return Err("unknown atomic operation"),
        };
        self.store(address, len, cut(new))?;
        match insn.imm {
            ATOMIC_COMPARE_EXCHANGE => self.set(0, old),
            imm if imm & 1 == 1 => self.set(insn.src, old),
            _ => Ok(()),
        }
    }
}
