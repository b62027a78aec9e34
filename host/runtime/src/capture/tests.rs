//! What a slow control side and a failing disk do to a capture.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use port::file::WriterOptions;
use port::{PortOptions, RxCounters, TxQueue};

use super::*;

/// Longer than anything here takes, unless it hangs.
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

/// A control side whose account takes as long as it takes packets to be delivered.
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
    let outcome = run(port, Sink::Count, &options, &Stop::default(), |_| {});
    sender.join().unwrap();
    assert!(went_on.load(Ordering::SeqCst), "they waited");
    assert_eq!(outcome.totals.packets, 5000);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
}

#[test]
fn a_write_that_fails_in_a_batch_leaves_the_totals_whole() {
    let (port, mut tx) = memory();
    // 300 packets of 1,000 bytes fill the buffer of 256 KiB in the middle of a batch.
    send(&mut tx[0], 300, 1000);
    drop(tx);
    let writer = FileWriter::create(WriterOptions::new("/dev/full")).unwrap();
    let options = Options {
        is_live: true,
        ..Options::default()
    };
    let sink = Sink::File(Box::new(writer));
    let outcome = run(port, sink, &options, &Stop::default(), |_| {});
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
