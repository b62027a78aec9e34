//! Every backend meets every requirement. `BAREWIRE_CASE=order` runs one case alone.

use lab::conformance::port::{RIGS, child as hold_a_port, gaps, run};

macro_rules! rigs {
    ($($name:ident,)*) => {
        const TESTS: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )*
    };
}

rigs![
    memory,
    file_pcap,
    afpacket_bpf,
    afpacket_tpacket,
    afpacket_immediate,
    afxdp_native,
    afxdp_generic,
    xdplive,
    model_igb,
    model_e1000,
    model_virtio_split,
    model_virtio_packed,
    ring,
    vm,
    igb_zero_copy,
    virtio_zero_copy,
    e1000_generic,
    igb_vfio,
    e1000_vfio,
    virtio_vfio,
];

#[test]
fn every_backend_has_a_rig() {
    assert_eq!(gaps(), Vec::<String>::new());
    let rigs: Vec<&str> = RIGS.iter().map(|rig| rig.name).collect();
    assert_eq!(rigs, TESTS, "each rig is a test of this file");
}

/// Not a test in itself: the suite starts it in a process that is to be killed.
#[test]
fn child() {
    hold_a_port();
}
