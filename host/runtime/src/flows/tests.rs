//! Tests of the probe over rings in memory, whose senders and outlets the test controls.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flow::{EndReason, Extra, Record, Sampling, Shunt};
use port::{PortOptions, TxQueue};

use super::config::secret;
use super::egress::EgressStatus;
use super::outbox::BUFFER_LEN;
use super::*;
use crate::Pacing;

/// Time limit for events that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// A UDP packet of a separate flow.
fn packet(number: u32) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[12..14].copy_from_slice(&[8, 0]);
    let [a, b, c, d] = number.to_be_bytes();
    let mut head = [0; wire::ipv4::HEADER_LEN];
    wire::ipv4::Header {
        src: Ipv4Addr::new(10 + a, b, c, d),
        dst: Ipv4Addr::new(192, 0, 2, 1),
        protocol: 17,
        ttl: 64,
        traffic_class: 0,
        id: 1,
        payload_len: 26,
    }
    .emit(&mut head);
    bytes[14..34].copy_from_slice(&head);
    bytes[34..40].copy_from_slice(&[0x0f, 0xa0, 0, 9, 0, 26]);
    bytes
}

/// The response to [`packet`].
fn answer(number: u32) -> [u8; 60] {
    let mut bytes = packet(number);
    bytes[26..34].rotate_left(4);
    bytes[34..38].rotate_left(2);
    bytes
}

fn config() -> Config {
    let mut config = Config::new(1);
    config.meter.table.flow_count_max = 1024;
    config.pacing = Pacing::Wait;
    config
}

#[test]
fn secrets_differ() {
    let words = [1, 2, 3, 4, 5, 6];
    assert_ne!(secret().hash(&words), secret().hash(&words));
}

fn memory(ring_len: u32) -> (Port, TxQueue) {
    let options = PortOptions {
        ring_len,
        ..PortOptions::default()
    };
    let mut port = port::open("memory:", &options).unwrap();
    let tx = port.tx.remove(0);
    (port, tx)
}

fn send(tx: &mut TxQueue, bytes: &[u8]) {
    let until = Instant::now() + LIMIT;
    loop {
        let mut batch = tx.reserve(1).unwrap();
        if batch.write(bytes) {
            batch.submit().unwrap();
            return tx.flush().unwrap();
        }
        drop(batch);
        assert!(Instant::now() < until, "the probe takes nothing");
        tx.wait(false, Duration::from_millis(50)).unwrap();
    }
}

/// Runs a probe and fails if it does not end.
fn ends(run: impl FnOnce() -> Report + Send + 'static) -> Report {
    let (send, done) = mpsc::channel();
    thread::spawn(move || drop(send.send(run())));
    done.recv_timeout(LIMIT).expect("the probe ends")
}

/// An outlet that counts.
struct Counting;

impl Outlet for Counting {
    fn ended(&mut self, _: &Record, _: &Extra<'_>, _: EndReason) -> Result<RecordOutcome> {
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, _: &Status<'_>) -> Result<()> {
        Ok(())
    }
}

/// An outlet that accepts its first record only on a signal.
struct Stuck {
    resume: Option<mpsc::Receiver<()>>,
}

impl Outlet for Stuck {
    fn ended(&mut self, _: &Record, _: &Extra<'_>, _: EndReason) -> Result<RecordOutcome> {
        if let Some(resume) = self.resume.take() {
            // The sender has ended: continue.
            let _ = resume.recv_timeout(LIMIT);
        }
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, _: &Status<'_>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_outlet_costs_records_and_no_packets() {
    let (port, mut tx) = memory(256);
    let stop = Stop::new();
    let (resume, stuck) = mpsc::channel();
    let flag = stop.clone();
    let probe = thread::spawn(move || {
        let mut outlet = Stuck {
            resume: Some(stuck),
        };
        run(port, &config(), &flag, &mut outlet).unwrap()
    });
    // Every flow beyond the table's capacity ends another one: more of them than all buffers hold.
    let count = 4 * (BUFFER_COUNT * BUFFER_LEN) as u32;
    for number in 0..count {
        send(&mut tx, &packet(number));
    }
    drop(resume);
    stop.set();
    let report = ends(move || probe.join().unwrap());
    let total = QueueStatus::total(&report.queues);
    assert_eq!(total.meter.packets, u64::from(count));
    assert!(report.records_dropped > 0);
    assert_eq!(report.records + report.records_dropped, u64::from(count));
    assert_eq!(report.imbalance(), 0);
}

#[test]
fn the_end_of_the_duration_ends_the_probe() {
    let (port, tx) = memory(64);
    let config = Config {
        duration: Some(Duration::from_millis(150)),
        ..config()
    };
    let report = ends(move || run(port, &config, &Stop::new(), &mut Counting).unwrap());
    assert!(report.error.is_none());
    drop(tx);
}

#[test]
fn packets_in_the_rings_at_the_end_are_metered() {
    let (port, mut tx) = memory(256);
    for number in 0..200 {
        send(&mut tx, &packet(number));
    }
    let stop = Stop::new();
    stop.set();
    let report = ends(move || run(port, &config(), &stop, &mut Counting).unwrap());
    assert_eq!((report.records, report.packets_in_records), (200, 200));
    assert_eq!(report.imbalance(), 0);
}

#[test]
fn the_duration_of_one_probe_does_not_end_others() {
    let (port, tx) = memory(64);
    let stop = Stop::new();
    let config = Config {
        duration: Some(Duration::ZERO),
        ..config()
    };
    let same = stop.clone();
    let report = ends(move || run(port, &config, &same, &mut Counting).unwrap());
    assert!(report.error.is_none());
    assert!(!stop.is_set());
    drop(tx);
}

#[test]
fn a_worker_that_fails_ends_the_others() {
    let (mut port, first) = memory(64);
    let (other, second) = memory(64);
    port.rx.extend(other.rx);
    let allowed = sys::affinity::allowed_cpus();
    let config = Config {
        // No machine has that many processors: the second worker cannot start.
        cpus: vec![allowed[0], 1 << 20],
        ..config()
    };
    let report = ends(move || run(port, &config, &Stop::new(), &mut Counting).unwrap());
    assert!(report.error.is_some());
    drop((first, second));
}

/// An outlet that signals the arrival of a record, and then ends the probe.
struct First(u64);

impl Outlet for First {
    fn ended(&mut self, _: &Record, _: &Extra<'_>, reason: EndReason) -> Result<RecordOutcome> {
        self.0 += u64::from(reason == EndReason::Idle);
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        if self.0 != 0 {
            status.switch.end();
        }
        Ok(())
    }
}

#[test]
fn a_one_way_flow_is_reported_without_further_packets() {
    let (mut port, mut tx) = memory(64);
    let (other, other_tx) = memory(64);
    port.rx.extend(other.rx);
    send(&mut tx, &packet(1));
    let mut config = config();
    config.meter.table.timeouts.set_idle_ns(1_000_000);
    // Only the record ends it.
    let report = ends(move || run(port, &config, &Stop::new(), &mut First(0)).unwrap());
    assert_eq!((report.records, report.merged), (1, 0));
    drop((tx, other_tx));
}

#[test]
fn both_directions_from_two_queues_become_one_record() {
    let (mut port, mut tx) = memory(64);
    let (other, mut other_tx) = memory(64);
    port.rx.extend(other.rx);
    send(&mut tx, &packet(1));
    send(&mut other_tx, &answer(1));
    let stop = Stop::new();
    stop.set();
    let report = ends(move || run(port, &config(), &stop, &mut Counting).unwrap());
    assert_eq!((report.records, report.merged), (1, 1));
}

/// An outlet that selects other records in its first pulse.
struct Choosing {
    selected: Option<mpsc::Sender<()>>,
    pulses: u32,
}

impl Outlet for Choosing {
    fn ended(&mut self, _: &Record, _: &Extra<'_>, _: EndReason) -> Result<RecordOutcome> {
        Ok(RecordOutcome::Reported)
    }

    fn pulse(&mut self, status: &Status<'_>) -> Result<()> {
        self.pulses += 1;
        match self.pulses {
            1 => status.switch.select(Selection {
                filter: None,
                sampling: Sampling::All,
                record_sampling: Sampling::Count(4),
            }),
            // It takes effect from the end of the pulse on.
            2 => drop(self.selected.take()),
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn record_sampling_changes_while_the_probe_runs() {
    let (port, mut tx) = memory(64);
    let stop = Stop::new();
    let (selected, reported) = mpsc::channel::<()>();
    let flag = stop.clone();
    let probe = thread::spawn(move || {
        let mut outlet = Choosing {
            selected: Some(selected),
            pulses: 0,
        };
        run(port, &config(), &flag, &mut outlet).unwrap()
    });
    // Nothing is sent there: disconnecting is the signal.
    assert!(reported.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Disconnected));
    for number in 0..100 {
        send(&mut tx, &packet(number));
    }
    stop.set();
    let report = ends(move || probe.join().unwrap());
    assert_eq!((report.records, report.unsampled_records), (25, 75));
    assert_eq!(report.imbalance(), 0);
}

#[test]
fn an_egress_without_room_drops_and_counts() {
    const ROOM: u32 = 16;
    const COUNT: u32 = 100;
    let mut input = PortOptions {
        ring_len: 256,
        ..PortOptions::default()
    };
    let out = PortOptions {
        ring_len: ROOM,
        ..PortOptions::default()
    };
    let choice = egress::Choice {
        only: Vec::new(),
        filter: "".into(),
    };
    let names = ["memory:", "memory:"];
    let plan = egress::Plan::new(names, &mut input, out, choice).unwrap();
    let mut port = port::open("memory:", &input).unwrap();
    let mut tx = port.tx.remove(0);
    let egress = plan.open(&port).unwrap();
    for number in 0..COUNT {
        send(&mut tx, &packet(number));
    }
    let mut config = config();
    config.meter.extra.shunt = Some(Shunt {
        packets: u64::MAX,
        bytes: u64::MAX,
    });
    let stop = Stop::new();
    stop.set();
    let report = ends(move || {
        // The other end does not receive.
        run_with(port, Some(egress), &config, &stop, &mut Counting).unwrap()
    });
    let status = report.egress.unwrap().status;
    assert_eq!(status.chosen, u64::from(COUNT));
    assert!(
        status.forwarded > 0 && status.forwarded <= u64::from(ROOM),
        "{status:?}"
    );
    assert_eq!(status.tx_full, status.chosen - status.forwarded);
    assert_eq!(status.forwarded_bytes, 60 * status.forwarded);
    assert_eq!(status.imbalance(), 0);
    assert_eq!(report.packets_in_records, u64::from(COUNT));
}

/// An egress whose account adds up, term by term.
#[test]
fn every_term_of_the_egress_account_counts() {
    let status = EgressStatus {
        chosen: 1 + 4 + 16 + 64 + 128,
        forwarded: 1,
        forwarded_bytes: 1000,
        copied: 1,
        tx_full: 4,
        too_long: 16,
        unsendable: 64,
        filtered: 128,
    };
    assert_eq!(status.imbalance(), 0);
    for (change, expected) in [
        (
            EgressStatus {
                chosen: 214,
                ..status
            },
            1,
        ),
        (
            EgressStatus {
                forwarded: 2,
                ..status
            },
            -1,
        ),
        (
            EgressStatus {
                tx_full: 5,
                ..status
            },
            -1,
        ),
        (
            EgressStatus {
                too_long: 15,
                ..status
            },
            1,
        ),
        (
            EgressStatus {
                unsendable: 66,
                ..status
            },
            -2,
        ),
        (
            EgressStatus {
                filtered: 0,
                ..status
            },
            128,
        ),
    ] {
        assert_eq!(change.imbalance(), expected, "{change:?}");
    }
}

#[test]
fn statuses_of_queues_are_summed() {
    let of = |from: u64| {
        let mut status = QueueStatus {
            wire_bytes: from + 1,
            unmetered: from + 2,
            unselected: from + 3,
            records_dropped: from + 4,
            packets_in_dropped: from + 5,
            capacity: from + 6,
            ..QueueStatus::default()
        };
        status.meter.packets = from + 7;
        status
    };
    let total = QueueStatus::total(&[of(10), of(100), of(1000)]);
    let counts = [
        total.wire_bytes,
        total.unmetered,
        total.unselected,
        total.records_dropped,
        total.packets_in_dropped,
        total.capacity,
        total.meter.packets,
    ];
    assert_eq!(counts, std::array::from_fn(|at| 1113 + 3 * at as u64));
}

/// Memory grows with the queues; merging adds its own if there are several.
#[test]
fn memory_of_a_probe_grows_with_queues() {
    let config = config();
    let [one, two, three] = [1, 2, 3].map(|count| config.memory_len(count));
    let queue = three - two;
    assert!(queue >= config.meter.memory_len() + BUFFER_LEN * size_of::<(Record, EndReason)>());
    assert_eq!(one, queue);
    assert!(two - one > queue, "halves of flows wait for each other");
    let mut decoding = self::config();
    decoding.applications = Some(inspect::InspectorConfig::default());
    let more = decoding.memory_len(1) - one;
    let known = size_of::<inspect::Application>() + inspect::LOG_LEN;
    let decoders = decoding.applications.as_ref().unwrap().memory_len();
    assert!(more >= decoders + BUFFER_LEN * known);
}
