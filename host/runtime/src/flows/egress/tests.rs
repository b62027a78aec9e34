//! Tests of errors of a sending device: which packets are lost, and which errors end the probe.

use super::*;
use crate::broken::{TRANSIENT, queue};

fn out(kind: ErrorKind) -> Out {
    Out {
        tx: queue(kind),
        counters: Arc::default(),
        packet_len_max: u32::MAX,
        filter: None,
        only: Vec::new(),
        can_wait: false,
        is_stuck: false,
        chosen: Vec::new(),
    }
}

#[test]
fn only_a_device_that_is_gone_ends_the_probe() {
    for kind in TRANSIENT {
        let mut out = out(kind);
        assert!(out.flush().is_ok() && out.finish().is_ok(), "{kind:?}");
    }
    let mut out = out(ErrorKind::Gone);
    assert_eq!(out.flush().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(out.finish().unwrap_err().kind(), ErrorKind::Gone);
}

#[test]
fn selected_packets_after_an_error_are_dropped_and_counted() {
    let mut port = port::open("memory:", &PortOptions::default()).unwrap();
    let tx = &mut port.tx[0];
    let mut sent = tx.reserve(10).unwrap();
    for _ in 0..10 {
        assert!(sent.write(&[0; 60]));
    }
    sent.submit().unwrap();
    tx.flush().unwrap();
    let mut out = out(ErrorKind::Io);
    let mut batch = port.rx[0].receive().unwrap();
    assert_eq!(batch.len(), 10);
    // Two runs of selected packets, of four and of three.
    out.mark(10, 0b01_1100_1111);
    assert!(out.take(&mut batch, |_| LinkType::ETHERNET).is_err());
    assert!(batch.is_empty());
    let status = out.counters.read();
    assert_eq!((status.chosen, status.forwarded), (7, 0));
    assert_eq!((status.tx_full, status.imbalance()), (7, 0));
}
