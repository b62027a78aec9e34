//! No allocations after an inspector has been created.

mod samples;

use barewire_inspect::{Inspector, InspectorConfig, NONE, Segment};

#[test]
fn packets_allocate_nothing() {
    let samples = samples::all();
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 64,
        page_count: 64,
        held_count_max: 16,
        ..InspectorConfig::default()
    });
    let mut reported = 0;
    let info = allocation_counter::measure(|| {
        for _ in 0..2 {
            for sample in &samples {
                let mut number = NONE;
                let mut next = [1u32, 1];
                for (from, bytes) in &sample.pieces {
                    let segment = Segment {
                        transport: sample.transport,
                        from: *from,
                        time_ns: 1,
                        ports: sample.ports,
                        sequence: next[*from as usize],
                        is_syn: false,
                        begins: None,
                        payload: bytes,
                        payload_len: bytes.len() as u32,
                    };
                    next[*from as usize] += bytes.len() as u32;
                    inspector.packet(&mut number, &segment);
                }
                inspector.end(&mut number, |application| {
                    reported += application.fields().count()
                });
            }
        }
    });
    assert_eq!(info.count_total, 0);
    assert!(reported > 100, "{reported}");
}
