//! Sums of flows that end and of flows that continue, against the packets that were metered.

use super::*;
use crate::expire::EndReason;
use crate::table::RecordSink;
use crate::{HashKey, Input, MeterConfig};

use wire::LinkType;

/// Passes ended flows to the tally, as a worker does.
struct Ended<'t> {
    tally: &'t mut Tally,
    place: u32,
    count: usize,
}

impl RecordSink for Ended<'_> {
    fn leaving(&mut self, place: u32) {
        self.place = place;
    }

    fn ended(&mut self, record: &Record, _: EndReason) {
        self.count += 1;
        self.tally.ended(self.place, record, &Extra::default());
    }
}

/// A UDP packet over IPv4, without a link header.
fn packet(source_port: u16, port: u16, payload_len: u16) -> Vec<u8> {
    let len = 28 + payload_len;
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    for word in [source_port, port, 8 + payload_len, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.resize(len.into(), 0);
    packet
}

/// The sum of everything.
fn total(sums: &Sums) -> Amount {
    let mut total = sums.other;
    total.add(sums.unknown);
    for sum in sums.named.values().flat_map(BTreeMap::values) {
        total.add(*sum);
    }
    total
}

/// Random packets of few flows in a small table, so that places are reused; a round every now and
/// then. At its end the sums are those of all packets, and no sum ever decreased.
#[test]
fn every_packet_is_counted_once_and_sums_only_grow() {
    const FLOWS: u32 = 16;
    let mut config = MeterConfig::new(HashKey::from_seed(7));
    config.table.flow_count_max = FLOWS;
    let mut meter = Meter::new(&config).unwrap();
    let mut tally = Tally::new(FLOWS, 0);
    let (mut sent, mut before) = (Amount::default(), Amount::default());
    let (mut ended, mut state) = (0, 1_u32);
    for n in 0..20_000_u64 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let random = state >> 8;
        let port = [53, 123, 9999][random as usize % 3];
        let bytes = packet(
            1000 + (random / 3 % 24) as u16,
            port,
            (random / 99 % 90) as u16,
        );
        sent.add(Amount {
            packets: 1,
            bytes: bytes.len() as u64,
        });
        let input = Input {
            link: LinkType::RAW,
            bytes: &bytes,
            wire_len: bytes.len() as u32,
            time_ns: 1_700_000_000_000_000_000 + n * 50_000_000,
            vlan: None,
            interface: 0,
        };
        let mut sink = Ended {
            tally: &mut tally,
            place: 0,
            count: 0,
        };
        meter.observe(&input, &mut sink);
        meter.flush(&mut sink);
        ended += sink.count;
        if random % 7 == 0 {
            while !tally.step(&meter, 5) {}
            // Everything metered so far is counted, of active flows too.
            assert_eq!(total(tally.sums()), sent, "packet {n}");
        }
        let now = total(tally.sums());
        assert!(now.packets >= before.packets && now.bytes >= before.bytes);
        before = now;
    }
    assert!(ended > 1000, "{ended}");
    let mut sink = Ended {
        tally: &mut tally,
        place: 0,
        count: 0,
    };
    meter.finish(&mut sink);
    let sums = tally.sums();
    assert_eq!(total(sums), sent);
    let names: Vec<&str> = sums.named["port"].keys().map(AsRef::as_ref).collect();
    assert_eq!(names, ["dns", "ntp"]);
    assert!(sums.unknown.packets > 1000);
}

/// While decoders may still identify a flow, it is not counted as unknown.
#[test]
fn a_flow_is_undecided_for_its_first_packets() {
    let mut meter = Meter::new(&MeterConfig::new(HashKey::from_seed(7))).unwrap();
    let mut tally = Tally::new(1 << 20, 4);
    let mut nobody = |_: &Record, _: EndReason| panic!("a flow has ended");
    let bytes = packet(1000, 9999, 10);
    for n in 1..=20 {
        let input = Input {
            link: LinkType::RAW,
            bytes: &bytes,
            wire_len: bytes.len() as u32,
            time_ns: n * 1000,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut nobody);
        meter.flush(&mut nobody);
        while !tally.step(&meter, 64) {}
        let wanted = if n <= 8 { 0 } else { n };
        assert_eq!(tally.sums().unknown.packets, wanted);
    }
}

#[test]
fn names_over_the_limit_are_summed_up_and_no_count_is_lost() {
    use crate::encode::extra_fields::By;
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let mut sums = Sums::default();
    let one = Amount {
        packets: 1,
        bytes: 100,
    };
    for number in 0..1000_u16 {
        let known = Known {
            found: inspect::Application::EMPTY,
            by: By::Port(number, NAMES[usize::from(number) % 3]),
        };
        sums.add(&known, one);
    }
    assert_eq!(total(&sums).packets, 1000);
    assert_eq!(sums.named["port"].len(), 3);
    for number in 0..NAME_COUNT_MAX {
        let name = Cow::Owned(format!("app{number}"));
        sums.named.entry("ndpi").or_default().insert(name, one);
    }
    let known = Known {
        found: inspect::Application::EMPTY,
        by: By::Port(1, "one more"),
    };
    sums.add(&known, one);
    assert_eq!((sums.other, sums.unknown), (one, Amount::default()));
}
