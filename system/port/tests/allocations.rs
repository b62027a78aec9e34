//! Once warm, moving packets through a port does not allocate, as checked by a counting allocator.
//! For the memory ring, files, and as root packet sockets.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use barewire_port::{Port, PortOptions};

thread_local! {
    /// Allocations of this thread. Without a destructor, so that an allocator can use it.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations made by `body` on this thread.
fn allocations(body: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    body();
    COUNT.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))), 1);
    assert_eq!(allocations(|| ()), 0);
}

/// Sends `rounds` batches of packets of several lengths and receives them; returns their number,
/// and a sum over their bytes, so that nothing is optimized away.
fn turn(port: &mut Port, rounds: usize, keep: bool) -> (usize, u64) {
    let (rx, tx) = (&mut port.rx[0], &mut port.tx[0]);
    let packet = [0x5a_u8; 1514];
    let (mut received, mut sum) = (0, 0);
    for round in 0..rounds {
        let mut batch = tx.reserve(64).unwrap();
        for at in 0..batch.room() {
            batch.write(&packet[..60 + (round * 37 + at * 131) % 1400]);
        }
        batch.submit().unwrap();
        tx.flush().unwrap();
        rx.wait(Duration::ZERO).unwrap();
        let mut batch = rx.receive().unwrap();
        received += batch.len();
        for packet in batch.iter() {
            sum += packet
                .bytes()
                .iter()
                .map(|byte| u64::from(*byte))
                .sum::<u64>();
            sum += packet.time_ns().unwrap_or(0) & 1;
        }
        for mut packet in batch.iter_mut() {
            packet.bytes_mut()[0] ^= 1;
        }
        if keep && !batch.is_empty() {
            // A frame that is kept is a move, and goes out again.
            let frame = batch.detach(0).unwrap().frame;
            drop(batch);
            assert!(tx.send(frame).unwrap().is_none());
        }
    }
    (received, sum)
}

#[test]
fn the_memory_ring_allocates_nothing_once_warm() {
    for (query, keep) in [
        ("memory:", false),
        ("memory:?batch=7", true),
        ("memory:?timestamp=none", true),
    ] {
        let mut port = barewire_port::open(query, &PortOptions::default()).unwrap();
        turn(&mut port, 100, keep);
        let mut moved = (0, 0);
        let count = allocations(|| moved = turn(&mut port, 2000, keep));
        assert!(moved.0 > 10_000 && moved.1 > 0, "{query}: {moved:?}");
        assert_eq!(count, 0, "{query}: {} packets", moved.0);
    }
}

/// Also with a filter in user space, including rejected packets.
#[test]
fn filtering_allocates_nothing_once_warm() {
    // ld len; jset #1, reject, keep
    let insns = vec![
        bpf::cbpf::Insn::new(0x80, 0, 0, 0),
        bpf::cbpf::Insn::new(0x45, 0, 1, 1),
        bpf::cbpf::Insn::new(0x06, 0, 0, 0),
        bpf::cbpf::Insn::new(0x06, 0, 0, u32::MAX),
    ];
    let options = PortOptions {
        filter: Some(bpf::cbpf::Program::new(insns).unwrap()),
        ..PortOptions::default()
    };
    let mut port = barewire_port::open("memory:", &options).unwrap();
    turn(&mut port, 100, false);
    let mut moved = (0, 0);
    let count = allocations(|| moved = turn(&mut port, 2000, false));
    let filtered = port.rx[0].counters().filtered.get();
    assert!(
        moved.0 > 10_000 && filtered > 10_000,
        "{moved:?}, {filtered} filtered"
    );
    assert_eq!(count, 0);
}

/// A pcap file of this many packets in a temporary directory; removed when dropped.
struct Capture(std::path::PathBuf);

impl Capture {
    fn path(name: &str) -> Capture {
        let id = std::process::id();
        Self(std::env::temp_dir().join(format!("bw-allocations-{id}-{name}")))
    }

    fn new(name: &str, count: u32, packed: bool) -> Self {
        let mut bytes = Vec::new();
        let head: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1];
        head.iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        for number in 0..count {
            let len = 60 + number * 131 % 1400;
            [number, 0, len, len]
                .iter()
                .for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes.extend((0..len).map(|at| (at ^ number) as u8));
        }
        if packed {
            let fast = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), fast);
            std::io::Write::write_all(&mut encoder, &bytes).unwrap();
            bytes = encoder.finish().unwrap();
        }
        let capture = Self::path(name);
        std::fs::write(&capture.0, bytes).unwrap();
        capture
    }

    fn name(&self) -> String {
        format!("file:{}", self.0.display())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Receives until `count` packets arrived, and reads each.
fn receive(port: &mut Port, count: usize) -> u64 {
    let (mut received, mut sum) = (0, 0);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while received < count {
        let rx = &mut port.rx[0];
        rx.wait(Duration::from_millis(10)).unwrap();
        let batch = rx.receive().unwrap();
        received += batch.len();
        for packet in batch.iter() {
            sum += u64::from(packet.bytes()[0]) + u64::from(packet.wire_len());
        }
        assert!(std::time::Instant::now() < until, "{received} of {count}");
    }
    sum
}

/// Mapped, and through the buffer after a decompressor.
#[test]
fn reading_a_file_allocates_nothing_once_warm() {
    for (name, packed) in [("plain.pcap", false), ("packed.pcap.gz", true)] {
        let capture = Capture::new(name, 20_000, packed);
        let mut port = barewire_port::open(&capture.name(), &PortOptions::default()).unwrap();
        receive(&mut port, 1000);
        let mut sum = 0;
        let count = allocations(|| sum = receive(&mut port, 15_000));
        assert_eq!(count, 0, "{name}");
        assert!(sum > 0);
    }
}

#[test]
fn writing_a_file_allocates_nothing_once_warm() {
    for name in ["written.pcap", "written.pcapng"] {
        let capture = Capture::path(name);
        let options = PortOptions {
            direction: barewire_port::Direction::Tx,
            ..PortOptions::default()
        };
        let mut port = barewire_port::open(&capture.name(), &options).unwrap();
        let mut write = |rounds: usize| {
            let tx = &mut port.tx[0];
            for round in 0..rounds {
                let mut batch = tx.reserve(64).unwrap();
                for at in 0..batch.room() {
                    assert!(batch.write(&[0x5a; 1514][..60 + (round * 37 + at) % 1400]));
                }
                batch.submit().unwrap();
                tx.flush().unwrap();
            }
        };
        write(50);
        assert_eq!(allocations(|| write(500)), 0, "{name}");
    }
}

/// Sets up the loopback interface in a namespace of this thread.
fn own_loopback() -> bool {
    // SAFETY: plain system calls; the structure is plain data and lives through the call.
    unsafe {
        if libc::geteuid() != 0 || libc::unshare(libc::CLONE_NEWNET) != 0 {
            return false;
        }
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as _, b'o' as _);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
        let result = libc::ioctl(socket, libc::SIOCSIFFLAGS, &request);
        libc::close(socket);
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
    true
}

/// All ways of receiving, and the transmit ring.
#[test]
fn packet_sockets_allocate_nothing_once_warm() {
    if !own_loopback() {
        skip::skip!("needs root");
    }
    for tap in ["tpacket", "tpacket&immediate=yes", "bpf"] {
        let options = PortOptions {
            direction: barewire_port::Direction::Both,
            ..PortOptions::default()
        };
        let name = format!("afpacket:lo?tap={tap}&outgoing=no&block_timeout_ms=1");
        let mut port = match barewire_port::open(&name, &options) {
            Ok(port) => port,
            Err(error) if error.kind() == sys::ErrorKind::Unsupported => {
                skip::record("packet_sockets_allocate_nothing_once_warm", error);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        // An unassigned EtherType.
        let mut packet = [0; 200];
        (packet[12], packet[13]) = (0x88, 0xb5);
        let mut exchange = |rounds: usize| {
            for _ in 0..rounds {
                let mut batch = port.tx[0].reserve(32).unwrap();
                let mut count = 0;
                while count < 32 && batch.write(&packet) {
                    count += 1;
                }
                batch.submit().unwrap();
                port.tx[0].flush().unwrap();
                receive(&mut port, count);
            }
        };
        exchange(20);
        assert_eq!(allocations(|| exchange(100)), 0, "{tap}");
    }
}
