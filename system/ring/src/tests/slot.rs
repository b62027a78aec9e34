//! Metadata of a slot: each setter changes its own field only.

use std::ptr::NonNull;

use sys::memfd::HugePages;

use crate::slot::{Checksum, Room, Slot, Vlan, segment_count, whole_packets};
use crate::{Pool, PoolConfig};

const TAG: Vlan = Vlan {
    tpid: 0x88a8,
    tci: 0x6123,
};

/// A slot over `bytes`, which outlive it in every test.
fn slot(bytes: &mut [u8], token: u64) -> Slot {
    let len = bytes.len() as u32;
    let data = NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: the bytes are initialized, and nothing else uses them while the slot is present.
    unsafe { Slot::over(data, len, len, token) }
}

#[test]
fn each_setter_sets_one_flag() {
    type Set = fn(&mut Slot);
    let rows: [(Set, u16); 7] = [
        (|slot| slot.set_time(7), Slot::TIME),
        (Slot::set_outgoing, Slot::OUTGOING),
        (|slot| slot.set_vlan(TAG), Slot::VLAN),
        (Slot::set_continues, Slot::CONTINUES),
        (
            |slot| slot.set_checksum(Checksum::Good),
            Slot::CHECKSUM_GOOD,
        ),
        (|slot| slot.set_checksum(Checksum::Bad), Slot::CHECKSUM_BAD),
        (
            |slot| slot.set_checksum(Checksum::Partial),
            Slot::CHECKSUM_PARTIAL,
        ),
    ];
    let mut bytes = [0; 64];
    for (set, flag) in rows {
        let mut slot = slot(&mut bytes, 3);
        assert_eq!(slot.flags, 0);
        set(&mut slot);
        assert_eq!(slot.flags, flag);
        set(&mut slot);
        assert_eq!(slot.flags, flag);
        assert_eq!(slot.continues(), flag == Slot::CONTINUES);
        assert_eq!(slot.goes_on(), flag == Slot::CONTINUES);
    }
    let mut slot = slot(&mut bytes, 3);
    slot.set_time(7);
    slot.set_vlan(TAG);
    slot.set_interface(9);
    assert_eq!((slot.time_ns, slot.vlan), (7, TAG));
    assert_eq!((slot.interface_index, slot.index()), (9, 3));
}

#[test]
fn a_checksum_update_changes_only_the_checksum() {
    let all = [
        (Checksum::Unknown, 0),
        (Checksum::Good, Slot::CHECKSUM_GOOD),
        (Checksum::Bad, Slot::CHECKSUM_BAD),
        (Checksum::Partial, Slot::CHECKSUM_PARTIAL),
    ];
    let mut bytes = [0; 64];
    for (before, _) in all {
        for (after, flag) in all {
            let mut slot = slot(&mut bytes, 0);
            slot.set_outgoing();
            slot.set_checksum(before);
            slot.set_checksum(after);
            assert_eq!(slot.flags, Slot::OUTGOING | flag, "{before:?}, {after:?}");
        }
    }
}

#[test]
fn any_hash_type_is_reported_and_no_hash_gives_none() {
    let mut bytes = [0; 64];
    let mut slot = slot(&mut bytes, 0);
    assert_eq!(slot.rss_hash(), None);
    // A card writes bits of its own between hash and kind.
    slot.hash = 0x1234_5678_ffff_fff0;
    assert_eq!(slot.rss_hash(), None);
    for kind in 1..16 {
        slot.hash = 0x1234_5678_0000_0000 | kind;
        assert_eq!(slot.rss_hash(), Some(0x1234_5678));
    }
    slot.set_rss_hash(0);
    assert_eq!(slot.rss_hash(), Some(0));
}

#[test]
fn one_word_holds_flags_and_tag() {
    let mut bytes = [0; 64];
    let mut slot = slot(&mut bytes, 0);
    slot.set_interface(5);
    slot.set_info(0x6123_88a8_0000_0000 | u64::from(Slot::VLAN));
    assert_eq!((slot.flags, slot.vlan), (Slot::VLAN, TAG));
    assert_eq!(slot.interface_index, 0);
}

#[test]
fn a_place_is_within_one_frame_of_the_pool() {
    let pool = Pool::new(PoolConfig {
        frame_count: 4,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    })
    .unwrap();
    let place = |addr: usize, len: u32| {
        let data = NonNull::new(pool.base().as_ptr().wrapping_add(addr)).unwrap();
        // SAFETY: nothing reads or writes these bytes.
        let slot = unsafe { Slot::over(data, len, len, 0) };
        slot.place_in(&pool)
    };
    assert_eq!(place(2048 + 100, 60), Some((1, 100)));
    assert_eq!(place(3 * 2048, 2048), Some((3, 0)));
    assert_eq!(place(3 * 2048 + 1, 2047), Some((3, 1)));
    assert_eq!(place(3 * 2048 + 1, 2048), None, "beyond its frame");
    assert_eq!(place(4 * 2048, 1), None, "beyond the pool");
    let mut bytes = [0; 64];
    let mut elsewhere = slot(&mut bytes, 0);
    elsewhere.set_detached();
    assert_eq!(elsewhere.place_in(&pool), None);
    assert_eq!(elsewhere.cap_len(), 0);
}

#[test]
fn a_packet_is_whole_only_with_its_last_slot() {
    let mut bytes = [0; 64];
    let mut slots: Vec<Slot> = (0..5).map(|_| slot(&mut bytes, 0)).collect();
    // Packets of one, three and one slots.
    for at in [1, 2] {
        slots[at].set_continues();
    }
    let whole: Vec<usize> = (0..8).map(|room| whole_packets(&slots, room)).collect();
    assert_eq!(whole, [0, 1, 1, 1, 4, 5, 5, 5]);
    assert_eq!(whole_packets(&[], 3), 0);
}

#[test]
fn a_room_counts_added_slots() {
    let mut bytes = [0u8; 64];
    let data = bytes.as_mut_ptr();
    let mut slots = vec![slot(&mut bytes, 8)];
    for count in [0, 1, 3] {
        let before = slots.len();
        let mut room = Room::new(&mut slots, 3);
        for index in 0..count {
            // SAFETY: there is room for three, over bytes that outlive the slots.
            unsafe { room.push(data, 60, index, 7, 0, u64::from(Slot::TIME)) };
        }
        assert_eq!(room.finish(), count as usize);
        assert_eq!(slots.len(), before + count as usize);
    }
    let indices: Vec<u32> = slots.iter().map(Slot::index).collect();
    assert_eq!(indices, [8, 0, 0, 1, 2]);
}

#[test]
fn changes_to_the_bytes_of_a_slot() {
    let mut bytes = [0; 64];
    let place = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let mut slot = slot(&mut bytes, 3);
    assert_eq!((slot.data(), slot.cap_len(), slot.token()), (place, 64, 3));
    slot.cut_to(70);
    assert_eq!(slot.cap_len(), 64);
    slot.cut_to(60);
    assert_eq!(slot.cap_len(), 60);
    // SAFETY: within the bytes of above.
    let behind = unsafe { place.add(5) };
    // SAFETY: as above; 50 bytes are present.
    unsafe { slot.move_to(behind, 50) };
    assert_eq!((slot.data(), slot.cap_len()), (behind, 50));
    slot.forget_frame();
    assert_eq!((slot.token(), slot.cap_len()), (Slot::DETACHED, 50));
    slot.set_detached();
    assert_eq!((slot.token(), slot.cap_len()), (Slot::DETACHED, 0));
    assert_eq!(TAG.bytes(), [0x88, 0xa8, 0x61, 0x23]);
}

#[test]
fn segments_of_the_first_packet() {
    let mut bytes = [0; 64];
    for (continues, count) in [
        (&[false][..], 1),
        (&[false, true], 1),
        (&[true, false], 2),
        (&[true, true, false, true], 3),
        (&[true, true], 2),
    ] {
        let slots: Vec<Slot> = continues
            .iter()
            .map(|continues| {
                let mut slot = slot(&mut bytes, 0);
                if *continues {
                    slot.set_continues();
                }
                slot
            })
            .collect();
        assert_eq!(segment_count(&slots), count, "{continues:?}");
    }
}
