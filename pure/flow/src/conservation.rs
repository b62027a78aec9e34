//! Conservation: for any packets and any meter configuration, each packet is counted exactly once.
//! Tests and the fuzz target call this; it panics if the law is violated. Not part of the public
//! interface.

use wire::LinkType;

use crate::extra::{Extra, Inspect};
use crate::record::Record;
use crate::table::{Observed, Profile, RecordSink};
use crate::{
    EndReason, HashKey, Input, Level, Meter, MeterConfig, MeterStats, Octets, Sampling, Side,
};

/// Output of a meter.
#[derive(Default)]
struct Taken {
    records: u64,
    packets: u64,
    bytes: u64,
    note_count_max: usize,
    is_uniflow: bool,
    all: Vec<(Record, EndReason)>,
}

impl Taken {
    fn check(&mut self, record: &Record) {
        let (forward, reverse) = (record.forward(), record.reverse());
        self.records += 1;
        self.packets += record.packets();
        self.bytes += record.bytes();
        assert!(record.packets() > 0, "an empty record");
        assert_eq!(record.packets(), forward.packets + reverse.packets);
        assert!(record.start_ns() <= record.end_ns());
        assert_eq!(record.is_uniflow(), self.is_uniflow);
        assert!(!self.is_uniflow || reverse.packets == 0);
        for sent in [forward, reverse] {
            assert!(sent.first_ns <= sent.last_ns);
            assert!(sent.payload_bytes <= sent.bytes);
            assert!(sent.ttl_min <= sent.ttl_max && sent.len_min <= sent.len_max);
            assert!(u64::from(sent.fragments) <= sent.packets);
            let repeated = u64::from(sent.retransmissions) + u64::from(sent.out_of_order);
            assert!(repeated <= sent.packets);
            let (least, most) = (u64::from(sent.len_min), u64::from(sent.len_max));
            let is_small = most < u64::from(u16::MAX);
            assert!(sent.bytes >= least * sent.packets);
            assert!(most == 0 || !is_small || sent.bytes <= most * sent.packets);
        }
    }
}

impl RecordSink for Taken {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.check(record);
        self.all.push((*record, reason));
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        self.check(record);
        self.all.push((*record, reason));
        assert!(extra.packets.len() <= self.note_count_max);
        assert!(extra.packets.len() as u64 <= record.packets());
        if let Some(timing) = extra.timing {
            for (timing, side) in timing.iter().zip([crate::Side::A, crate::Side::B]) {
                let packets = record.sent_by(side).packets;
                let counted: u64 = timing.len_bins.iter().map(|n| u64::from(*n)).sum();
                assert!(counted <= packets && timing.gap_count() <= packets.saturating_sub(1));
            }
        }
        if let Some(bytes) = extra.bytes {
            for (counts, side) in bytes.iter().zip([crate::Side::A, crate::Side::B]) {
                let counted: u64 = counts.iter().map(|n| u64::from(*n)).sum();
                assert!(counted <= record.sent_by(side).payload_bytes);
            }
        }
    }
}

/// Counts the packets passed to it, and checks that every handle is returned once.
#[derive(Default)]
struct Counting {
    open: u64,
}

impl Drop for Counting {
    fn drop(&mut self) {
        assert!(self.open == 0 || std::thread::panicking());
    }
}

impl Inspect for Counting {
    fn packet(
        &mut self,
        handle: &mut u32,
        nth: u8,
        _flow: (&Record, Side),
        packet: &Observed,
        payload: &[u8],
    ) -> bool {
        assert_eq!((*handle).min(255), u32::from(nth));
        assert!(payload.len() <= packet.level.payload_len as usize);
        self.open += u64::from(*handle == 0);
        *handle += 1;
        true
    }

    fn known(&self, handle: u32, found: &mut Vec<u8>) {
        found.push(handle as u8);
    }

    fn ended(&mut self, handle: u32, found: &mut Vec<u8>) {
        self.open -= u64::from(handle != 0);
        found.push(handle as u8);
    }
}

fn config([how, extra, sampling, size]: [u8; 4]) -> MeterConfig {
    const MS: u64 = 1_000_000;
    let bit = |byte: u8, at: u8| byte >> at & 1 != 0;
    let mut config = MeterConfig::new(HashKey::from_seed(size.into()));
    config.level = [Level::Outer, Level::Inner, Level::Both][usize::from(how % 3)];
    config.table.profile = if bit(how, 2) {
        Profile::Counters
    } else {
        Profile::Standard
    };
    config.table.uniflow = bit(how, 3);
    config.octets = if bit(how, 4) {
        Octets::Packet
    } else {
        Octets::Ip
    };
    config.key_vlan = bit(how, 5);
    config.key_interface = bit(how, 6);
    config.extra.packet_count = extra & 3;
    config.extra.timing = bit(extra, 2);
    config.extra.bytes = bit(extra, 3);
    config.extra.inspect_count = [0, 1, 2, u8::MAX][usize::from(extra >> 4 & 3)];
    config.key_extra.mac = bit(extra, 6);
    config.key_extra.tunnel = bit(extra, 7);
    config.key_extra.mpls = bit(how, 7);
    let interval = u32::from(sampling >> 3);
    config.sampling = match sampling & 7 {
        1 => Sampling::Count(interval),
        2 => Sampling::Random(interval),
        3 => Sampling::Hash(interval),
        4 => Sampling::Time {
            every_ns: 1 + u64::from(interval) * MS,
            open_ns: 3 * MS,
        },
        _ => Sampling::All,
    };
    config.table.flow_count_max = u32::from(size) % 64 + 1;
    config.table.timeouts.active_ns = 2000 * MS;
    config.table.timeouts.set_idle_ns(500 * MS);
    config.table.timeouts.linger_ns = 100 * MS;
    config.datagram_count_max = 4;
    config
}

fn balance(stats: &MeterStats, taken: &Taken) {
    assert_eq!(stats.imbalance(), 0, "{stats:?}");
    assert_eq!(stats.table.packets_ended, taken.packets);
    let ended: u64 = stats.table.ended.iter().sum();
    assert_eq!(stats.table.flows, ended + stats.table.live);
    assert_eq!(ended, taken.records);
}

/// An input consists of a meter (four bytes) and packets, each with its length, the time since the
/// previous one in steps of 2^24 ns (17 ms; from 128 on backwards), the number of truncated bytes,
/// and further actions: 1 tick, 2 end of input, as if the probe restarts, 4 raw IP instead of
/// Ethernet.
///
/// The result is the same with and without the meter's shortcut.
pub fn law(input: &[u8]) {
    if let Some((head, packets)) = input.split_first_chunk::<4>() {
        let with = run(config(*head), packets, true);
        let without = run(config(*head), packets, false);
        assert!(with == without, "the short cut is not the same way");
    }
}

fn run(
    config: MeterConfig,
    mut rest: &[u8],
    has_shortcut: bool,
) -> Option<(MeterStats, Vec<(Record, EndReason)>)> {
    let mut meter = Meter::new(&config).ok()?;
    if !has_shortcut {
        meter.without_shortcut();
    }
    meter.set_inspector(Box::new(Counting::default()));
    let mut taken = Taken {
        note_count_max: config.extra.packet_count.into(),
        is_uniflow: config.table.uniflow,
        ..Taken::default()
    };
    let (mut time_ns, mut given) = (1_700_000_000_000_000_000u64, 0);
    while let Some((&[len, step, cut, what], tail)) = rest.split_first_chunk::<4>() {
        let (bytes, tail) = tail.split_at(usize::from(len).min(tail.len()));
        rest = tail;
        time_ns = time_ns.wrapping_add_signed(i64::from(step as i8) << 24);
        let packet = Input {
            link: if what & 4 == 0 {
                LinkType::ETHERNET
            } else {
                LinkType::RAW
            },
            bytes,
            wire_len: bytes.len() as u32 + u32::from(cut),
            time_ns,
            vlan: (what & 8 != 0).then_some(5),
            interface: u16::from(what >> 4),
        };
        meter.observe(&packet, &mut taken);
        given += 1;
        if what & 1 != 0 {
            meter.tick(time_ns, &mut taken);
        }
        if what & 2 != 0 {
            meter.finish(&mut taken);
            assert!(meter.table().is_empty());
        }
        balance(&meter.stats(), &taken);
    }
    meter.finish(&mut taken);
    let stats = meter.stats();
    balance(&stats, &taken);
    assert_eq!(stats.packets, given);
    assert_eq!(
        (stats.waiting, stats.fragments.held, stats.table.live),
        (0, 0, 0)
    );
    assert_eq!(
        given + stats.twice,
        taken.packets + stats.refused_total() + stats.unsampled
    );
    Some((stats, taken.all))
}
