//! Records that no program wrote, in the ring of a real tap.

use super::*;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::RxBackend;

const RING_LEN: usize = 1 << 20;

fn tap() -> Result<RecordTap> {
    let socket = PacketSocket::new()?;
    let filter = SocketFilter::new(&PortOptions::default(), false);
    RecordTap::load(socket, &filter, RING_LEN, false).map_err(|(_, error)| error)
}

/// Writes a record after the last one.
fn forge(tap: &RecordTap, cap_len: u32, flags: u32) {
    let position = tap.word(control::HEAD).load(Ordering::Relaxed);
    let at = control::LEN + position as usize;
    let lens = u64::from(cap_len) | u64::from(cap_len) << 32;
    for (offset, value) in [
        (record::CAP_LEN, lens),
        (record::TIME, 0),
        (record::FLAGS, flags.into()),
        (record::STAMP, position ^ tap.secret),
    ] {
        tap.word(at + offset).store(value, Ordering::Relaxed);
    }
    let head = position + record::len(cap_len);
    tap.word(control::HEAD).store(head, Ordering::Release);
}

#[test]
fn an_uncopied_packet_is_refused_and_counted() {
    let tap = match tap() {
        Ok(tap) => Arc::new(tap),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
            skip::skip!("{error}");
        }
    };
    let options = PortOptions::default();
    let mut rx = RecordRx::new(tap.clone(), TimestampSource::None, Arc::default(), &options);
    // In the midst, alone, and last.
    for (flags, delivered) in [
        (&[0, record::BROKEN, 0][..], 2),
        (&[record::BROKEN], 0),
        (&[0, record::BROKEN], 1),
    ] {
        let before = tap.counters.invalid.get();
        for (at, flags) in flags.iter().enumerate() {
            forge(&tap, 60 + at as u32, *flags);
        }
        let mut slots = Vec::new();
        let filled = rx.fill(&mut slots, 64).unwrap();
        assert_eq!((filled.packets, slots.len()), (delivered, delivered));
        assert_eq!(tap.counters.invalid.get(), before + 1);
        let account = tap.account(3);
        assert_eq!(account.queue_index, 3);
        assert_eq!(account.dropped[DropReason::Invalid as usize], before + 1);
        assert_eq!(account.in_flight, 0);
        rx.release(&mut slots);
    }
}

/// The kernel copies the bytes through a call that may fail, here for bytes that no packet has: the
/// record is written nevertheless, marked.
#[test]
fn a_packet_that_fails_to_copy_is_marked() {
    const CAP_MAX: u32 = 1 << 10;
    const SECRET: u64 = 0x5ec2e7;
    let (map, memory) = match RecordTap::make_ring(RING_LEN as u32, CAP_MAX) {
        Ok(made) => made,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
            skip::skip!("{error}");
        }
    };
    let sound = program::assemble(&Spec {
        map_fd: map.as_fd().as_raw_fd(),
        ring_len: RING_LEN as u32,
        cap_max: CAP_MAX,
        secret: SECRET,
        filter: None,
        reject_outgoing: false,
        time: false,
    })
    .unwrap();
    // `call bpf_skb_load_bytes`, and before it `r2 = 0`, the offset in the packet.
    let is_copy = |insn: &bpf::ebpf::Insn| (insn.code, insn.imm) == (0x85, 26);
    let copy = sound.iter().position(is_copy).unwrap();
    let is_offset = |insn: &bpf::ebpf::Insn| (insn.code, insn.dst, insn.imm) == (0xb7, 2, 0);
    let offset = sound[..copy].iter().rposition(is_offset).unwrap();
    let mut behind = sound.clone();
    behind[offset].imm = 1 << 20;
    let mut position = 0;
    for (insns, is_broken) in [(&sound, false), (&behind, true), (&sound, false)] {
        let words: Vec<u64> = insns.iter().map(|insn| insn.to_word()).collect();
        let program = Program::load(&ProgramSpec {
            kind: ProgramType::SocketFilter,
            name: "bw_tap",
            insns: &words,
            flags: 0,
            ifindex: 0,
        })
        .unwrap();
        let run = sys::bpf::TestRun {
            data: &[0xab; 74],
            ..Default::default()
        };
        assert_eq!(
            program.test_run(&run).unwrap().retval,
            0,
            "none for the socket"
        );
        let word = |at: usize| {
            let at = control::LEN + position as usize + at;
            memory.word(at).load(Ordering::Acquire)
        };
        let [flags, _] = u64_halves(word(record::FLAGS));
        let [cap_len, wire_len] = u64_halves(word(record::CAP_LEN));
        assert_eq!(word(record::STAMP), position ^ SECRET);
        assert_eq!(flags & record::BROKEN != 0, is_broken);
        assert_eq!((cap_len > 0, wire_len), (true, cap_len));
        assert_eq!(word(record::DATA) == u64::MAX / 0xff * 0xab, !is_broken);
        position += record::len(cap_len);
        let head = memory.word(control::HEAD).load(Ordering::Acquire);
        assert_eq!(head, position);
    }
}
