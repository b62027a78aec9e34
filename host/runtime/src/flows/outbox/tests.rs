//! Tests with a collector that takes nothing for a while.

use std::sync::mpsc::sync_channel;

use flow::{HashKey, Input, Meter, MeterConfig};
use wire::LinkType;

use super::*;

/// A record of one packet.
fn record() -> Record {
    let mut config = MeterConfig::new(HashKey::from_bytes(&[1; 64]));
    config.table.flow_count_max = 16;
    let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 53, 0, 8, 0, 0]);
    let input = Input {
        link: LinkType::RAW,
        bytes: &bytes,
        wire_len: 28,
        time_ns: 1,
        vlan: None,
        interface: 0,
    };
    let mut records = Vec::new();
    let mut sink = |record: &Record, _| records.push(*record);
    let mut meter = Meter::new(&config).unwrap();
    meter.observe(&input, &mut sink);
    meter.finish(&mut sink);
    records[0]
}

#[test]
fn pulses_leave_buffers_for_full_batches() {
    let (sender, messages) = sync_channel(BUFFER_COUNT);
    let (back, empties) = sync_channel(BUFFER_COUNT);
    for _ in 1..BUFFER_COUNT {
        back.send(Buffer::new()).unwrap();
    }
    let mut outbox = Outbox::new(0, sender, empties, false);
    let record = record();
    // A record with each pulse, and a collector that is busy with something else.
    let mut pushed = 0;
    for _ in 0..4 * BUFFER_COUNT {
        outbox.push(&record, None, EndReason::Idle);
        outbox.pulse();
        pushed += 1;
    }
    // Then many records at once: half of the buffers are left for them.
    for _ in 0..BUFFER_COUNT / 4 * BUFFER_LEN {
        outbox.push(&record, None, EndReason::Idle);
        pushed += 1;
    }
    assert_eq!(outbox.records_dropped, 0);
    // The collector resumes, and returns the buffers.
    let mut taken = 0;
    let mut take = |message: Message| {
        let Message::Ended(_, mut buffer) = message else {
            panic!("only records were sent")
        };
        taken += buffer.records.len();
        buffer.clear();
        back.send(buffer).unwrap();
    };
    messages.try_iter().for_each(&mut take);
    outbox.pulse();
    messages.try_iter().for_each(&mut take);
    assert_eq!(taken, pushed, "a pulse sends what waited");
}
