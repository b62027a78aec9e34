//! A front-end and a guest of our own against the back-end, well-behaved and not.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::eventfd::EventFd;
use sys::poll::{self, Wanted};

use crate::message::code;
use crate::testing::{self, FrontEnd, Options};
use crate::{Broken, Event, Queues, Sent, Server, feature};

const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    server: Server,
    queues: Arc<Queues>,
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("barewire-vhost-{}-{name}", std::process::id()))
}

fn rig(name: &str, pair_count: u32, discards: bool) -> Rig {
    let queues = Arc::new(Queues::new(pair_count).unwrap());
    let server = Server::listen(&path(name), queues.clone(), discards).unwrap();
    server.start().unwrap();
    Rig { server, queues }
}

impl Rig {
    fn connect(&self, options: Options) -> FrontEnd {
        FrontEnd::connect(self.server.path(), options).unwrap()
    }

    fn event(&self) -> Event {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(event) = self.queues.event() {
                return event;
            }
            assert!(Instant::now() < until, "no event");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Packets from the guest, copied out; the chains are returned.
    fn drain(&self, pair: u32) -> Result<Vec<Vec<u8>>, Broken> {
        let mut packets = Vec::new();
        let mut guard = self.queues.from_guest(pair).lock();
        let Some((vring, _)) = guard.running() else {
            return Ok(packets);
        };
        for _ in 0..vring.waiting()? {
            let (head, chain) = vring.chain()?;
            let mut bytes = vec![0; chain.len() as usize];
            assert!(chain.read(0, &mut bytes));
            // The same in two parts.
            let half = bytes.len() / 2;
            let mut rest = vec![0; bytes.len() - half];
            assert!(chain.read(half as u32, &mut rest));
            assert_eq!(rest, bytes[half..]);
            assert!(!chain.read(chain.len(), &mut [0]));
            vring.done(head, 0);
            packets.push(bytes.split_off(crate::HEADER_LEN));
        }
        guard.publish();
        Ok(packets)
    }

    fn send(&self, pair: u32, packet: &[u8]) -> Result<Sent, Broken> {
        let mut guard = self.queues.to_guest(pair).lock();
        let Some((vring, _)) = guard.running() else {
            return Ok(Sent::NoRoom);
        };
        let sent = vring.send(packet.len(), packet.chunks(700));
        guard.publish();
        sent
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| seed.wrapping_add((at % 251) as u8))
        .collect()
}

#[test]
fn packets_pass_in_both_directions() {
    let without = |bits: u64| Options {
        features: Options::default().features & !bits,
        ..Options::default()
    };
    let regions = Options {
        region_count: 7,
        ..Options::default()
    };
    let pairs = Options {
        pair_count: 3,
        size: 64,
        ..Options::default()
    };
    let kinds = [
        Options::default(),
        without(feature::EVENT_IDX),
        without(feature::INDIRECT_DESC),
        regions,
        pairs,
    ];
    for options in kinds {
        let rig = rig("both", 3, false);
        let mut guest = rig.connect(options);
        assert_eq!(rig.event(), Event::Connected);
        assert_eq!(rig.event(), Event::Started);
        // More than the rings hold, so that all positions are used and indices wrap.
        for number in 0..3000_usize {
            let pair = number % options.pair_count as usize;
            let len = [60, 1514, 9014, 20_000][number % 4];
            let packet = bytes(len, number as u8);
            assert!(guest.send(pair, &packet), "{number}");
            assert_eq!(rig.drain(pair as u32), Ok(vec![packet.clone()]));
            assert_eq!(rig.send(pair as u32, &packet), Ok(Sent::Done));
            assert_eq!(guest.receive(pair), Some(packet), "{number} of {options:?}");
            assert_eq!(guest.receive(pair), None);
        }
        drop(guest);
        assert_eq!(rig.event(), Event::Disconnected);
    }
}

#[test]
fn a_full_ring_has_no_room_and_a_packet_may_be_longer_than_the_ring() {
    let rig = rig("full", 1, false);
    let mut guest = rig.connect(Options {
        size: 16,
        ..Options::default()
    });
    for number in 0..16 {
        assert_eq!(rig.send(0, &bytes(60, number)), Ok(Sent::Done));
    }
    assert_eq!(rig.send(0, &bytes(60, 99)), Ok(Sent::NoRoom));
    for number in 0..16 {
        assert_eq!(guest.receive(0), Some(bytes(60, number)));
    }
    let most = 16 * testing::BUFFER_LEN - crate::HEADER_LEN;
    assert_eq!(rig.send(0, &bytes(most + 1, 0)), Ok(Sent::TooLong));
    assert_eq!(rig.send(0, &bytes(most, 0)), Ok(Sent::Done));
    assert_eq!(guest.receive(0), Some(bytes(most, 0)));
    // Without mergeable buffers a packet has one buffer.
    drop(guest);
    let mut guest = rig.connect(Options {
        features: Options::default().features & !feature::MRG_RXBUF,
        ..Options::default()
    });
    let most = testing::BUFFER_LEN - crate::HEADER_LEN;
    assert_eq!(rig.send(0, &bytes(most + 1, 0)), Ok(Sent::TooLong));
    assert_eq!(rig.send(0, &bytes(most, 7)), Ok(Sent::Done));
    assert_eq!(guest.receive(0), Some(bytes(most, 7)));
}

/// Waits for a kick or a call with a descriptor; sleeping forever fails the test.
#[test]
fn both_sides_sleep_and_are_woken() {
    for features in [0, feature::EVENT_IDX] {
        let rig = rig("sleep", 1, false);
        let options = Options {
            features: Options::default().features & !feature::EVENT_IDX | features,
            ..Options::default()
        };
        let mut guest = rig.connect(options);
        let queue = rig.queues.from_guest(0);
        for number in 0..500_u32 {
            let request = || {
                queue.take_kicks();
                let mut guard = queue.lock();
                guard.running().unwrap().0.request_kick(0)
            };
            assert!(request(), "nothing is there");
            assert!(guest.send(0, &bytes(60, number as u8)));
            let fd = queue.poll_fd();
            let mut wanted = [sys::poll::Wanted::readable(&fd)];
            sys::poll::wait(&mut wanted, LIMIT).unwrap();
            assert!(wanted[0].is_ready(), "no kick with packet {number}");
            queue.lock().running().unwrap().0.request_no_kick();
            queue.take_kicks();
            // Three more without a kick.
            for _ in 0..3 {
                assert!(guest.send(0, &bytes(60, 0)));
            }
            let mut wanted = [sys::poll::Wanted::readable(&fd)];
            sys::poll::wait(&mut wanted, Duration::ZERO).unwrap();
            assert!(!wanted[0].is_ready(), "an unwanted kick");
            assert_eq!(rig.drain(0).unwrap().len(), 4);
            let driver = &guest.drivers[0];
            driver.call().take();
            driver.request_call(&guest.memory);
            assert_eq!(rig.send(0, &bytes(60, 1)), Ok(Sent::Done));
            assert!(driver.call().take(), "no call with packet {number}");
            assert!(guest.receive(0).is_some());
        }
    }
}

#[test]
fn disabled_and_stopped_vrings_have_no_packets_and_continue_where_they_were() {
    let rig = rig("disabled", 1, false);
    let mut guest = rig.connect(Options::default());
    assert!(guest.send(0, &bytes(60, 1)));
    assert_eq!(rig.drain(0).unwrap().len(), 1);
    guest.enable(1, false).unwrap();
    guest.enable(0, false).unwrap();
    assert!(guest.send(0, &bytes(60, 2)));
    assert_eq!(rig.drain(0), Ok(vec![]));
    assert_eq!(rig.send(0, &[0; 60]), Ok(Sent::NoRoom));
    rig.queues.from_guest(0).lock().discard();
    assert_eq!(rig.queues.from_guest(0).lock().counts().discarded, 1);
    guest.enable(1, true).unwrap();
    assert!(guest.send(0, &bytes(60, 3)));
    assert_eq!(rig.drain(0), Ok(vec![bytes(60, 3)]));
    // A reboot: QEMU stops the vrings, and the driver starts them again.
    assert_eq!(guest.stop(1).unwrap(), 3);
    assert!(guest.send(0, &bytes(60, 4)));
    assert_eq!(rig.drain(0), Ok(vec![]));
    guest.drivers[1].collect(&guest.memory);
    guest.start(1).unwrap();
    assert_eq!(rig.drain(0), Ok(vec![bytes(60, 4)]));
    // A memory table in another division: the vrings are the same.
    guest.set_memory(3).unwrap();
    assert!(guest.send(0, &bytes(60, 5)));
    assert_eq!(rig.drain(0), Ok(vec![bytes(60, 5)]));
}

#[test]
fn packets_without_a_reader_are_returned_to_the_guest() {
    let rig = rig("discards", 1, true);
    let mut guest = rig.connect(Options {
        size: 8,
        ..Options::default()
    });
    let until = Instant::now() + LIMIT;
    for _ in 0..100 {
        while !guest.send(0, &bytes(60, 0)) {
            assert!(Instant::now() < until, "the ring stays full");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    while rig.queues.from_guest(0).lock().counts().discarded != 100 {
        assert!(Instant::now() < until, "packets stay in the ring");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A chain that the guest adds between the last look at the ring and the request for a kick is not
/// left there without one; a guest that always adds one gets no more than its share of a call.
#[test]
fn no_kick_is_lost_while_packets_are_discarded() {
    let rig = rig("kicks", 1, false);
    let mut guest = rig.connect(Options::default());
    let queue = rig.queues.from_guest(0);
    let is_readable = || {
        let fd = queue.poll_fd();
        let mut wanted = [Wanted::readable(&fd)];
        poll::wait(&mut wanted, Duration::ZERO).unwrap();
        wanted[0].is_ready()
    };
    assert!(guest.send(0, &bytes(60, 0)));
    queue.take_kicks();
    let mut left = 1;
    queue.lock().discard_while(|| {
        if left != 0 {
            left -= 1;
            assert!(guest.send(0, &bytes(60, 1)));
        }
    });
    assert_eq!(queue.lock().counts().discarded, 2);
    assert!(!is_readable(), "the second packet came without a kick");
    // The request for a kick holds.
    assert!(guest.send(0, &bytes(60, 2)));
    assert!(is_readable());
    queue.take_kicks();
    queue
        .lock()
        .discard_while(|| assert!(guest.send(0, &bytes(60, 3))));
    let discarded = queue.lock().counts().discarded;
    assert!((3..50).contains(&discarded), "{discarded}");
    assert!(is_readable(), "the rest waits for another call");
    queue.lock().discard();
    assert_eq!(queue.lock().counts().discarded, discarded + 1);
}

/// Nobody reads what is discarded, so only the heads are looked at: a chain without end takes no
/// time, and does not stop the vring.
#[test]
fn discarded_chains_are_not_walked() {
    let rig = rig("unread", 1, true);
    let mut guest = rig.connect(Options::default());
    begin(&mut guest, (addr(0), 60, 1, 0));
    let until = Instant::now() + LIMIT;
    while rig.queues.from_guest(0).lock().counts().discarded != 1 {
        assert!(Instant::now() < until, "the chain stays in the ring");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rig.queues.from_guest(0).lock().counts().broken, 0);
    let driver = &mut guest.drivers[1];
    driver.make_available(&guest.memory, 256);
    driver.kick();
    while rig.queues.from_guest(0).lock().counts().broken != 1 {
        assert!(
            Instant::now() < until,
            "a head beyond the table is accepted"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A chain may begin in the ring and end in a table (VIRTIO 1.2 §2.7.5.3.2).
#[test]
fn a_chain_ends_in_a_table() {
    let rig = rig("mixed", 1, false);
    let mut guest = rig.connect(Options::default());
    let driver = &guest.drivers[1];
    let (buffer, table) = (driver.buffers, driver.descriptors + 16 * 8);
    let packet = bytes(60, 7);
    guest.memory.write(buffer, &[0; crate::HEADER_LEN]);
    guest.memory.write(buffer + crate::HEADER_LEN, &packet);
    let table_entry = (addr(table), 32, 4, 0);
    driver.set_descriptor(&guest.memory, 1, table_entry);
    driver.set_descriptor(&guest.memory, 8, (addr(buffer + 12), 20, 1, 1));
    driver.set_descriptor(&guest.memory, 9, (addr(buffer + 32), 40, 0, 0));
    begin(&mut guest, (addr(buffer), 12, 1, 1));
    assert_eq!(rig.drain(0), Ok(vec![packet]));
    // But not continue behind it, nor in a second one.
    for (index, descriptor) in [(1, (addr(table), 32, 5, 2)), (9, table_entry)] {
        let driver = &guest.drivers[1];
        driver.set_descriptor(&guest.memory, 1, table_entry);
        driver.set_descriptor(&guest.memory, index, descriptor);
        begin(&mut guest, (addr(buffer), 12, 1, 1));
        assert_eq!(rig.drain(0), Err(Broken::Table));
    }
}

/// How a guest damages its vring.
type Damage = Box<dyn Fn(&mut FrontEnd)>;

/// An address in the guest, by its offset in the memory file.
fn addr(offset: usize) -> u64 {
    testing::GUEST_ADDR + offset as u64
}

/// A chain that begins with this descriptor: address, length, flags, next.
fn begin(guest: &mut FrontEnd, descriptor: (u64, u32, u16, u16)) {
    let driver = &mut guest.drivers[1];
    driver.set_descriptor(&guest.memory, 0, descriptor);
    driver.make_available(&guest.memory, 0);
    driver.kick();
}

/// Damage in one descriptor.
fn wrong_descriptors() -> Vec<(Broken, Damage)> {
    let start = addr(0);
    let wrong = [
        (Broken::DescriptorIndex, (start, 60, 1, 300)),
        (Broken::Loop, (start, 60, 1, 0)),
        (Broken::Empty, (start, 0, 0, 0)),
        (Broken::Direction, (start, 60, 2, 0)),
        (Broken::Address, (0, 60, 0, 0)),
        (Broken::Address, (u64::MAX - 3, 60, 0, 0)),
        (Broken::Address, (start, u32::MAX, 0, 0)),
        (Broken::Table, (start, 16, 5, 0)),
        (Broken::TableLen, (start, 17, 4, 0)),
        (Broken::TableLen, (start, 0, 4, 0)),
        (Broken::TableLen, (start, 16 * 257, 4, 0)),
        (Broken::Address, (1, 16, 4, 0)),
    ];
    let damage = |descriptor| -> Damage { Box::new(move |guest| begin(guest, descriptor)) };
    let wrong = wrong.into_iter();
    wrong
        .map(|(why, descriptor)| (why, damage(descriptor)))
        .collect()
}

/// Damage in several places.
fn wrong_rings() -> Vec<(Broken, Damage)> {
    let index: Damage = Box::new(|guest| {
        let at = guest.drivers[1].available + 2;
        guest.memory.write(at, &1000u16.to_le_bytes());
    });
    let head: Damage = Box::new(|guest| guest.drivers[1].make_available(&guest.memory, 256));
    let end: Damage = Box::new(|guest| {
        let len = guest.memory.len();
        begin(guest, (addr(len - 10), 11, 0, 0));
    });
    // The table contains itself.
    let table: Damage = Box::new(|guest| {
        let at = guest.drivers[1].descriptors;
        begin(guest, (addr(at), 16, 4, 0));
    });
    // A table whose only descriptor continues beyond it.
    let beyond: Damage = Box::new(|guest| {
        let driver = &guest.drivers[1];
        driver.set_descriptor(&guest.memory, 1, (addr(0), 60, 1, 1));
        let at = driver.descriptors + 16;
        begin(guest, (addr(at), 16, 4, 0));
    });
    vec![
        (Broken::AvailableIndex, index),
        (Broken::DescriptorIndex, head),
        (Broken::Address, end),
        (Broken::Table, table),
        (Broken::DescriptorIndex, beyond),
    ]
}

/// A vring with invalid content stops, and only that; the next front-end can start it.
#[test]
fn invalid_content_breaks_the_vring() {
    let rig = rig("broken", 1, false);
    let cases = wrong_descriptors().into_iter().chain(wrong_rings());
    for (number, (expected, damage)) in cases.enumerate() {
        let mut guest = rig.connect(Options::default());
        damage(&mut guest);
        assert_eq!(rig.drain(0), Err(expected), "case {number}");
        rig.queues.from_guest(0).lock().fail(expected);
        assert_eq!(rig.drain(0), Ok(vec![]), "it is not used");
        assert_eq!(rig.send(0, &[0; 60]), Ok(Sent::Done), "the other one is");
        while rig.event() != Event::Broken(1, expected) {}
        drop(guest);
        while rig.event() != Event::Disconnected {}
    }
}

#[test]
fn buffers_for_packets_must_be_writable_and_hold_a_header() {
    for (flags, len, expected) in [(0, 100, Broken::Direction), (2, 11, Broken::NoHeader)] {
        let rig = rig("buffers", 1, false);
        let guest = rig.connect(Options::default());
        let driver = &guest.drivers[0];
        for index in 0..256 {
            let descriptor = (testing::GUEST_ADDR, len, flags, 0);
            driver.set_descriptor(&guest.memory, index, descriptor);
        }
        assert_eq!(rig.send(0, &[0; 60]), Err(expected));
    }
}

/// Messages with wrong contents or descriptors, or too early: the connection ends, the next one
/// works.
#[test]
fn invalid_messages_end_the_connection_only() {
    let rig = rig("messages", 1, false);
    let pipe = std::io::pipe().unwrap();
    let event = EventFd::new().unwrap();
    let number = |number: u64| number.to_ne_bytes().to_vec();
    let pair = |one: u32, two: u32| [one.to_ne_bytes(), two.to_ne_bytes()].concat();
    let open = std::fs::File::open("/proc/self/exe").unwrap();
    let region = crate::message::Region {
        guest_addr: 0,
        len: 4096,
        user_addr: 0,
        file_offset: 0,
    };
    let memory = testing::GuestMemory::new(8192).unwrap();
    let beyond = crate::message::Region {
        len: 12288,
        ..region
    };
    let wraps = crate::message::Region {
        guest_addr: u64::MAX - 100,
        ..region
    };
    let one = |region| testing::table(&[region]);
    let messages: Vec<(u32, Vec<u8>, Vec<std::os::fd::BorrowedFd<'_>>)> = vec![
        (0, vec![], vec![]),
        (999, vec![], vec![]),
        (code::SET_FEATURES, number(u64::MAX), vec![]),
        (code::SET_PROTOCOL_FEATURES, number(u64::MAX), vec![]),
        (code::SET_VRING_NUM, pair(0, 3), vec![]),
        (code::SET_VRING_NUM, pair(0, 65536), vec![]),
        (code::SET_VRING_NUM, pair(2, 256), vec![]),
        (code::SET_VRING_BASE, pair(0, 65536), vec![]),
        (code::GET_VRING_BASE, pair(77, 0), vec![]),
        (code::SET_VRING_KICK, number(0), vec![event.as_fd()]),
        (code::SET_VRING_CALL, number(0), vec![pipe.1.as_fd()]),
        (code::SET_VRING_CALL, number(9), vec![event.as_fd()]),
        (code::SET_VRING_ERR, number(0), vec![open.as_fd()]),
        (code::SET_VRING_ENABLE, pair(5, 1), vec![]),
        (code::NET_SET_MTU, number(1 << 20), vec![]),
        (code::SET_MEM_TABLE, one(region), vec![]),
        (code::SET_MEM_TABLE, one(region), vec![open.as_fd()]),
        (code::SET_MEM_TABLE, one(region), vec![pipe.0.as_fd()]),
        (code::SET_MEM_TABLE, one(beyond), vec![memory.fd()]),
        (code::SET_MEM_TABLE, one(wraps), vec![memory.fd()]),
        (
            code::SET_MEM_TABLE,
            testing::table(&[region; 2]),
            vec![memory.fd(); 2],
        ),
        (code::SET_OWNER, vec![], vec![memory.fd(); 9]),
    ];
    for (code, payload, fds) in &messages {
        let socket = testing::connect(rig.server.path()).unwrap();
        testing::tell(&socket, *code, false, payload, fds).unwrap();
        assert!(
            testing::reply(&socket, *code).is_err(),
            "{code} was accepted"
        );
        loop {
            match rig.event() {
                Event::Connected => {}
                Event::Refused(why) => break println!("{code}: {why}"),
                other => panic!("{code}: {other:?}"),
            }
        }
    }
}

/// A part of a message and no more: the connection is served until it ends.
#[test]
fn cut_messages_end_with_their_connection() {
    let rig = rig("cut", 1, false);
    for len in [1, 11, 12, 15] {
        let whole = crate::message::request(code::SET_FEATURES, false, &[0; 8]);
        let socket = testing::connect(rig.server.path()).unwrap();
        sys::descriptors::send_bytes(&socket, &whole[..len]).unwrap();
        drop(socket);
    }
    let mut guest = rig.connect(Options::default());
    assert_eq!(rig.send(0, &bytes(60, 1)), Ok(Sent::Done));
    assert_eq!(guest.receive(0), Some(bytes(60, 1)));
}

#[test]
fn the_socket_is_replaced_after_a_kill_and_never_taken_over() {
    let one = rig("socket", 1, false);
    let queues = Arc::new(Queues::new(1).unwrap());
    let busy = Server::listen(one.server.path(), queues.clone(), false).err();
    assert_eq!(busy.unwrap().kind(), sys::ErrorKind::Busy);
    let place = one.server.path().to_owned();
    let permissions = place.symlink_metadata().unwrap().permissions();
    assert_eq!(permissions.mode() & 0o777, 0o600);
    drop(one);
    assert!(!place.exists());
    // As after a kill: a socket on which nobody listens.
    drop(std::os::unix::net::UnixListener::bind(&place).unwrap());
    let other = Server::listen(&place, queues, false).unwrap();
    drop(other);
    assert!(!place.exists());
}
