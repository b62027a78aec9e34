//! Tests that need no device. They need root; without it the calls must return readable errors.

use super::*;
use crate::ErrorKind;

fn is_root() -> bool {
    // SAFETY: geteuid has no precondition.
    unsafe { libc::geteuid() == 0 }
}

const SPEC: MapSpec<'_> = MapSpec {
    kind: MapType::Array,
    name: "bw_test map",
    key_size: 4,
    value_size: 12,
    max_entries: 3,
    mappable: true,
};

#[test]
fn maps_keep_their_entries() {
    let map = match Map::create(&SPEC) {
        Ok(map) => map,
        Err(e) => {
            assert!(!is_root(), "{e}");
            assert_eq!(e.kind(), ErrorKind::Permission);
            assert!(e.hint().is_some());
            skip::skip!("needs root, {e}");
        }
    };
    assert_eq!(map.name(), "bw_test_map");
    map.update(&1u32.to_ne_bytes(), &[7; 12], UpdateMode::Any)
        .unwrap();
    let mut value = [0; 12];
    assert!(map.lookup(&1u32.to_ne_bytes(), &mut value).unwrap());
    assert_eq!(value, [7; 12]);
    assert!(!map.lookup(&3u32.to_ne_bytes(), &mut value).unwrap());
    // Wrong sizes never reach the kernel.
    assert!(map.lookup(&[0; 3], &mut value).is_err());
    assert!(map.lookup(&[0; 4], &mut [0; 11]).is_err());

    let mut memory = map.memory().unwrap();
    assert_eq!(memory.stride(), 16);
    let mut seen = [0; 12];
    memory.read(16, &mut seen);
    assert_eq!(seen, [7; 12]);
    memory.write(32, &[9; 12]);
    memory
        .word(0)
        .store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    assert!(map.lookup(&2u32.to_ne_bytes(), &mut value).unwrap());
    assert_eq!(value, [9; 12]);
    assert!(object_ids(ObjectKind::Map).unwrap().contains(&map.id()));
}

#[test]
fn per_processor_values_have_room_for_all() {
    let spec = MapSpec {
        kind: MapType::PercpuArray,
        mappable: false,
        ..SPEC
    };
    let Ok(map) = Map::create(&spec) else {
        assert!(!is_root());
        skip::skip!("needs root");
    };
    assert_eq!(map.value_len(), 16 * possible_cpu_count().unwrap());
    let mut value = vec![1; map.value_len()];
    assert!(map.lookup(&0u32.to_ne_bytes(), &mut value).unwrap());
    assert!(value.iter().all(|&b| b == 0));
}

#[test]
fn programs_load_run_and_are_refused_in_words() {
    // r0 = 2; exit
    let pass = [0x0000_0002_0000_00b7, 0x95];
    let spec = ProgramSpec {
        kind: ProgramType::Xdp,
        name: "bw_pass",
        insns: &pass,
        flags: 0,
        ifindex: 0,
    };
    let program = match Program::load(&spec) {
        Ok(program) => program,
        Err(e) => {
            assert!(!is_root(), "{e:?}");
            skip::skip!("needs root");
        }
    };
    let info = program.info().unwrap();
    assert_eq!((info.name.as_str(), info.kind), ("bw_pass", 6));
    let fd = open_by_id(ObjectKind::Program, info.id).unwrap();
    assert_eq!(Program::from_fd(fd).info().unwrap(), info);
    let run = TestRun {
        data: &[0x55; 60],
        data_out_max: 100,
        ..TestRun::default()
    };
    let result = program.test_run(&run).unwrap();
    assert_eq!(
        (result.retval, result.data.as_slice()),
        (2, &[0x55; 60][..])
    );

    // exit without a result
    let failure = Program::load(&ProgramSpec {
        insns: &[0x95],
        ..spec
    })
    .unwrap_err();
    assert!(failure.log.contains("R0 !read_ok"), "{failure:?}");
}
