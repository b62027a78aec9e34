//! Helper functions, with the checks that the verifier and the kernel make of their arguments.

use alloc::vec;

use super::memory::{CONTEXT, map_of, value};
use super::{HEADROOM, Hook, Kernel, Machine};

type Result<T> = core::result::Result<T, &'static str>;

/// Maximum metadata length that every kernel supports.
const METADATA_MAX: usize = 32;
/// `XDP_REDIRECT`.
const REDIRECT: u64 = 4;
const EFAULT: u64 = -14_i64 as u64;
const EINVAL: u64 = -22_i64 as u64;
const LEN_MAX: usize = 0xffff;
/// Flags of `bpf_perf_event_output`: the processor (`BPF_F_INDEX_MASK`), and how many bytes of the
/// packet (`BPF_F_CTXLEN_MASK`).
const OUTPUT_CPU: u64 = 0xffff_ffff;
const OUTPUT_LEN: u64 = 0xf_ffff << 32;

impl<K: Kernel> Machine<'_, K> {
    pub(super) fn call(&mut self, helper: i32) -> Result<()> {
        let args = self.regs;
        let arg = |at: usize| args[at].ok_or("an argument is not set");
        let is_xdp = matches!(self.hook, Hook::Xdp { .. });
        let context = |at: usize| match arg(at)? == CONTEXT && is_xdp {
            true => Ok(()),
            false => Err("the argument is not XDP's context"),
        };
        self.forget_arguments();
        let result = match helper {
            1 => {
                let (map, key) = (map_of(arg(1)?)?, arg(2)?);
                let (key_len, _) = self.kernel.sizes(map).ok_or("no map")?;
                let mut bytes = vec![0; key_len];
                self.read(key, &mut bytes)?;
                self.kernel.look_up(map, &bytes).map_or(0, value)
            }
            2 => {
                let (map, key, from, flags) = (map_of(arg(1)?)?, arg(2)?, arg(3)?, arg(4)?);
                let (key_len, value_len) = self.kernel.sizes(map).ok_or("no map")?;
                let (mut key_bytes, mut bytes) = (vec![0; key_len], vec![0; value_len]);
                self.read(key, &mut key_bytes)?;
                self.read(from, &mut bytes)?;
                self.kernel.update(map, &key_bytes, &bytes, flags) as u64
            }
            5 | 208 => self.kernel.now_ns(),
            7 => self.kernel.random().into(),
            // One processor.
            8 => 0,
            23 if is_xdp => REDIRECT,
            25 => {
                if arg(1)? != CONTEXT {
                    return Err("the argument is not the context");
                }
                let (map, flags, from, len) = (map_of(arg(2)?)?, arg(3)?, arg(4)?, arg(5)?);
                self.output(map, flags, (from, len as usize))?
            }
            18 | 19 | 26 | 39 => self.call_tc(helper, [arg(1), arg(2), arg(3), arg(4)])?,
            // The third argument's low bits are the verdict if there is no such entry.
            51 if is_xdp => {
                let (map, key, flags) = (map_of(arg(1)?)?, arg(2)?, arg(3)?);
                let key = (key as u32).to_ne_bytes();
                let found = self.kernel.look_up(map, &key).is_some();
                if found { REDIRECT } else { flags & 3 }
            }
            54 => {
                context(1)?;
                self.adjust_metadata(arg(2)? as i32)
            }
            188 => {
                context(1)?;
                self.packet.bytes().len() as u64
            }
            189 | 190 => {
                context(1)?;
                let (at, memory, len) = (arg(2)? as u32, arg(3)?, arg(4)? as u32);
                self.copy_packet(helper == 190, at as usize, memory, len as usize)?
            }
            _ => return Err("unknown helper"),
        };
        self.set(0, result)
    }

    fn adjust_metadata(&mut self, by: i32) -> u64 {
        let meta = self.packet.meta.checked_add_signed(by as isize);
        match meta {
            Some(meta)
                if meta <= HEADROOM
                    && HEADROOM - meta <= METADATA_MAX
                    && meta.is_multiple_of(4) =>
            {
                self.packet.meta = meta;
                0
            }
            _ => EINVAL,
        }
    }

    /// The helpers of tc programs for the packet.
    fn call_tc(&mut self, helper: i32, args: [Result<u64>; 4]) -> Result<u64> {
        let [context, second, third, fourth] = args;
        let Hook::Tc { first_len } = self.hook else {
            return Err("unknown helper");
        };
        if context? != CONTEXT {
            return Err("the argument is not the context");
        }
        match helper {
            // Pushing a second tag onto the one that was removed puts that into the packet.
            18 => {
                let (protocol, tci) = self.info.vlan.ok_or("pushes a first tag")?;
                let [tag, id] = [protocol.to_be_bytes(), tci.to_be_bytes()];
                let at = HEADROOM + 12;
                let tag = [tag[0], tag[1], id[0], id[1]];
                self.packet.buffer.splice(at..at, tag);
                self.hook = Hook::Tc {
                    first_len: first_len + tag.len(),
                };
            }
            19 => {
                self.info.vlan.ok_or("pops no tag")?;
                self.packet.buffer.drain(HEADROOM + 12..HEADROOM + 16);
                self.hook = Hook::Tc {
                    first_len: first_len.saturating_sub(4),
                };
            }
            26 => {
                let (at, memory, len) = (second? as u32, third?, fourth? as u32);
                return self.copy_packet(false, at as usize, memory, len as usize);
            }
            _ => {
                let len = (second? as usize).min(self.packet.bytes().len());
                self.hook = Hook::Tc {
                    first_len: first_len.max(len),
                };
            }
        }
        Ok(0)
    }

    /// `bpf_perf_event_output`.
    fn output(&mut self, map: i32, flags: u64, (from, len): (u64, usize)) -> Result<u64> {
        if self.kernel.sizes(map) != Some((4, 4)) {
            return Err("no map");
        }
        if len > LEN_MAX {
            return Err("copies too many bytes");
        }
        let mut bytes = vec![0; len];
        self.read(from, &mut bytes)?;
        // The processor of another number has no ring here.
        if flags & !(OUTPUT_CPU | OUTPUT_LEN) != 0 || flags & OUTPUT_CPU != OUTPUT_CPU {
            return Ok(EINVAL);
        }
        let start = ((flags & OUTPUT_LEN) >> 32) as usize;
        Ok(match self.packet.bytes().get(..start) {
            Some(start) => self.kernel.output(map, &bytes, start) as u64,
            None => EFAULT,
        })
    }

    /// `bpf_xdp_load_bytes` and `bpf_xdp_store_bytes`.
    fn copy_packet(&mut self, to_packet: bool, at: usize, memory: u64, len: usize) -> Result<u64> {
        if len == 0 || len > LEN_MAX {
            return Err("copies no bytes, or too many");
        }
        let end = at.checked_add(len);
        let fits = end.is_some_and(|end| end <= self.packet.bytes().len()) && at <= LEN_MAX;
        let mut bytes = vec![0; len];
        if to_packet {
            self.read(memory, &mut bytes)?;
        }
        if !fits {
            // The verifier treats the memory as written in any case.
            if !to_packet {
                self.write(memory, &bytes)?;
            }
            return Ok(EINVAL);
        }
        let range = HEADROOM + at..HEADROOM + at + len;
        if to_packet {
            self.packet.buffer[range].copy_from_slice(&bytes);
        } else {
            bytes.copy_from_slice(&self.packet.buffer[range]);
            self.write(memory, &bytes)?;
        }
        Ok(0)
    }
}
