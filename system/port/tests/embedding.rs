//! Features for programs that embed ports: a custom backend, a descriptor to poll, a waker, another
//! filter while the port is open. For ports that need no privileges.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barewire_port::{
    Backend, Capabilities, Filled, Port, PortAccount, PortControl, PortDescription, PortEvent,
    PortName, PortOptions, QueueAccount, Ready, Registry, RxBackend, RxCounters, RxQueue, Slot,
    TxBackend, TxCounters, TxQueue, Vlan,
};
use bpf::cbpf::{Insn, Program};
use ring::{Frame, FrameCache, Pool, PoolConfig};
use sys::{Error, ErrorKind, Result};

/// Longer than anything here takes, unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Packets in transit, shared by the two ends of this test's backend.
type Queue = Arc<Mutex<VecDeque<Box<[u8]>>>>;

/// A backend in another crate: packets sent on it are received from it, in its own memory.
struct Rx {
    queue: Queue,
    /// Packets borrowed by the queue, by token.
    borrowed: Vec<Option<Box<[u8]>>>,
    cache: FrameCache,
    counters: Arc<RxCounters>,
}

impl RxBackend for Rx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let mut filled = Filled::default();
        let mut queue = self.queue.lock().unwrap();
        while filled.packets < max
            && let Some(mut packet) = queue.pop_front()
        {
            let data = NonNull::new(packet.as_mut_ptr()).unwrap();
            let len = packet.len() as u32;
            // SAFETY: the packet stays in `borrowed`, untouched, until the slot returns.
            let mut slot = unsafe { Slot::over(data, len, len, self.borrowed.len() as u64) };
            slot.set_time(1_000 + u64::from(packet[0]));
            slot.set_vlan(Vlan {
                tpid: 0x8100,
                tci: 7,
            });
            slots.push(slot);
            self.borrowed.push(Some(packet));
            filled.packets += 1;
            filled.bytes += u64::from(len);
        }
        Ok(filled)
    }

    fn release(&mut self, slots: &mut Vec<Slot>) {
        for slot in slots.drain(..) {
            if slot.token() != Slot::DETACHED {
                self.borrowed[slot.token() as usize] = None;
            }
        }
        if self.borrowed.iter().all(Option::is_none) {
            self.borrowed.clear();
        }
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let full = || Error::new(ErrorKind::NoSpace, "keep a packet", "no frame is free");
        let packet = self.borrowed[slot.token() as usize].as_ref().unwrap();
        let mut frame = self.cache.take().ok_or_else(full)?;
        let pool = self.cache.pool();
        pool.set_range(&mut frame, 0, slot.cap_len());
        pool.bytes_mut(&mut frame).copy_from_slice(packet);
        self.counters.detach_copies.add(1);
        Ok(frame)
    }

    fn wait(&mut self, _: Duration) -> Result<Ready> {
        match self.queue.lock().unwrap().is_empty() {
            true => Ok(Ready::Timeout),
            false => Ok(Ready::Packets),
        }
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }
}

struct Tx {
    queue: Queue,
    borrowed: Vec<Box<[u8]>>,
    counters: Arc<TxCounters>,
}

impl TxBackend for Tx {
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        for token in 0..max.min(4) {
            let mut room: Box<[u8]> = vec![0; 2048].into();
            let data = NonNull::new(room.as_mut_ptr()).unwrap();
            // SAFETY: the room stays in `borrowed`, untouched, until the slots return.
            slots.push(unsafe { Slot::over(data, 2048, 2048, token as u64) });
            self.borrowed.push(room);
        }
        Ok(())
    }

    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let mut queue = self.queue.lock().unwrap();
        for slot in &slots[..filled] {
            let room = &self.borrowed[slot.token() as usize];
            queue.push_back(room[..slot.cap_len() as usize].into());
            self.counters.sent.add(1);
        }
        slots.clear();
        self.borrowed.clear();
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        Ok(Some(frame))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: bool, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn pool(&self) -> Option<&Pool> {
        None
    }
}

struct Control {
    counters: Arc<RxCounters>,
    sent: Arc<TxCounters>,
    name: String,
}

impl PortControl for Control {
    fn account(&mut self) -> Result<PortAccount> {
        let mut queue = QueueAccount {
            seen: self.sent.sent.get(),
            delivered: self.counters.delivered.get(),
            ..QueueAccount::default()
        };
        queue.dropped[barewire_port::DropReason::Filter as usize] = self.counters.filtered.get();
        Ok(PortAccount {
            rx: vec![queue],
            ..PortAccount::default()
        })
    }

    fn event(&mut self) -> Option<PortEvent> {
        None
    }

    fn describe(&self) -> PortDescription {
        PortDescription {
            scheme: "boxes",
            target: self.name.clone(),
            link_type: 1,
            ..PortDescription::default()
        }
    }

    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

fn open_boxes(name: &PortName, options: &PortOptions) -> Result<Port> {
    let queue = Queue::default();
    let (counters, sent) = (Arc::<RxCounters>::default(), Arc::<TxCounters>::default());
    let rx = Rx {
        queue: queue.clone(),
        borrowed: Vec::new(),
        cache: FrameCache::new(Pool::new(PoolConfig::default())?),
        counters: counters.clone(),
    };
    let tx = Tx {
        queue,
        borrowed: Vec::new(),
        counters: sent.clone(),
    };
    Ok(Port {
        name: format!("boxes:{}", name.target),
        rx: vec![RxQueue::new(
            Box::new(rx),
            0,
            options.batch_max,
            options.filter.clone(),
            counters.clone(),
        )],
        tx: vec![TxQueue::new(Box::new(tx), 0, sent.clone())],
        control: Box::new(Control {
            counters,
            sent,
            name: name.target.clone(),
        }),
        capabilities: Capabilities::default(),
    })
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.add(Backend::new("boxes", open_boxes)).unwrap();
    registry
}

fn send(port: &mut Port, packets: &[Vec<u8>]) {
    for packet in packets {
        let mut batch = port.tx[0].reserve(1).unwrap();
        assert!(batch.write(packet));
        batch.submit().unwrap();
    }
    port.tx[0].flush().unwrap();
}

/// Packets of 60 bytes whose first byte is the number.
fn packets(numbers: std::ops::Range<u8>) -> Vec<Vec<u8>> {
    let packet = |number| {
        let mut packet = vec![0x5a; 60];
        packet[0] = number;
        packet
    };
    numbers.map(packet).collect()
}

/// The first bytes of all available packets.
fn receive(port: &mut Port) -> Vec<u8> {
    let mut numbers = Vec::new();
    loop {
        let batch = port.rx[0].receive().unwrap();
        numbers.extend(batch.iter().map(|packet| packet.bytes()[0]));
        let is_empty = batch.is_empty();
        drop(batch);
        // A filter may have rejected all of a batch.
        if is_empty && port.rx[0].wait(Duration::ZERO).unwrap() != Ready::Packets {
            return numbers;
        }
    }
}

/// Selects packets whose first byte is at least this.
fn at_least(number: u8) -> Program {
    let insns = vec![
        Insn::new(0x30, 0, 0, 0),
        Insn::new(0x35, 0, 1, number.into()),
        Insn::new(0x06, 0, 0, u32::MAX),
        Insn::new(0x06, 0, 0, 0),
    ];
    Program::new(insns).unwrap()
}

#[test]
fn a_backend_of_another_crate_is_opened_by_name() {
    let registry = registry();
    let options = PortOptions {
        filter: Some(at_least(2)),
        ..PortOptions::default()
    };
    let mut port = registry.open("boxes:here?batch=4", &options).unwrap();
    assert_eq!(port.control.describe().target, "here");
    send(&mut port, &packets(0..10));
    let mut batch = port.rx[0].receive().unwrap();
    assert_eq!(batch.len(), 2, "a batch of four, two of which are rejected");
    let packet = batch.iter().next().unwrap();
    assert_eq!(
        (packet.time_ns(), packet.bytes(), packet.vlan()),
        (
            Some(1_002),
            &packets(2..3)[0][..],
            Some(Vlan {
                tpid: 0x8100,
                tci: 7
            })
        )
    );
    let kept = batch.detach(1).unwrap();
    assert_eq!(kept.meta.time_ns, Some(1_003));
    drop(batch);
    assert_eq!(
        port.rx[0].pool().unwrap().bytes(&kept.frame),
        packets(3..4)[0]
    );
    assert_eq!(receive(&mut port), [4, 5, 6, 7, 8, 9]);
    let account = port.control.account().unwrap();
    assert_eq!((account.rx[0].imbalance(), account.rx[0].delivered), (0, 8));
    // To a port of this crate's, and those are opened by it too.
    let mut memory = registry.open("memory:", &PortOptions::default()).unwrap();
    send(&mut port, &packets(20..24));
    let mut batch = port.rx[0].receive().unwrap();
    let forwarded = batch.forward(&mut memory.tx[0], 4).unwrap();
    assert_eq!((forwarded.packets, forwarded.copied), (4, 4));
    drop(batch);
    let batch = memory.rx[0].receive().unwrap();
    let tagged = batch.iter().next().unwrap();
    // That port carries the tag, and all else that is known, alongside the bytes.
    assert_eq!(tagged.bytes(), packets(20..21)[0]);
    let tag = tagged.vlan().map(|vlan| (vlan.tpid, vlan.tci));
    assert_eq!((tag, tagged.time_ns()), (Some((0x8100, 7)), Some(1_020)));
    drop(batch);
    let error = barewire_port::open("boxes:here", &PortOptions::default()).err();
    assert!(error.unwrap().to_string().contains("unknown scheme"));
}

/// A file of these packets, removed when dropped.
struct Capture(std::path::PathBuf);

impl Capture {
    fn of(name: &str, packets: &[Vec<u8>]) -> Self {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("bw-embedding-{}-{name}.pcap", std::process::id()));
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0x4_0000, 1] {
            bytes.extend(word.to_le_bytes());
        }
        for packet in packets {
            for word in [1, 0, packet.len() as u32, packet.len() as u32] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(packet);
        }
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_filter_is_replaced_while_the_port_is_open() {
    let source = barewire_port::FilterSource::new(|_| Ok(Some(at_least(100))));
    let (with_program, with_source) = (
        PortOptions {
            filter: Some(at_least(100)),
            batch_max: 8,
            ..PortOptions::default()
        },
        PortOptions {
            filter_source: Some(source),
            batch_max: 8,
            ..PortOptions::default()
        },
    );
    let all: Vec<u8> = (0..200).collect();
    let expected = [
        (Some(at_least(150)), 150),
        (None, 0),
        (Some(at_least(199)), 199),
    ];
    for options in [&with_program, &with_source] {
        for name in ["memory:", "boxes:"] {
            if name == "boxes:" && options.filter.is_none() {
                continue;
            }
            let mut port = registry().open(name, options).unwrap();
            let switch = port.filter_switch();
            send(&mut port, &packets(0..200));
            assert_eq!(receive(&mut port), all[100..]);
            for (filter, first) in &expected {
                // From another thread, as a program would that watches its configuration.
                let control = &mut port.control;
                std::thread::scope(|scope| {
                    let set = || switch.set(control.as_mut(), filter.as_ref()).unwrap();
                    scope.spawn(set).join().unwrap();
                });
                send(&mut port, &packets(0..200));
                assert_eq!(receive(&mut port), all[*first..], "{name}");
            }
            let account = port.control.account().unwrap();
            assert_eq!(account.rx[0].imbalance(), 0, "{account:?}");
        }
        for (at, (filter, first)) in expected.iter().enumerate() {
            let file = Capture::of(&format!("filter{at}"), &packets(0..200));
            let mut port = barewire_port::open(file.0.to_str().unwrap(), options).unwrap();
            let switch = port.filter_switch();
            switch.set(port.control.as_mut(), filter.as_ref()).unwrap();
            assert_eq!(receive(&mut port), all[*first..]);
            let account = port.control.account().unwrap();
            assert_eq!(account.rx[0].imbalance(), 0, "{account:?}");
        }
    }
}

#[test]
fn a_waker_ends_a_wait_from_another_thread() {
    for name in ["memory:", "boxes:"] {
        let mut port = registry().open(name, &PortOptions::default()).unwrap();
        let waker = port.rx[0].waker().unwrap();
        // Before the wait, and once.
        waker.wake();
        waker.wake();
        assert_eq!(port.rx[0].wait(LONG).unwrap(), Ready::Woken);
        assert_eq!(port.rx[0].wait(Duration::ZERO).unwrap(), Ready::Timeout);
        // While it waits (or just before: it does not matter).
        for _ in 0..20 {
            let rx = &mut port.rx[0];
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| rx.wait(LONG).unwrap());
                waker.wake();
                assert_eq!(thread.join().unwrap(), Ready::Woken);
            });
        }
        // Packets end it as before, and a wake comes first.
        send(&mut port, &packets(0..3));
        assert_eq!(port.rx[0].wait(LONG).unwrap(), Ready::Packets);
        waker.clone().wake();
        assert_eq!(port.rx[0].wait(LONG).unwrap(), Ready::Woken);
        assert_eq!(receive(&mut port), [0, 1, 2]);
    }
    let file = Capture::of("waker", &packets(0..3));
    let options = PortOptions::default();
    let mut port = barewire_port::open(file.0.to_str().unwrap(), &options).unwrap();
    let waker = port.rx[0].waker().unwrap();
    waker.wake();
    assert_eq!(port.rx[0].wait(LONG).unwrap(), Ready::Woken);
    assert_eq!(receive(&mut port), [0, 1, 2]);
    assert_eq!(port.rx[0].wait(LONG).unwrap(), Ready::End);
    assert!(
        port.rx[0].poll_fd().is_none(),
        "it never has to be waited for"
    );
}

/// Whether a descriptor becomes readable.
fn poll(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one element, alive for the call.
    unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as i32) == 1 }
}

#[test]
fn a_ring_in_memory_can_be_polled() {
    let Port { mut rx, tx, .. } = barewire_port::open("memory:", &PortOptions::default()).unwrap();
    let mut tx = tx;
    let rx = &mut rx[0];
    assert!(rx.arm().unwrap());
    assert!(!poll(rx.poll_fd().unwrap(), Duration::ZERO));
    for round in 0..50 {
        std::thread::scope(|scope| {
            let tx = &mut tx[0];
            scope.spawn(move || {
                let mut batch = tx.reserve(1).unwrap();
                assert!(batch.write(&[round; 60]));
                batch.submit().unwrap();
                tx.flush().unwrap();
            });
            // Armed before or after the packet arrived: both must work.
            if rx.arm().unwrap() {
                assert!(poll(rx.poll_fd().unwrap(), LONG));
            }
            let batch = rx.receive().unwrap();
            assert_eq!(batch.iter().next().unwrap().bytes(), [round; 60]);
        });
    }
    // The end makes it readable, too.
    assert!(rx.arm().unwrap());
    drop(tx);
    assert!(poll(rx.poll_fd().unwrap(), LONG));
    assert_eq!(rx.wait(Duration::ZERO).unwrap(), Ready::End);
    assert!(!rx.arm().unwrap());
}
