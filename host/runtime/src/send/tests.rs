//! Tests of the send loop over the memory ring: packets arrive unchanged, limits hold, and every
//! loss is counted.

use std::sync::mpsc;
use std::thread;

use port::{Port, PortOptions, Ready};
use traffic::{Addresses, L4, Order, Pace, Range, Rate, Sizes, Template, Udp};

use super::*;

fn template(sizes: &str) -> Template {
    Template {
        src_mac: Range::macs("02:00:00:00:00:01").unwrap(),
        dst_mac: Range::macs("02:00:00:00:00:02").unwrap(),
        tags: Vec::new(),
        addresses: Addresses::parse("198.18.0.0/24", "198.19.0.1").unwrap(),
        ttl: 64,
        traffic_class: 0,
        l4: L4::Udp(Udp {
            src_port: Range::one(1024),
            dst_port: Range::one(9),
        }),
        payload: Vec::new(),
        sizes: Sizes::parse(sizes).unwrap(),
        order: Order::Sequential,
        seed: 0,
    }
}

fn memory() -> Port {
    port::open("memory:", &PortOptions::default()).unwrap()
}

/// Sends into the ring while another thread reads it; returns the report and what was read.
fn run<S: Source>(
    source: &mut S,
    pace: Pace,
    limits: Limits,
    stop: &Stop,
) -> (Report, Result<()>, Vec<Vec<u8>>) {
    let mut port = memory();
    let mut tx = port.tx.remove(0);
    let mut rx = port.rx.remove(0);
    let reader = thread::spawn(move || {
        let mut packets = Vec::new();
        loop {
            let batch = rx.receive().unwrap();
            let whole = |p: port::Packet<'_>| p.segments().collect::<Vec<_>>().concat();
            packets.extend(batch.iter().map(whole));
            let idle = batch.is_empty();
            drop(batch);
            if idle && rx.wait(Duration::from_millis(50)).unwrap() == Ready::End {
                return packets;
            }
        }
    });
    let mut pacer = Pacer::new(pace);
    let (report, result) = send(&mut tx, source, &mut pacer, &limits, stop, &mut |_| {});
    drop(tx);
    (report, result, reader.join().unwrap())
}

fn rate(text: &str) -> Pace {
    Pace::Rate {
        rate: Rate::parse(text).unwrap(),
        on_wire: false,
    }
}

fn count(packets: u64) -> Limits {
    Limits {
        packet_count: Some(packets),
        duration: None,
    }
}

#[test]
fn packets_arrive_complete_and_in_order() {
    for (sizes, packets) in [("60", 20_000), ("imix", 20_000), ("60-9000", 3_000)] {
        let template = template(sizes);
        let mut source = Generated::new(template.build().unwrap());
        let (report, result, got) = run(&mut source, Pace::Max, count(packets), &Stop::new());
        result.unwrap();
        assert_eq!((report.packets, report.failed), (packets, 0));
        assert_eq!(report.ended, SendEnded::Count);
        assert_eq!(
            report.bytes,
            got.iter().map(|p| p.len() as u64).sum::<u64>()
        );
        let mut again = template.build().unwrap();
        assert_eq!(got.len() as u64, packets);
        for packet in got {
            let mut expected = vec![0; again.packet_len()];
            again.write(&mut expected);
            assert_eq!(packet, expected);
        }
    }
}

#[test]
fn a_rate_limits_packets_to_the_elapsed_time() {
    // Never more than scheduled by then, regardless of the machine's load.
    let limits = Limits {
        packet_count: None,
        duration: Some(Duration::from_millis(300)),
    };
    let mut source = Generated::new(template("60").build().unwrap());
    let (report, result, got) = run(&mut source, rate("10kpps"), limits, &Stop::new());
    result.unwrap();
    assert_eq!(report.ended, SendEnded::Duration);
    assert_eq!(report.packets, got.len() as u64);
    // 300 ms of 10 per millisecond; fewer only by the reported slip.
    let slipped = report.slipped_ns.div_ceil(100_000) + 1_000 * u64::from(report.slipped_ns != 0);
    assert!(
        report.packets <= 3_000 && report.packets + slipped >= 3_000,
        "{report:?}"
    );
}

#[test]
fn the_span_includes_the_last_packets_interval() {
    let mut source = Generated::new(template("60").build().unwrap());
    let (report, result, _) = run(&mut source, rate("100pps"), count(1), &Stop::new());
    result.unwrap();
    assert!(report.pps() <= 100.0, "{report:?}");
}

#[test]
fn a_stop_request_ends_a_long_wait() {
    let stop = Stop::new();
    let other = stop.clone();
    let (put, was_put) = mpsc::channel();
    thread::spawn(move || {
        // The first packet was sent: the next is due in a hundred seconds.
        was_put.recv().unwrap();
        thread::sleep(Duration::from_millis(50));
        other.set();
    });
    let mut source = Telling {
        source: Generated::new(template("60").build().unwrap()),
        put,
    };
    let (report, result, got) = run(&mut source, rate("0.01pps"), Limits::default(), &stop);
    result.unwrap();
    assert_eq!(
        (report.ended, report.packets, got.len()),
        (SendEnded::Stopped, 1, 1)
    );
}

/// Signals when a packet was put into a batch.
struct Telling {
    source: Generated,
    put: mpsc::Sender<()>,
}

impl Source for Telling {
    fn next(&mut self) -> Result<Next> {
        self.source.next()
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let is_put = self.source.put(batch);
        let _ = self.put.send(());
        is_put
    }
}

/// Two packets, a wait, one packet, then an error.
struct Failing(u32);

impl Source for Failing {
    fn next(&mut self) -> Result<Next> {
        self.0 += 1;
        match self.0 {
            3 => Ok(Next::Pending),
            1..=4 => Ok(Next::Packet {
                len: 60,
                time_ns: 0,
                again: false,
            }),
            _ => Err(Error::new(
                ErrorKind::Damaged,
                "read x",
                "damaged at byte 7",
            )),
        }
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        batch.write(&[self.0 as u8; 60])
    }
}

#[test]
fn packets_before_an_error_are_sent() {
    let (report, result, got) = run(&mut Failing(0), Pace::Max, Limits::default(), &Stop::new());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!((report.ended, report.packets), (SendEnded::Failed, 3));
    assert_eq!(got.iter().map(|p| p[0]).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn refused_packets_are_counted() {
    let mut port = memory();
    port.rx.clear();
    let mut source = Generated::new(template("60").build().unwrap());
    let mut pacer = Pacer::new(Pace::Max);
    let stop = Stop::new();
    let tx = &mut port.tx[0];
    let (report, _) = send(tx, &mut source, &mut pacer, &count(100), &stop, &mut |_| {});
    assert_eq!(
        (report.packets, report.failed),
        (0, 100),
        "nobody reads the ring"
    );
}
