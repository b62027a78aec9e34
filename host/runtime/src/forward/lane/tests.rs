//! Tests of which errors of the sending device end a lane.

use super::*;
use crate::broken::{TRANSIENT, queue};

fn out(kind: ErrorKind, intake: Intake) -> Out {
    Out {
        tx: queue(kind),
        budget: Arc::new(Budget::new(None)),
        counters: Arc::default(),
        packet_len_max: Arc::default(),
        intake,
        is_stuck: false,
        is_draining: false,
        failing: Arc::default(),
        is_failing: false,
    }
}

#[test]
fn a_device_that_is_gone_ends_the_lane() {
    for intake in [Intake::Live, Intake::Waiting, Intake::File] {
        let error = out(ErrorKind::Gone, intake).flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
    }
}

#[test]
fn other_errors_are_outages_for_live_packets_and_end_other_inputs() {
    for kind in TRANSIENT {
        let mut live = out(kind, Intake::Live);
        assert!(live.flush().is_ok() && live.flush().is_ok(), "{kind:?}");
        let outages = live.failing.get();
        assert_eq!(
            (outages.begun, outages.over),
            (1, 0),
            "one outage continues"
        );
        live.tolerate(Ok(())).unwrap();
        assert_eq!(live.failing.get().over, 1);
        for intake in [Intake::Waiting, Intake::File] {
            let error = out(kind, intake).flush().unwrap_err();
            assert_eq!(error.kind(), kind);
        }
    }
}
