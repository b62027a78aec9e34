//! Slots, pages and budgets: everything allocated is counted and freed, and no flow exceeds its
//! budget.

use super::*;

/// Passes one connection in segments.
fn give(inspector: &mut Inspector, number: &mut u32, from: Direction, sequence: u32, bytes: &[u8]) {
    let segment = Segment {
        transport: Transport::Tcp,
        from,
        time_ns: 1,
        ports: [40_000, 80],
        sequence,
        is_syn: false,
        begins: None,
        payload: bytes,
        payload_len: bytes.len() as u32,
    };
    inspector.packet(number, &segment);
}

#[test]
fn used_slots_are_counted() {
    let begin = |flow_count_max, page_count, beginning: &[u8]| {
        let mut inspector = Inspector::new(&InspectorConfig {
            flow_count_max,
            page_count,
            held_count_max: 1,
            ..InspectorConfig::default()
        });
        let mut numbers = [NONE; 3];
        for number in &mut numbers {
            give(&mut inspector, number, Direction::Forward, 1, beginning);
        }
        (inspector, numbers)
    };
    let (inspector, numbers) = begin(1, 3, b"GET /x HTTP/1.1\r\n");
    let stats = inspector.stats();
    assert_eq!(
        (stats.flows, stats.no_room_flow, stats.no_room_state),
        (3, 2, 0)
    );
    assert_eq!(numbers[1..], [DONE; 2]);

    // A page has room for several states of HTTP, and for one of TLS.
    let (inspector, _) = begin(3, 1, b"GET /x HTTP/1.1\r\n");
    assert_eq!(inspector.stats().no_room_state, 0);
    let (mut inspector, mut numbers) = begin(3, 1, b"\x16\x03\x01\x02\x00\x01");
    let stats = inspector.stats();
    assert_eq!(
        (stats.flows, stats.no_room_flow, stats.no_room_state),
        (3, 0, 2)
    );
    // A segment that comes too early is kept; of two the second has no room.
    give(
        &mut inspector,
        &mut numbers[0],
        Direction::Forward,
        100,
        b"late",
    );
    assert_eq!(inspector.stats().no_room_segment, 0);
    give(
        &mut inspector,
        &mut numbers[0],
        Direction::Forward,
        200,
        b"later",
    );
    assert_eq!(inspector.stats().no_room_segment, 1);
    let name = inspector.end(&mut numbers[0], |a| a.protocol().name());
    assert_eq!(name, Some("tls"));
    for number in &mut numbers[1..] {
        assert_eq!(inspector.end(number, |a| a.protocol().name()), Some("tls"));
    }
    assert!(inspector.is_idle());
    assert_eq!(
        (inspector.stats().imbalance(), inspector.stats().live),
        (0, 0)
    );
}

/// One flow slot and two decoder pages: each flow reuses what the previous one left behind.
#[test]
fn earlier_contents_of_a_slot_are_not_reported() {
    let all = samples::all();
    let alone: Vec<_> = all.iter().map(|sample| shown(&found(sample))).collect();
    let mut inspector = Inspector::new(&InspectorConfig {
        flow_count_max: 1,
        page_count: 2,
        ..InspectorConfig::default()
    });
    let mut random = Rng(0x5107);
    let mut reported = 0;
    for _ in 0..4000 {
        let at = random.below(all.len());
        let sample = &all[at];
        let mut pieces = sample.pieces();
        // Some go away in the middle: their slots are left as they were.
        let is_whole = random.below(3) != 0;
        if !is_whole {
            pieces.truncate(1 + random.below(pieces.len()));
        }
        let (mut number, mut sequence) = (NONE, [1_u32; 2]);
        for (nth, (from, bytes)) in pieces.into_iter().enumerate() {
            let segment = Segment {
                transport: sample.transport,
                from,
                time_ns: 1000 + 250 * nth as u64,
                ports: sample.ports,
                sequence: sequence[from as usize],
                is_syn: false,
                begins: None,
                payload: bytes,
                payload_len: bytes.len() as u32,
            };
            sequence[from as usize] += bytes.len() as u32;
            inspector.packet(&mut number, &segment);
        }
        let application = inspector.end(&mut number, Application::clone);
        if is_whole && sample.transport == Transport::Tcp {
            let application = application.unwrap_or(Application::EMPTY);
            // Times differ by how the pieces are given; everything else is the same.
            let same = found(sample);
            assert_eq!(application.protocol(), same.protocol(), "{}", sample.name);
            let fields = |a: &Application| {
                let fields = a
                    .fields()
                    .filter(|(field, _)| *field != Field::DnsLatencyNs);
                fields
                    .map(|(f, v)| format!("{f:?} {v:?}"))
                    .collect::<Vec<_>>()
            };
            assert_eq!(fields(&application), fields(&same), "{}", sample.name);
            reported += 1;
        } else if is_whole {
            let application = application.unwrap_or(Application::EMPTY);
            assert_eq!(shown(&application), alone[at], "{}", sample.name);
            reported += 1;
        }
    }
    assert!(reported > 1000);
    assert_eq!(inspector.stats().imbalance(), 0);
}

#[test]
fn budgets_hold() {
    let mut inspector = Inspector::new(&InspectorConfig::default());
    let mut number = NONE;
    for sequence in 1..1000 {
        let line = b"?ET /a HTTP/1.1\r\n";
        give(
            &mut inspector,
            &mut number,
            Direction::Forward,
            sequence,
            &line[..1],
        );
    }
    let stats = inspector.stats();
    assert_eq!(
        stats.packets,
        InspectorConfig::default().unknown_count_max.into()
    );
    assert_eq!((stats.live, stats.imbalance()), (0, 0));
}

/// Successive flows in which the answers are seen, but not the first question: none of them may
/// keep its state.
fn answers_alone(transport: Transport, port: u16, answer: impl Fn(u16) -> Vec<u8>) {
    let config = InspectorConfig {
        page_count: 4,
        ..InspectorConfig::default()
    };
    let mut inspector = Inspector::new(&config);
    let mut numbers = [NONE; 64];
    for number in &mut numbers {
        let mut sequence = 1;
        for nth in 0..config.packet_count_max + 5 {
            let payload = answer(nth);
            let is_question = transport == Transport::Udp && nth == 0;
            let segment = Segment {
                transport,
                from: match is_question {
                    true => Direction::Forward,
                    false => Direction::Reverse,
                },
                time_ns: 1,
                ports: [40_000, port],
                sequence,
                is_syn: false,
                begins: None,
                payload: &payload,
                payload_len: payload.len() as u32,
            };
            inspector.packet(number, &segment);
            sequence += payload.len() as u32;
        }
    }
    let stats = inspector.stats();
    let limit = stats.rejected[Reason::Limit as usize];
    assert_eq!(limit, stats.no_room_follow, "{stats:?}");
    let count = |number| inspector.transactions(number).map_or(0, |all| all.count);
    let most = u32::from(config.packet_count_max);
    let followed = numbers.iter().filter(|number| count(**number) > most);
    assert_eq!(followed.count() as u64 + limit, 64, "{stats:?}");
    // Others find a page.
    assert!(0 < limit && limit < 64, "{stats:?}");
    assert_eq!(stats.no_room_state, 0, "{stats:?}");
}

#[test]
fn flows_with_answers_alone_leave_half_of_the_pages_free() {
    answers_alone(Transport::Tcp, 80, |_| {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    answers_alone(Transport::Udp, 53, |nth| {
        let mut message = match nth {
            0 => samples::dns_query(),
            _ => samples::dns_response(),
        };
        message[..2].copy_from_slice(&nth.to_be_bytes());
        message
    });
}

#[test]
fn the_answer_to_a_long_upload_is_read() {
    let mut inspector = Inspector::new(&InspectorConfig::default());
    let mut number = NONE;
    let request = b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 7000000\r\n\r\n";
    give(&mut inspector, &mut number, Direction::Forward, 1, request);
    for piece in 0..1000 {
        let sequence = 1 + request.len() as u32 + piece * 1400;
        give(
            &mut inspector,
            &mut number,
            Direction::Forward,
            sequence,
            &[0; 1400],
        );
    }
    let answer = b"HTTP/1.1 201 Created\r\n\r\n";
    give(&mut inspector, &mut number, Direction::Reverse, 1, answer);
    let reported = inspector.application(number).unwrap();
    assert_eq!(text(reported, Field::HttpStatus), "201");
    assert_eq!(
        (inspector.stats().rejected, inspector.stats().packets),
        ([0; 8], 2)
    );
    // It is bounded all the same.
    let mut number = NONE;
    give(&mut inspector, &mut number, Direction::Forward, 1, request);
    for piece in 0..5000 {
        let sequence = 1 + request.len() as u32 + piece * 1400;
        give(
            &mut inspector,
            &mut number,
            Direction::Forward,
            sequence,
            &[0; 1400],
        );
    }
    assert!(number & DONE != 0);
}

#[test]
fn states_have_the_documented_sizes() {
    const { assert!(barewire_inspect::decode::PAGE_LEN <= 5120) };
    const { assert!(barewire_inspect::FLOW_LEN <= 1192) };
    let config = InspectorConfig::default();
    assert!(config.memory_len() < 96 << 20, "{}", config.memory_len());
}
