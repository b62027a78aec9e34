//! Records in the ring of a real tap that no program wrote.

use super::*;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::RxBackend;

const RING_LEN: usize = 1 << 20;

fn tap() -> Result<RecordTap> {
    let socket = PacketSocket::new()?;
    let filter = SocketFilter::new(&PortOptions::default(), false);
    RecordTap::load(socket, &filter, RING_LEN, false).map_err(|(_, error)| error)
}

/// Writes a record behind the last one.
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
fn a_packet_that_could_not_be_read_is_refused_and_counted() {
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
