//! What must hold for any input: over a fuzzer's inputs, and random ones in the tests.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sys::eventfd::EventFd;

use crate::message::{HEADER_LEN, Header, Region, VringAddr, code};
use crate::testing::GuestMemory;
use crate::{Broken, Layout, Memory, Queues, Session, Vring, feature};

const MEMORY_LEN: usize = 64 << 10;

fn whole(memory: &GuestMemory) -> Region {
    Region {
        guest_addr: 0,
        len: memory.len() as u64,
        user_addr: 0,
        file_offset: 0,
    }
}

/// Reads all packets from the guest, and sends one as long as there is room; twice, because the
/// second round begins where the first one ended.
fn use_vring(vring: &mut Vring) -> Result<(), Broken> {
    let mut bytes = vec![0; MEMORY_LEN];
    for _ in 0..2 {
        let waiting = vring.waiting()?;
        for _ in 0..waiting {
            let (head, chain) = vring.chain()?;
            let len = bytes.len().min(chain.len() as usize);
            assert!(chain.read(0, &mut bytes[..len]), "a checked chain is read");
            vring.done(head, 0);
        }
        vring.publish();
        vring.request_kick(0);
        for len in [60, 5000] {
            vring.send(len, std::iter::once(&bytes[..len]))?;
        }
        vring.publish();
        vring.request_no_kick();
        vring.discard()?;
    }
    Ok(())
}

/// Any guest memory as a vring: two bytes select the size and the features, the rest is memory, the
/// vring at its start.
pub fn vring_input(input: &[u8]) {
    let Some(([size, features], content)) = input.split_first_chunk() else {
        return;
    };
    let memory = GuestMemory::new(MEMORY_LEN).expect("memory");
    memory.write(0, &content[..content.len().min(MEMORY_LEN)]);
    let size = 1 << (size % 8);
    let bit = |number: u8, feature: u64| u64::from(features >> number & 1) * feature;
    let available = 16 * u64::from(size);
    let layout = Layout {
        size,
        addr: VringAddr {
            descriptors: 0,
            available,
            used: (available + 6 + 2 * u64::from(size)).next_multiple_of(4),
        },
        base: 0,
        features: feature::VERSION_1
            | bit(0, feature::EVENT_IDX)
            | bit(1, feature::INDIRECT_DESC)
            | bit(2, feature::MRG_RXBUF),
    };
    let file = memory.fd().try_clone_to_owned().expect("a descriptor");
    let mapped = Memory::map(&[whole(&memory)], vec![file]).expect("a valid table");
    let mut vring = Vring::new(Arc::new(mapped), layout).expect("it is in the memory");
    let _ = use_vring(&mut vring);
}

/// Any sequence of messages: for each a code, flags and a length of the payload in a byte each, and
/// the payload. Each comes with as many descriptors as it should have, or one more.
pub fn message_input(input: &[u8]) {
    let queues = Arc::new(Queues::new(2).expect("descriptors"));
    let mut session = Session::new(queues.clone());
    let memory = GuestMemory::new(MEMORY_LEN).expect("memory");
    let mut rest = input;
    while let Some(([code, flags, len], after)) = rest.split_first_chunk() {
        let (payload, after) = after.split_at(after.len().min(usize::from(*len)));
        rest = after;
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = *code;
        bytes[4] = flags & 0x0f;
        bytes[8..].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        let Ok(header) = Header::decode(&bytes) else {
            continue;
        };
        let event = || EventFd::new().expect("a descriptor");
        let event = || event().as_fd().try_clone_to_owned().expect("a descriptor");
        let file = || memory.fd().try_clone_to_owned().expect("a descriptor");
        let mut fds: Vec<OwnedFd> = match header.request {
            code::SET_MEM_TABLE => {
                let count = payload.first().map_or(0, |count| count % 9);
                (0..count).map(|_| file()).collect()
            }
            code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => vec![event()],
            _ => Vec::new(),
        };
        if flags & 0x80 != 0 {
            fds.push(event());
        }
        if session.handle(header, payload, fds).is_err() {
            // The connection ends, and the next one begins.
            session = Session::new(queues.clone());
        }
        for queue in queues.iter() {
            let mut guard = queue.lock();
            if let Some((vring, _)) = guard.running()
                && let Err(why) = use_vring(vring)
            {
                guard.fail(why);
            }
            guard.discard();
        }
    }
    drop(session);
    assert!(queues.iter().all(|queue| !queue.lock().is_running()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64*.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }
    }

    /// Descriptors whose fields are often valid, so that chains are followed far.
    #[test]
    fn any_vring_is_used_or_refused() {
        for seed in 1..3000 {
            let mut random = Random(seed);
            let size = 1u64 << (seed % 8);
            let mut input = vec![seed as u8, random.next() as u8];
            for _ in 0..size {
                let addr = random.next() % 0x1_1000;
                let len =
                    [0, 12, 60, 16 * (1 + random.next() % size), 3000][random.next() as usize % 5];
                let flags = [0, 1, 1, 2, 3, 4, 4][random.next() as usize % 7];
                let next = random.next() % (size + 1);
                input.extend_from_slice(&addr.to_le_bytes());
                input.extend_from_slice(&(len as u32).to_le_bytes());
                input.extend_from_slice(&(flags as u16).to_le_bytes());
                input.extend_from_slice(&(next as u16).to_le_bytes());
            }
            input.extend_from_slice(&[0, 0]);
            input.extend_from_slice(&((random.next() % (size + 2)) as u16).to_le_bytes());
            for _ in 0..size {
                input.extend_from_slice(&((random.next() % (size + 1)) as u16).to_le_bytes());
            }
            println!("seed {seed}");
            vring_input(&input);
        }
    }

    /// Messages in nearly the right order, with nearly right contents.
    #[test]
    fn any_messages_are_handled_or_refused() {
        for seed in 1..400 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let mut input = Vec::new();
            let mut add = |code: u32, words: &[u64], flags: u8| {
                input.extend_from_slice(&[code as u8, flags, 8 * words.len() as u8]);
                words
                    .iter()
                    .for_each(|word| input.extend_from_slice(&word.to_ne_bytes()));
            };
            for _ in 0..20 {
                let mut some = |usual: u64| match random.next() % 16 {
                    0 => random.next(),
                    _ => usual,
                };
                let vring = some(seed % 4) & 0xff;
                let high = |word: u64| (word & 0xffff_ffff) << 32;
                add(code::SET_FEATURES, &[some(feature::OFFERED)], 9);
                add(code::SET_PROTOCOL_FEATURES, &[some(9)], 1);
                let table = [1, some(0), some(MEMORY_LEN as u64), some(0), some(0)];
                add(code::SET_MEM_TABLE, &table, 9);
                add(code::SET_VRING_NUM, &[vring | high(some(64))], 9);
                add(code::SET_VRING_BASE, &[vring | high(some(0))], 9);
                add(
                    code::SET_VRING_ADDR,
                    &[vring, some(0), some(4096), some(2048), 0],
                    9,
                );
                add(code::SET_VRING_CALL, &[vring], some(9) as u8);
                add(code::SET_VRING_KICK, &[vring], 9);
                add(code::SET_VRING_ENABLE, &[vring | high(1)], 9);
                add(code::GET_VRING_BASE, &[some(vring)], 1);
            }
            message_input(&input);
        }
    }
}
