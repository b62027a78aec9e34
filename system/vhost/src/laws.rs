//! What must hold for any input: over a fuzzer's inputs, and random ones in the tests.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sys::eventfd::EventFd;

use crate::message::{HEADER_LEN, Header, Region, VringAddr, code};
use crate::testing::GuestMemory;
use crate::{Broken, Layout, Memory, Queues, Sent, Session, Vring, feature};

const MEMORY_LEN: usize = 64 << 10;

fn whole(memory: &GuestMemory) -> Region {
    Region {
        guest_addr: 0,
        len: memory.len() as u64,
        user_addr: 0,
        file_offset: 0,
    }
}

/// Most packets that are sent at once: more than a vring of these tests has descriptors.
const SENT_MAX: usize = 300;

/// Reads all packets from the guest; twice, because the second round begins where the first one
/// ended.
fn read_vring(vring: &mut Vring) -> Result<(), Broken> {
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
        vring.request_no_kick();
        vring.discard()?;
    }
    Ok(())
}

/// Sends packets of two lengths to the guest as long as there is room; twice, likewise. Returns how
/// many were sent.
fn fill_vring(vring: &mut Vring) -> Result<usize, Broken> {
    let bytes = vec![0; MEMORY_LEN];
    let mut sent = 0;
    for _ in 0..2 {
        for len in [60, 5000].into_iter().cycle().take(SENT_MAX) {
            let before = vring.base();
            let result = vring.send(len, std::iter::once(&bytes[..len]))?;
            assert_eq!(vring.base() == before, result != Sent::Done, "{result:?}");
            if result != Sent::Done && len == 60 {
                break;
            }
            sent += usize::from(result == Sent::Done);
        }
        vring.publish();
        vring.request_kick(0);
        vring.request_no_kick();
    }
    Ok(sent)
}

/// Any guest memory as a vring: two bytes select the size, the features and the direction (bit 3:
/// packets to the guest), the rest is memory, the vring at its start. Returns the packets sent, or
/// why it is broken; `None` if the input is too short.
///
/// A vring is broken at once if its index is too far ahead, and for this reason only then. One that
/// is not broken has been read to its end.
pub fn vring_input(input: &[u8]) -> Option<Result<usize, Broken>> {
    let ([size, features], content) = input.split_first_chunk()?;
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
    let at = available as usize + 2;
    let byte = |at: usize| content.get(at).copied().unwrap_or(0);
    let expected = match u32::from(u16::from_le_bytes([byte(at), byte(at + 1)])) {
        count if count > size => Err(Broken::AvailableIndex),
        count => Ok(count),
    };
    assert_eq!(vring.waiting(), expected);
    let used = match features & 8 {
        0 => read_vring(&mut vring).map(|()| 0),
        _ => fill_vring(&mut vring),
    };
    if used.is_ok() && features & 8 == 0 {
        assert_eq!(vring.waiting(), Ok(0), "a chain is left");
    }
    if expected.is_err() {
        assert_eq!(used, Err(Broken::AvailableIndex));
    }
    Some(used)
}

/// What has happened to the messages of an input, and to vrings that ran after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages that were handled.
    pub handled: u32,
    /// Messages that ended the connection.
    pub refused: u32,
    /// Uses of vrings that were in order.
    pub used: u32,
    /// Uses of vrings that were broken.
    pub broken: u32,
}

/// Any sequence of messages: for each a code, flags and a length of the payload in a byte each, and
/// the payload. Each comes with as many descriptors as it should have, or one more.
pub fn message_input(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
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
            outcome.refused += 1;
        } else {
            outcome.handled += 1;
        }
        // Of a pair, the first one has the packets to the guest.
        for (index, queue) in queues.iter().enumerate() {
            let mut guard = queue.lock();
            let used = guard.running().map(|(vring, _)| match index % 2 {
                0 => fill_vring(vring).map(drop),
                _ => read_vring(vring),
            });
            match used {
                Some(Ok(())) => outcome.used += 1,
                Some(Err(why)) => {
                    guard.fail(why);
                    assert!(guard.running().is_none(), "a broken vring continues");
                    outcome.broken += 1;
                }
                None => {}
            }
            if index % 2 != 0 {
                guard.discard();
            }
        }
    }
    drop(session);
    assert!(queues.iter().all(|queue| !queue.lock().is_running()));
    outcome
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The inputs of a fuzz target, by name.
    fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let entries = std::fs::read_dir(folder.join(target)).unwrap();
        let mut inputs: Vec<_> = entries
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, std::fs::read(entry.path()).unwrap())
            })
            .collect();
        inputs.sort();
        inputs
    }

    /// Their names say what is in them.
    #[test]
    fn vrings_of_the_corpus_are_used_or_broken_as_they_are_named() {
        let found = corpus("vhost_vring").into_iter();
        let found: Vec<String> = found
            .map(|(name, input)| format!("{name}: {:?}", vring_input(&input).unwrap()))
            .collect();
        assert_eq!(found, VRINGS, "{found:#?}");
    }

    #[test]
    fn messages_of_the_corpus_are_handled_or_refused_as_they_are_named() {
        let found = corpus("vhost_message").into_iter();
        let found: Vec<String> = found
            .map(|(name, input)| {
                let it = message_input(&input);
                let counts = [it.handled, it.refused, it.used, it.broken];
                format!("{name}: {counts:?}")
            })
            .collect();
        assert_eq!(found, MESSAGES, "{found:#?}");
    }

    /// Name and result: the number of packets sent to the guest, or what is wrong.
    const VRINGS: &[&str] = &[
        "address_wraps: Err(Address)",
        "beyond_memory: Err(Address)",
        "buffers_to_fill: Ok(4)",
        "empty_part: Err(Empty)",
        "event_idx: Ok(0)",
        "four_parts: Ok(0)",
        "header_apart: Ok(0)",
        "indirect: Ok(0)",
        "indirect_odd_length: Err(TableLen)",
        "loop: Err(Loop)",
        "merged_buffers: Ok(12)",
        "next_out_of_range: Err(DescriptorIndex)",
        "no_room_for_a_header: Err(NoHeader)",
        "one_packet: Ok(0)",
        "read_after_write: Err(Direction)",
        "shorter_than_a_header: Ok(0)",
        "size_one: Ok(0)",
    ];

    /// Name, messages handled and refused, uses of vrings in order and broken.
    const MESSAGES: &[&str] = &[
        "features: [5, 0, 0, 0]",
        "mtu: [6, 0, 0, 0]",
        "not_offered: [0, 1, 0, 0]",
        "one_descriptor_more: [5, 1, 0, 0]",
        "overlapping_regions: [5, 1, 0, 0]",
        "queue_number: [1, 0, 0, 0]",
        "ring_beyond_memory: [9, 1, 0, 0]",
        "size_no_power_of_two: [6, 1, 0, 0]",
        "start_all: [30, 0, 40, 0]",
        "start_and_stop: [19, 0, 3, 0]",
        "start_one: [12, 0, 1, 0]",
        "twice: [17, 2, 2, 0]",
        "two_regions: [12, 0, 1, 0]",
        "unknown: [0, 1, 0, 0]",
        "vring_out_of_range: [6, 6, 0, 0]",
        "without_memory: [10, 1, 0, 0]",
    ];

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
