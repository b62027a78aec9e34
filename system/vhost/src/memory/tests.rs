//! Translation against a table written down here.

use super::*;
use crate::testing::GuestMemory;

fn region(guest_addr: u64, len: u64, user_addr: u64, file_offset: u64) -> Region {
    Region {
        guest_addr,
        len,
        user_addr,
        file_offset,
    }
}

fn map(file: &GuestMemory, table: &[Region]) -> Result<Memory> {
    let fds = table
        .iter()
        .map(|_| file.fd().try_clone_to_owned().unwrap());
    Memory::map(table, fds.collect())
}

#[test]
fn ranges_may_span_adjacent_regions_and_never_leave_them() {
    let file = GuestMemory::new(4 * 4096).unwrap();
    for at in 0..4 * 4096 {
        file.write(at, &[(at / 64) as u8]);
    }
    // Two adjacent regions in another order than in the file, one after a gap, at an odd offset.
    let table = [
        region(0x2000, 0x1000, 0x90_0000, 0),
        region(0x1000, 0x1000, 0x80_0000, 0x1000),
        region(0x5000, 0x7f0, 0xa0_0000, 0x2810),
    ];
    let memory = map(&file, &table).unwrap();
    assert_eq!(memory.len(), 0x27f0);
    let file_at = |addr: u64| match addr {
        0x1000..0x2000 => Some(addr),
        0x2000..0x3000 => Some(addr - 0x2000),
        0x5000..0x57f0 => Some(addr - 0x5000 + 0x2810),
        _ => None,
    };
    for start in (0xff0..0x5810).step_by(7) {
        for len in [1, 2, 16, 60, 0x1000] {
            let places: Vec<_> = (start..start + len).map(file_at).collect();
            let is_there = places.iter().all(Option::is_some);
            assert_eq!(memory.contains(start, len as usize), is_there, "{start:#x}");
            let mut bytes = vec![0; len as usize];
            assert_eq!(memory.read(start, &mut bytes), is_there);
            if is_there {
                let expected = places.iter().flatten().map(|at| (at / 64) as u8);
                assert_eq!(bytes, Vec::from_iter(expected));
            }
        }
    }
    assert!(memory.write(0x1ffe, &[1, 2, 3, 4]));
    let mut bytes = [0; 2];
    file.read(0x1ffe, &mut bytes);
    assert_eq!(bytes, [1, 2]);
    file.read(0, &mut bytes);
    assert_eq!(bytes, [3, 4]);
    // Ranges at the end of the address space.
    assert!(!memory.contains(u64::MAX, 1) && !memory.contains(u64::MAX - 1, 16));
    // A ring must be in one region, and aligned.
    assert!(memory.user(0x80_0000, 0x1000, 16).is_some());
    assert!(memory.user(0x80_0000, 0x1001, 16).is_none());
    assert!(memory.user(0x80_0008, 16, 16).is_none());
    assert!(memory.user(0x7f_ffff, 16, 1).is_none());
    assert!(memory.user(0x80_0fff, 2, 1).is_none());
}

#[test]
fn the_last_byte_of_the_address_space_can_be_mapped() {
    let file = GuestMemory::new(4096).unwrap();
    let start = u64::MAX - 4096;
    let memory = map(&file, &[region(start, 4096, 0, 0)]).unwrap();
    assert!(memory.contains(start, 4096));
    assert!(!memory.contains(start, 4097));
    assert!(!memory.contains(start + 4095, 2));
}

#[test]
fn tables_with_overlaps_are_refused() {
    let file = GuestMemory::new(3 * 4096).unwrap();
    let first = region(0x1000, 0x2000, 0, 0);
    for other in [0x1000, 0x2000, 0x2fff, 1, 0] {
        let table = [first, region(other, 0x1000, 0x10_0000, 0)];
        let overlaps = other != 0;
        assert_eq!(map(&file, &table).is_err(), overlaps, "{other:#x}");
    }
    assert!(map(&file, &[region(0, 0, 0, 0)]).is_err());
    assert!(map(&file, &[region(0, 4096, 0, 3 * 4096)]).is_err());
    assert!(map(&file, &[region(0, 4096, 0, u64::MAX - 4096)]).is_err());
}

#[test]
fn a_table_longer_than_the_machines_memory_is_refused() {
    assert!(memfd::machine_memory() > 1 << 20);
    let file = GuestMemory::new(4096).unwrap();
    let table = [region(0, 4096, 0, 0), region(4096, 4096, 4096, 0)];
    let map = |len_max| {
        let fds = table.map(|_| file.fd().try_clone_to_owned().unwrap());
        Memory::map_within(len_max, &table, fds.into())
    };
    assert_eq!(map(8192).unwrap().len(), 8192);
    let error = map(8191).unwrap_err();
    assert!(error.why().contains("8191"), "{error}");
}
