//! Queues to other processes, which are killed at any time or write arbitrary data into the queue's
//! memory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sys::ErrorKind;
use sys::descriptors;
use sys::memfd::{Access, HugePages, MemoryFile};

use super::random::Random;
use crate::shared::{OwnerEnd, PeerEnd, Ready, Recovered, Request, connect};
use crate::{Descriptor, FrameCache, Pool, PoolConfig};

const LONG: Duration = Duration::from_secs(60);
/// As on x86 and Arm (`asm-generic/signal.h`).
const SIGSTOP: i32 = 19;
/// Environment variable of a child.
const CHILD: &str = "BAREWIRE_RING_SHARED";
/// Environment variable of a child that connects by name.
const NAME: &str = "BAREWIRE_RING_NAME";

fn pool(frame_count: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

/// Creates both ends of a queue in this process.
fn ends(pool: &Pool, entry_count: u32) -> (OwnerEnd, PeerEnd) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let owner = OwnerEnd::new(pool, entry_count, ours).unwrap();
    (owner.queue().unwrap(), owner, theirs).attach(pool)
}

trait Attach {
    fn attach(self, pool: &Pool) -> (OwnerEnd, PeerEnd);
}

impl Attach for (OwnedFd, OwnerEnd, UnixStream) {
    fn attach(self, pool: &Pool) -> (OwnerEnd, PeerEnd) {
        let (queue, owner, theirs) = self;
        let attached = Pool::attach(pool.share(Access::Read).unwrap(), Access::Read).unwrap();
        let peer = PeerEnd::attach(attached, queue, theirs).unwrap();
        (owner, peer)
    }
}

/// Creates a packet with this number in its bytes and its metadata, in a new frame.
fn packet(cache: &mut FrameCache, number: u64) -> Option<Descriptor> {
    let mut frame = cache.take()?;
    let pool = cache.pool().clone();
    pool.set_range(&mut frame, 64, 8);
    pool.bytes_mut(&mut frame)
        .copy_from_slice(&number.to_ne_bytes());
    let descriptor = Descriptor {
        wire_len: 100,
        time_ns: number,
        hash: !number,
        info: 0x6123_88a8_0007_0009,
        ..pool.descriptor(&frame)
    };
    Some(descriptor)
}

fn hand(owner: &mut OwnerEnd, cache: &mut FrameCache, number: u64) -> bool {
    let Some(packet) = packet(cache, number) else {
        return false;
    };
    // SAFETY: the frame was just taken, and is handed over or returned.
    unsafe {
        let handed = owner.hand(packet);
        assert!(handed || cache.give_index(packet.index));
        handed
    }
}

/// Takes the next packet, checks it, and returns it to the owner; returns its number.
fn take(peer: &mut PeerEnd) -> Option<u64> {
    let frame = peer.take()?;
    let number = u64::from_ne_bytes(peer.pool().bytes(&frame).try_into().unwrap());
    let expected = Descriptor {
        index: frame.index(),
        offset: 64,
        cap_len: 8,
        wire_len: 100,
        time_ns: number,
        hash: !number,
        info: 0x6123_88a8_0007_0009,
    };
    assert_eq!(peer.pool().descriptor(&frame), expected);
    peer.give(frame).unwrap();
    Some(number)
}

#[test]
fn packets_arrive_in_order_with_their_metadata_and_return() {
    let pool = pool(64);
    let (mut owner, mut peer) = ends(&pool, 16);
    let mut cache = FrameCache::new(pool.clone());
    let (mut sent, mut seen) = (0, 0);
    for _ in 0..100 {
        while hand(&mut owner, &mut cache, sent) {
            sent += 1;
        }
        assert_eq!(take(&mut peer), None, "before the flush");
        owner.flush();
        while let Some(number) = take(&mut peer) {
            assert_eq!(number, seen);
            seen += 1;
        }
        assert_eq!(owner.collect(&mut cache).refused, 0);
        assert_eq!(pool.counts().free, 64);
    }
    assert_eq!((sent, seen), (1600, 1600));
}

#[test]
fn a_peer_that_returns_nothing_gets_no_more_than_its_bound() {
    let pool = pool(64);
    let (mut owner, mut peer) = ends(&pool, 4);
    let mut cache = FrameCache::new(pool.clone());
    let mut kept = Vec::new();
    for number in 0..20 {
        assert_eq!(hand(&mut owner, &mut cache, number), number < 8);
        owner.flush();
        kept.extend(peer.take());
    }
    assert_eq!((kept.len(), pool.counts().peer), (8, 8));
    let first = kept.remove(0);
    let again = first.index();
    peer.give(first).unwrap();
    // Returned again, by writing the index into the ring, as only a hostile peer can.
    assert!(!owner.holder_mut().take_back(u32::MAX, &mut cache));
    assert_eq!(owner.collect(&mut cache).frames, 1);
    assert!(!owner.holder_mut().take_back(again, &mut cache));
    assert!(hand(&mut owner, &mut cache, 20));
    // The peer may still read them.
    drop(owner);
    assert_eq!(pool.counts().peer, 8);
    drop((peer, kept));
    assert_eq!(pool.counts().peer, 8);
}

#[test]
fn one_frame_goes_to_several_peers_and_is_freed_by_the_last() {
    let pool = pool(16);
    let mut cache = FrameCache::new(pool.clone());
    let (mut owners, mut peers): (Vec<_>, Vec<_>) = (0..3).map(|_| ends(&pool, 4)).unzip();
    // The second queue is full and receives nothing; the others receive all packets.
    for number in 0..4 {
        assert!(hand(&mut owners[1], &mut cache, number));
    }
    for number in 0..40 {
        let packet = packet(&mut cache, number).unwrap();
        // SAFETY: as in `hand`.
        let handed = unsafe { OwnerEnd::hand_to(&mut owners, 0b111, &[packet]) };
        assert_eq!(handed, 0b101);
        owners.iter_mut().for_each(OwnerEnd::flush);
        assert_eq!(pool.holding(packet.index).unwrap().count, 2);
        assert_eq!(take(&mut peers[0]), Some(number));
        owners[0].collect(&mut cache);
        assert_eq!(pool.counts().peer, 5, "the third has it");
        assert_eq!(take(&mut peers[2]), Some(number));
        owners[2].collect(&mut cache);
        assert_eq!(pool.counts().peer, 4);
    }
    drop(peers);
    drop(owners);
    assert_eq!(pool.counts().free, 16);
}

#[test]
fn a_peer_sleeps_until_the_flush_or_the_end() {
    let pool = pool(64);
    let (mut owner, mut peer) = ends(&pool, 16);
    assert_eq!(peer.wait(Duration::ZERO).unwrap(), Ready::Timeout);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut seen = 0;
            loop {
                let ready = peer.wait(LONG).unwrap();
                assert_ne!(ready, Ready::Timeout, "a wake-up is missing");
                if ready == Ready::End {
                    break;
                }
                while let Some(number) = take(&mut peer) {
                    assert_eq!(number, seen);
                    seen += 1;
                }
            }
            seen
        });
        let mut cache = FrameCache::new(pool.clone());
        let mut sent = 0;
        while sent < 2000 {
            sent += u64::from(hand(&mut owner, &mut cache, sent));
            owner.flush();
            owner.collect(&mut cache);
        }
        assert!(!owner.is_gone());
        // All packets are received before the end.
        drop(owner);
        assert_eq!(reader.join().unwrap(), sent);
    });
}

/// Code of the child: reads packets, writes their numbers into a pipe, and returns the frames,
/// until it is killed or the owner exits. Does nothing in the test process itself.
#[test]
fn child() {
    skip::child_body!(CHILD);
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let socket = UnixStream::from(stdin);
    let (_, fds) = descriptors::receive(&socket, &mut [0]).unwrap();
    let (mut peer, pipe) = match std::env::var_os(NAME) {
        Some(path) => {
            let [pipe] = <[OwnedFd; 1]>::try_from(fds).unwrap();
            let connected = connect(path.as_ref(), Access::Read, &Request::Any);
            let (peer, terms) = connected.unwrap();
            assert_eq!(terms, names::terms());
            (peer, pipe)
        }
        None => {
            let [pool, queue, pipe] = <[OwnedFd; 3]>::try_from(fds).unwrap();
            let pool = Pool::attach(pool, Access::Read).unwrap();
            (PeerEnd::attach(pool, queue, socket).unwrap(), pipe)
        }
    };
    let mut pipe = File::from(pipe);
    while peer.wait(LONG).unwrap() != Ready::End {
        while let Some(number) = take(&mut peer) {
            pipe.write_all(&number.to_ne_bytes()).unwrap();
        }
    }
    assert_eq!(peer.refused(), 0);
}

/// Starts a child that reads from the queue; returns it with the pipe of the numbers that it has
/// read.
fn start(pool: &Pool, make: impl FnOnce(UnixStream) -> OwnedFd) -> (Child, File) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (numbers, pipe) = std::io::pipe().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::shared::child", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let to_child = ours.try_clone().unwrap();
    let queue = make(ours);
    let pool = pool.share(Access::Read).unwrap();
    let fds = [pool.as_fd(), queue.as_fd(), pipe.as_fd()];
    descriptors::send(&to_child, b"q", &fds).unwrap();
    (child, File::from(OwnedFd::from(numbers)))
}

/// Waits until the socket is closed: a child of another test may have inherited it until its exec.
fn wait_for_end(owner: &OwnerEnd) {
    // Bytes that the peer has sent are readable as well.
    while let Some(fd) = owner.poll_fd() {
        let mut wanted = [sys::poll::Wanted::readable(&fd)];
        sys::poll::wait(&mut wanted, LONG).unwrap();
        assert!(wanted[0].is_ready(), "the peer has not exited");
        if owner.is_gone() {
            break;
        }
    }
}

/// Reads the rest of the pipe of a child that has exited.
fn rest(mut numbers: File) -> Vec<u64> {
    let mut bytes = Vec::new();
    numbers.read_to_end(&mut bytes).unwrap();
    let (numbers, cut) = bytes.as_chunks::<8>();
    assert!(cut.is_empty(), "a pipe accepts eight bytes or none");
    numbers
        .iter()
        .map(|bytes| u64::from_ne_bytes(*bytes))
        .collect()
}

/// Consumers are killed while they read: no frame is lost, no packet is received twice, at most the
/// packet that a consumer holds is missing, and the next consumer continues.
#[test]
fn consumers_that_are_killed_lose_one_packet_at_most() {
    const KILLS: u64 = 25;
    let mut random = Random::seeded("kills");
    let pool = pool(1536);
    let mut cache = FrameCache::new(pool.clone());
    let mut owner = None;
    let (mut child, mut numbers) = start(&pool, |socket| {
        let end = owner.insert(OwnerEnd::new(&pool, 512, socket).unwrap());
        end.queue().unwrap()
    });
    let mut owner = owner.unwrap();
    let (mut sent, mut seen, mut missing, mut kept) = (0, Vec::new(), 0, 0);
    for kill in 0..=KILLS {
        // Waits until the consumer has returned some.
        let mut wanted = 2 + random.below(300);
        while wanted != 0 {
            while hand(&mut owner, &mut cache, sent) {
                sent += 1;
            }
            owner.flush();
            let collected = owner.collect(&mut cache);
            assert_eq!(collected.refused, 0);
            wanted = wanted.saturating_sub(collected.frames);
            std::thread::yield_now();
        }
        if kill == KILLS {
            break;
        }
        // Killed at an arbitrary instruction; every other one is stopped there first, so that there
        // are packets in the ring.
        if kill % 2 == 0 {
            sys::signal::send(child.id(), SIGSTOP).unwrap();
        }
        while hand(&mut owner, &mut cache, sent) {
            sent += 1;
        }
        owner.flush();
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for_end(&owner);
        let before = seen.len();
        seen.extend(rest(numbers));
        assert!(seen.len() > before, "it read some");
        let mut renewed = Recovered::default();
        (child, numbers) = start(&pool, |socket| {
            renewed = owner.renew(socket, &mut cache).unwrap();
            owner.queue().unwrap()
        });
        let counts = pool.counts();
        assert_eq!(counts.peer, renewed.kept, "no frame is with the dead");
        assert_eq!((counts.user, counts.device), (0, 0));
        kept += renewed.kept;
        // Each packet was read, is left for the next consumer, or was held by this one.
        missing += 1;
        let accounted = seen.len() as u64 + u64::from(renewed.kept);
        assert!(accounted <= sent && sent <= accounted + missing);
    }
    owner.close();
    assert!(child.wait().unwrap().success());
    let counts = owner.counts();
    drop(owner);
    seen.extend(rest(numbers));
    assert!(seen.is_sorted_by(|a, b| a < b), "twice, or out of order");
    let lost = sent - seen.len() as u64;
    // One that was killed may have written a packet to its pipe and not returned it, or returned it
    // and not written it.
    assert_eq!((counts.handed, counts.refused), (sent, 0));
    assert!(counts.lost <= KILLS, "{counts:?}");
    assert!(
        lost <= KILLS,
        "{lost} of {sent} packets lost by {KILLS} kills"
    );
    assert!(kept != 0, "no packet waited for the next consumer");
    drop(cache);
    assert_eq!(pool.counts().free, 1536);
}

/// Arbitrary data is written into the queue's memory between the owner's calls: the owner neither
/// fails nor waits, and all frames are accounted for afterwards.
#[test]
fn whatever_a_peer_writes_no_frame_is_lost() {
    let mut random = Random::seeded("scribbler");
    let pool = pool(96);
    let mut cache = FrameCache::new(pool.clone());
    let (socket, mut theirs) = UnixStream::pair().unwrap();
    let mut owner = OwnerEnd::new(&pool, 32, socket).unwrap();
    for round in 0..300 {
        let file = File::from(owner.queue().unwrap());
        let len = file.metadata().unwrap().len();
        let (mut frames, mut number) = (0, 0);
        for _ in 0..30 {
            // Small or arbitrary values, written to the positions or anywhere.
            let at = match random.below(3) {
                0 => u64::from(1 + random.below(6)) * 128,
                _ => u64::from(random.below(len as u32 / 4)) * 4,
            };
            let value = match random.below(3) {
                0 => random.number() as u32,
                _ => random.below(130),
            };
            file.write_all_at(&value.to_ne_bytes(), at).unwrap();
            for _ in 0..random.below(40) {
                number += u64::from(hand(&mut owner, &mut cache, number));
            }
            owner.flush();
            frames += u64::from(owner.collect(&mut cache).frames);
            let counts = pool.counts();
            assert_eq!(u64::from(counts.peer), number - frames);
            assert_eq!((counts.user, counts.device), (0, 0));
            assert_eq!(owner.holder().count(), counts.peer);
            assert!(counts.peer <= 64, "the bound");
        }
        let (ours, other) = UnixStream::pair().unwrap();
        theirs = other;
        wait_for_end(&owner);
        let renewed = owner.renew(ours, &mut cache).unwrap();
        assert_eq!(pool.counts().peer, renewed.kept, "round {round}");
        // The next peer receives the packets that are left, as they were sent.
        let queue = owner.queue().unwrap();
        let next = (queue, owner, theirs.try_clone().unwrap());
        let mut peer;
        (owner, peer) = next.attach(&pool);
        let mut taken = 0;
        while take(&mut peer).is_some() {
            taken += 1;
        }
        assert_eq!((taken, peer.refused()), (u64::from(renewed.kept), 0));
        assert_eq!(u64::from(owner.collect(&mut cache).frames), taken);
        let (ours, next) = UnixStream::pair().unwrap();
        let refused = owner.renew(ours.try_clone().unwrap(), &mut cache);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        drop(peer);
        theirs = next;
        wait_for_end(&owner);
        owner.renew(ours, &mut cache).unwrap();
        assert_eq!(pool.counts().free, 96);
    }
    drop(theirs);
}

#[test]
fn other_memory_is_no_queue() {
    let pool = pool(8);
    let (socket, _theirs) = UnixStream::pair().unwrap();
    for entry_count in [0, 3, 1 << 21] {
        let refused = OwnerEnd::new(&pool, entry_count, socket.try_clone().unwrap());
        assert_eq!(refused.err().unwrap().kind(), ErrorKind::InvalidInput);
    }
    let owner = OwnerEnd::new(&pool, 8, socket).unwrap();
    let attach = |queue: OwnedFd| {
        let pool = Pool::attach(pool.share(Access::Read).unwrap(), Access::Read).unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        PeerEnd::attach(pool, queue, socket)
            .err()
            .map(|error| error.kind())
    };
    let invalid = Some(ErrorKind::InvalidInput);
    assert_eq!(attach(pool.share(Access::Read).unwrap()), invalid);
    let other = MemoryFile::new(c"barewire-test", 4096, HugePages::Never).unwrap();
    assert_eq!(attach(other.share(Access::Write).unwrap()), invalid);
    let queue = owner.queue().unwrap();
    let file = File::from(queue.try_clone().unwrap());
    for (at, value, kind) in [
        (8, 3, ErrorKind::Unsupported),
        (12, 0, ErrorKind::InvalidInput),
        (12, 7, ErrorKind::InvalidInput),
        (12, 128, ErrorKind::InvalidInput),
        (12, u32::MAX, ErrorKind::InvalidInput),
    ] {
        let mut good = [0; 4];
        file.read_exact_at(&mut good, at).unwrap();
        file.write_all_at(&u32::to_ne_bytes(value), at).unwrap();
        assert_eq!(attach(queue.try_clone().unwrap()), Some(kind), "{value}");
        file.write_all_at(&good, at).unwrap();
    }
    assert_eq!(attach(queue), None);
}

mod frames;
mod names;
mod run;
mod sending;
