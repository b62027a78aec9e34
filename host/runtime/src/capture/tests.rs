//! Tests of captures with a slow control side or a failing disk.

use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;

use port::file::WriterOptions;
use port::{PortOptions, RxCounters, TxQueue};

use super::watch::{GRACE_READER, STALL, STALL_READER};
use super::*;

/// Time limit of a test that might hang.
const LIMIT: Duration = Duration::from_secs(20);

fn memory() -> (Port, Vec<TxQueue>) {
    let mut port = port::open("memory:", &PortOptions::default()).unwrap();
    let tx = std::mem::take(&mut port.tx);
    (port, tx)
}

fn send(tx: &mut TxQueue, count: usize, len: usize) {
    let packet = vec![7; len];
    let until = Instant::now() + LIMIT;
    let mut left = count;
    while left > 0 {
        assert!(Instant::now() < until, "{left} packets find no room");
        let mut batch = tx.reserve(left.min(64)).unwrap();
        while left > 0 && batch.write(&packet) {
            left -= 1;
        }
        batch.submit().unwrap();
        thread::yield_now();
    }
}

/// A control side whose account takes as long as packets are being delivered.
struct Slow {
    control: Box<dyn PortControl>,
    counters: Arc<RxCounters>,
    asked: Arc<AtomicBool>,
    went_on: Arc<AtomicBool>,
}

impl PortControl for Slow {
    fn account(&mut self) -> Result<PortAccount> {
        if !self.asked.swap(true, Ordering::SeqCst) {
            let until = Instant::now() + LIMIT;
            while self.counters.delivered.get() < 5000 && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            let went_on = self.counters.delivered.get() >= 5000;
            self.went_on.store(went_on, Ordering::SeqCst);
        }
        self.control.account()
    }

    fn event(&mut self) -> Option<PortEvent> {
        self.control.event()
    }

    fn describe(&self) -> PortDescription {
        self.control.describe()
    }

    fn stop(&mut self) -> Result<()> {
        self.control.stop()
    }
}

#[test]
fn packets_do_not_wait_for_the_control_side() {
    let (mut port, mut tx) = memory();
    let (asked, went_on) = (Arc::new(AtomicBool::new(false)), Arc::default());
    port.control = Box::new(Slow {
        control: port.control,
        counters: port.rx[0].counters().clone(),
        asked: asked.clone(),
        went_on: Arc::clone(&went_on),
    });
    let sender = thread::spawn(move || {
        let until = Instant::now() + LIMIT;
        while !asked.load(Ordering::SeqCst) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        send(&mut tx[0], 5000, 60);
    });
    let options = Options {
        is_live: true,
        ..Options::default()
    };
    let outcome = run(port, Recorder::Count, &options, &Stop::default(), |_| {});
    sender.join().unwrap();
    assert!(went_on.load(Ordering::SeqCst), "they waited");
    assert_eq!(outcome.totals.packets, 5000);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
}

#[test]
fn a_write_error_within_a_batch_keeps_the_totals_correct() {
    let (port, mut tx) = memory();
    // 300 packets of 1,000 bytes fill the buffer of 256 KiB in the middle of a batch.
    send(&mut tx[0], 300, 1000);
    drop(tx);
    let writer = FileWriter::create(WriterOptions::new("/dev/full")).unwrap();
    let options = Options {
        is_live: true,
        // The file header alone is not written.
        linger: LIMIT,
        ..Options::default()
    };
    let recorder = Recorder::File(Box::new(writer));
    let outcome = run(port, recorder, &options, &Stop::default(), |_| {});
    let error = outcome.error.expect("the disk is full");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let (totals, written) = (outcome.totals, outcome.written.unwrap());
    assert_eq!(written.packets, 0);
    let lost = format!("{} more are lost", totals.packets);
    assert!(error.to_string().contains(&lost), "{error}, {totals:?}");
    assert_eq!(totals.bytes, totals.packets * 1000);
    assert!(totals.packets > 200 && totals.surplus > 0, "{totals:?}");
    let queue = outcome.account.rx_total();
    assert_eq!(queue.delivered, totals.packets + totals.surplus);
    assert_eq!(queue.imbalance(), 0, "{queue:?}");
    assert!(totals.first_ns.is_some() && totals.last_ns.is_some());
}

/// Two ports combined into one with two queues.
struct Two([Box<dyn PortControl>; 2]);

impl PortControl for Two {
    fn account(&mut self) -> Result<PortAccount> {
        let mut account = self.0[0].account()?;
        account.rx.extend(self.0[1].account()?.rx);
        Ok(account)
    }

    fn event(&mut self) -> Option<PortEvent> {
        self.0.iter_mut().find_map(|control| control.event())
    }

    fn describe(&self) -> PortDescription {
        self.0[0].describe()
    }

    fn stop(&mut self) -> Result<()> {
        self.0[0].stop().and(self.0[1].stop())
    }
}

fn two_queues() -> (Port, [TxQueue; 2]) {
    let ((mut port, mut first), (mut other, mut second)) = (memory(), memory());
    port.rx.append(&mut other.rx);
    port.control = Box::new(Two([port.control, other.control]));
    (port, [first.remove(0), second.remove(0)])
}

/// Both queues keep receiving while a write is blocked; a requested end still takes effect, and
/// every packet is accounted for.
#[test]
fn a_blocked_output_delays_neither_the_queue_nor_the_end() {
    let (port, tx) = two_queues();
    let counters: Vec<_> = port.rx.iter().map(|rx| rx.counters().clone()).collect();
    let (mut reader, pipe) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let writer = FileWriter::create(WriterOptions::new(path)).unwrap();
    let stop = Stop::default();
    let asks = stop.clone();
    let sender = thread::spawn(move || {
        // Each queue gets far more than a pipe and the writer's buffer hold.
        let senders = tx.map(|mut tx| {
            thread::spawn(move || {
                send(&mut tx, 4000, 1000);
                tx
            })
        });
        let tx = senders.map(|sender| sender.join().unwrap());
        let until = Instant::now() + LIMIT;
        while counters.iter().any(|queue| queue.delivered.get() < 4000) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        asks.set();
        let delivered: Vec<u64> = counters.iter().map(|queue| queue.delivered.get()).collect();
        (delivered, tx)
    });
    let options = Options {
        is_live: true,
        ..Options::default()
    };
    let recorder = Recorder::File(Box::new(writer));
    let outcome = run(port, recorder, &options, &stop, |_| {});
    let (delivered, _tx) = sender.join().unwrap();
    assert_eq!(delivered, [4000, 4000], "a queue waited for the output");
    let totals = outcome.totals;
    assert!(outcome.is_stuck, "{totals:?}");
    let error = outcome.error.expect("packets are lost").to_string();
    assert!(error.contains("packets are lost"), "{error}");
    assert_eq!(
        totals.packets + totals.surplus + totals.unwritten,
        8000,
        "{totals:?}"
    );
    assert!(totals.unwritten > 7000, "{totals:?}");
    // Exactly what counts as written is in the pipe, which is full.
    let written = outcome.written.unwrap();
    assert_eq!(written.packets, totals.packets);
    assert_eq!(totals.bytes, totals.packets * 1000);
    assert!((30..=65).contains(&written.packets), "{written:?}");
    let mut taken = vec![0; written.bytes as usize];
    std::io::Read::read_exact(&mut reader, &mut taken).unwrap();
    assert_eq!(packet_blocks(&taken), written.packets);
}

/// Number of complete packets in pcapng (Enhanced Packet Blocks).
fn packet_blocks(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((kind, rest)) = bytes.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*rest.first_chunk().unwrap()) as usize;
        bytes = bytes.get(len..).expect("a whole block");
        count += u64::from(u32::from_le_bytes(*kind) == 6);
    }
    count
}

/// Text that waits for a reader does not count as printed.
#[test]
fn packets_with_unwritten_lines_do_not_count_as_captured() {
    let (mut reader, mut pipe) = std::io::pipe().unwrap();
    let mut printer = Printer::new(Style::default());
    let packet = [7; 60];
    let held = Held {
        time_ns: 1,
        bytes: &packet,
        cap_len: 60,
        wire_len: 60,
        interface: 0,
        outgoing: None,
        vlan: None,
    };
    let context = Context {
        link_type: 1,
        interface: "eth0",
        has_way: false,
    };
    const COUNT: u64 = 10_000;
    (0..COUNT).for_each(|_| printer.packet(&held, &context));
    let handed = printer.handed();
    let printing = thread::spawn(move || printer.flush(&mut pipe));
    let until = Instant::now() + LIMIT;
    while handed.packets() == 0 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(handed.packets() < COUNT, "the pipe has no room for all");
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut rest).unwrap();
    printing.join().unwrap().unwrap();
    assert_eq!(handed.packets(), COUNT);
    assert_eq!(handed.captured_bytes(), 60 * COUNT);
}

#[test]
fn a_stall_is_measured_in_time_not_in_polls() {
    let (mut watch, begin) = (Watch::new(false), Instant::now());
    // A burst of events while the writer is in one call.
    assert!((0..1000).all(|_| !watch.is_stalled(1, 0, begin)));
    assert!(!watch.is_stalled(1, 0, begin + STALL / 2));
    assert!(watch.is_stalled(1, 0, begin + STALL));
    // The call returned, and the writer is in the next one.
    assert!(!watch.is_stalled(3, 0, begin + STALL));
    assert!(
        !watch.is_stalled(4, 0, begin + 2 * STALL),
        "waiting for packets"
    );
    assert!(!watch.is_stalled(5, 0, begin + 4 * STALL));
    assert!(watch.is_stalled(5, 0, begin + 5 * STALL));
    // In the same call, while the reader accepts data.
    assert!(!watch.is_stalled(5, 1, begin + 6 * STALL));
    assert!(watch.is_stalled(5, 1, begin + 7 * STALL));
    // The reader of a pipe or a terminal gets less time.
    let mut watch = Watch::new(true);
    assert!(!watch.is_stalled(1, 0, begin));
    assert!(watch.is_stalled(1, 0, begin + STALL_READER));
    assert!(STALL_READER + GRACE_READER < Duration::from_secs(1));
}

/// Everything is written once the reader continues, and the end waits for it.
#[test]
fn a_slow_output_gets_everything() {
    let (port, tx) = two_queues();
    let (mut reader, pipe) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let writer = FileWriter::create(WriterOptions::new(path)).unwrap();
    drop(pipe);
    let senders = tx.map(|mut tx| thread::spawn(move || send(&mut tx, 3000, 1000)));
    let reading = thread::spawn(move || {
        // The senders are gone, so the input has ended: then the reader starts.
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
        bytes.len()
    });
    let options = Options {
        is_live: true,
        ..Options::default()
    };
    let recorder = Recorder::File(Box::new(writer));
    let outcome = run(port, recorder, &options, &Stop::default(), |_| {});
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(
        (outcome.totals.packets, outcome.totals.unwritten),
        (6000, 0)
    );
    let len = reading.join().unwrap() as u64;
    assert_eq!(
        outcome
            .written
            .map(|written| (written.packets, written.bytes)),
        Some((6000, len))
    );
}

/// With several queues the limit applies to all together, and no packet is counted twice.
#[test]
fn a_limit_is_exact_over_several_queues() {
    for counts in [true, false] {
        let (port, tx) = two_queues();
        let senders = tx.map(|mut tx| thread::spawn(move || send(&mut tx, 500, 60)));
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
        let options = Options {
            is_live: true,
            count: Some(600),
            ..Options::default()
        };
        let recorder = match counts {
            true => Recorder::Count,
            false => {
                let writer = FileWriter::create(WriterOptions::new("/dev/null")).unwrap();
                Recorder::File(Box::new(writer))
            }
        };
        let outcome = run(port, recorder, &options, &Stop::default(), |_| {});
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        let totals = outcome.totals;
        assert_eq!(
            (totals.packets, totals.bytes),
            (600, 600 * 60),
            "{totals:?}"
        );
        let delivered = outcome.account.rx_total().delivered;
        assert_eq!(totals.packets + totals.surplus, delivered, "{totals:?}");
    }
}

#[test]
fn totals_of_queues_are_summed() {
    let of = |from: u64, first_ns, last_ns| Totals {
        packets: from + 1,
        bytes: from + 2,
        other_way: from + 3,
        surplus: from + 4,
        unwritten: from + 5,
        late: from + 6,
        times_clamped: from + 7,
        first_ns,
        last_ns,
    };
    let mut sum = of(10, None, None);
    sum.add(&of(100, Some(7), Some(9)));
    assert_eq!((sum.first_ns, sum.last_ns), (Some(7), Some(9)));
    sum.add(&of(1000, Some(5), Some(8)));
    sum.add(&of(0, None, None));
    let counts = [
        sum.packets,
        sum.bytes,
        sum.other_way,
        sum.surplus,
        sum.unwritten,
        sum.late,
    ];
    assert_eq!(counts, [1114, 1118, 1122, 1126, 1130, 1134]);
    assert_eq!((sum.first_ns, sum.last_ns), (Some(5), Some(9)));
}
