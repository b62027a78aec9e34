//! Requirements for every backend in [`port::BACKENDS`].
//!
//! [`CASES`] is the table of requirements, [`RIGS`] that of pairs of connected ports for each
//! backend. A test binary runs every case on every rig ([`run`]) and fails for a backend without a
//! rig. A case that does not apply to a rig is excused there by name, with the reason, which is
//! printed.
//!
//! To add a backend: one row in [`RIGS`]. To add a requirement: one row in [`CASES`].

mod cases;
mod evidence;
mod flows;
mod hub;
mod kept;
mod line;
mod walk;
mod wire;

use std::time::Duration;

use anyhow::Result;
use port::PortOptions;

use crate::skip::Missing;
use crate::watchdog::within;
pub use line::Line;
pub use wire::{CHILD_VAR, child};

/// How the ports of a backend are connected, so that what is sent on one arrives at the other.
#[derive(Clone, Copy, Debug)]
pub enum Joint {
    /// One port whose transmit side is connected to its receive side, by the port's name.
    Loop(&'static str),
    /// A capture file, written without the code under test; the suffix of its name.
    File(&'static str),
    /// A veth pair with a port on each end: names of the sending and the receiving port, `{}` is
    /// the interface.
    Wire(&'static str, &'static str),
    /// Two cards of the guest on one wire, and the port name on both.
    Cards([&'static str; 2], &'static str),
    /// Two cards of the guest bound to vfio-pci; `{}` in the name is the PCI address.
    Vfio([&'static str; 2], &'static str),
    /// Two device models of this kind, run by the card's driver, and a thread as the wire.
    Models(&'static str),
    /// A queue of a cluster, whose readers send, and one that receives it.
    Cluster,
    /// Two guests, of which one sends what the other receives.
    Guests,
}

impl Joint {
    /// Whether it consists of emulated cards, on which a packet may take long.
    fn is_slow(self) -> bool {
        matches!(self, Joint::Cards(..) | Joint::Vfio(..))
    }

    /// Names of the sending and the receiving port, if they are on interfaces or cards.
    fn port_names(self) -> Option<[&'static str; 2]> {
        match self {
            Joint::Wire(tx, rx) => Some([tx, rx]),
            Joint::Cards(_, name) | Joint::Vfio(_, name) => Some([name, name]),
            _ => None,
        }
    }
}

/// A setup for testing a backend.
pub struct Rig {
    /// Name of its test.
    pub name: &'static str,
    /// Row of [`port::BACKENDS`] that it tests.
    pub scheme: &'static str,
    /// How its ports are connected.
    pub joint: Joint,
    /// Queues of each port, all of them open. Lines use them in turn.
    pub queues: u32,
    /// Number of short packets (at most 256 bytes) that it must hold for a stalled reader, with
    /// default options.
    pub holds: u32,
    /// Shrinks it so that `4 * holds` packets do not fit.
    pub shrink: fn(&mut PortOptions),
    /// Requirements on the machine.
    pub needs: fn() -> Result<(), Missing>,
    /// Cases that do not apply, with the reason.
    pub excused: &'static [(&'static str, &'static str)],
}

const NO_LINK: &str = "there is no link";
const NO_POOL: &str = "it has no pool: the kernel makes the frames";
const NOTHING_HELD: &str = "nothing is held that a killed process could leave";
const NO_TX: &str = "files are written by others here";

/// All rigs. Tests are named after them.
pub const RIGS: &[Rig] = &[
    Rig {
        name: "memory",
        scheme: "memory",
        joint: Joint::Loop("memory:"),
        queues: 1,
        holds: 1000,
        shrink: |options| options.ring_len = 64,
        needs: || Ok(()),
        excused: &[
            ("link_flap", NO_LINK),
            ("mtu_change", NO_LINK),
            ("deletion", NO_LINK),
            ("kill_and_restart", "both ends are in one process"),
            ("random_kill", "both ends are in one process"),
        ],
    },
    Rig {
        name: "file_pcap",
        scheme: "file",
        joint: Joint::File(".pcap"),
        queues: 1,
        holds: 5000,
        shrink: |_| (),
        needs: || Ok(()),
        excused: FILE_EXCUSED,
    },
    Rig {
        name: "afpacket_bpf",
        scheme: "afpacket",
        joint: Joint::Wire("afpacket:{}", "afpacket:{}?outgoing=no&tap=bpf"),
        queues: 1,
        holds: 5000,
        shrink: |options| options.ring_bytes = 64 << 10,
        needs: crate::skip::lab,
        excused: DEVICE_EXCUSED,
    },
    Rig {
        name: "afpacket_tpacket",
        scheme: "afpacket",
        joint: Joint::Wire("afpacket:{}", "afpacket:{}?outgoing=no&tap=tpacket"),
        queues: 1,
        holds: 5000,
        shrink: |options| options.ring_bytes = 64 << 10,
        needs: crate::skip::lab,
        excused: DEVICE_EXCUSED,
    },
    Rig {
        name: "afpacket_immediate",
        scheme: "afpacket",
        joint: Joint::Wire(
            "afpacket:{}",
            "afpacket:{}?outgoing=no&tap=tpacket&immediate=yes",
        ),
        queues: 1,
        // Each has a frame for the longest packet.
        holds: 450,
        // About 60 packets.
        shrink: |options| options.ring_bytes = 4 << 20,
        needs: crate::skip::lab,
        excused: DEVICE_EXCUSED,
    },
    Rig {
        name: "afxdp_native",
        scheme: "afxdp",
        joint: Joint::Wire("afxdp:{}?attach=native", "afxdp:{}?attach=native"),
        queues: 1,
        holds: 1500,
        shrink: |options| options.ring_len = 64,
        needs: crate::skip::lab,
        excused: DEVICE_EXCUSED,
    },
    Rig {
        name: "afxdp_generic",
        scheme: "afxdp",
        joint: Joint::Wire("afxdp:{}?attach=generic", "afxdp:{}?attach=generic"),
        queues: 1,
        holds: 1500,
        shrink: |options| options.ring_len = 64,
        needs: crate::skip::lab,
        excused: DEVICE_EXCUSED,
    },
    Rig {
        name: "xdplive",
        scheme: "xdplive",
        // The receiver's program makes that end accept XDP frames.
        joint: Joint::Wire("xdplive:{}", "afxdp:{}?attach=native"),
        queues: 1,
        holds: 1500,
        shrink: |options| options.ring_len = 64,
        needs: crate::skip::lab,
        excused: &[
            ("end", "a device never ends"),
            ("frames_are_sent", NO_POOL),
            ("random_walk", NO_POOL),
            ("jumbo", "a live frame is one page"),
        ],
    },
    Rig {
        name: "model_igb",
        scheme: "vfio",
        joint: Joint::Models("igb"),
        queues: 1,
        holds: 900,
        shrink: |options| options.ring_len = 64,
        needs: || Ok(()),
        excused: MODEL_EXCUSED,
    },
    Rig {
        name: "model_e1000",
        scheme: "vfio",
        joint: Joint::Models("e1000"),
        queues: 1,
        holds: 900,
        shrink: |options| options.ring_len = 64,
        needs: || Ok(()),
        excused: MODEL_EXCUSED,
    },
    Rig {
        name: "model_virtio_split",
        scheme: "vfio",
        joint: Joint::Models("virtio_split"),
        queues: 1,
        holds: 900,
        shrink: |options| options.ring_len = 64,
        needs: || Ok(()),
        excused: VIRTIO_EXCUSED,
    },
    Rig {
        name: "model_virtio_packed",
        scheme: "vfio",
        joint: Joint::Models("virtio_packed"),
        queues: 1,
        holds: 900,
        shrink: |options| options.ring_len = 64,
        needs: || Ok(()),
        excused: VIRTIO_EXCUSED,
    },
    Rig {
        name: "ring",
        scheme: "ring",
        joint: Joint::Cluster,
        queues: 1,
        holds: 1500,
        shrink: |options| options.ring_len = 64,
        needs: || Ok(()),
        excused: &[
            (
                "stop",
                "the owner continues to fill the queue: what comes after a stop stays in flight",
            ),
            ("link_flap", NO_LINK),
            ("mtu_change", NO_LINK),
            ("deletion", NO_LINK),
            (
                "kill_and_restart",
                "both ends are in one process; cluster_back kills",
            ),
            (
                "random_kill",
                "both ends are in one process; cluster_back kills",
            ),
        ],
    },
    Rig {
        name: "vm",
        scheme: "vm",
        joint: Joint::Guests,
        queues: 1,
        holds: 200,
        shrink: |_| (),
        needs: || Ok(()),
        excused: &[
            (
                "overload",
                "accepted packets wait in the port, and count as sent once the guest has buffers",
            ),
            ("end", "a virtual machine may always come back"),
            (
                "link_flap",
                "its own tests restart guests, and so does vm_live",
            ),
            (
                "mtu_change",
                "a guest sets its MTU; the port's own tests do",
            ),
            ("deletion", NO_LINK),
            (
                "kill_and_restart",
                "both ends are in one process; vm_live kills",
            ),
            ("random_kill", "both ends are in one process; vm_live kills"),
        ],
    },
    Rig {
        name: "igb_zero_copy",
        scheme: "afxdp",
        joint: Joint::Cards(
            ["igb0", "igb1"],
            "afxdp:{}?attach=native&bind=zero-copy&queues=2",
        ),
        queues: 2,
        holds: 200,
        shrink: |options| options.ring_len = 64,
        needs: crate::guest::inside,
        excused: ZERO_COPY_EXCUSED,
    },
    Rig {
        name: "virtio_zero_copy",
        scheme: "afxdp",
        joint: Joint::Cards(
            ["virtio0", "virtio1"],
            "afxdp:{}?attach=native&bind=zero-copy",
        ),
        queues: 1,
        holds: 200,
        shrink: |options| options.ring_len = 64,
        needs: crate::guest::inside,
        excused: ZERO_COPY_EXCUSED,
    },
    Rig {
        name: "e1000_generic",
        scheme: "afxdp",
        joint: Joint::Cards(["e1000-0", "e1000-1"], "afxdp:{}?attach=generic"),
        queues: 1,
        holds: 200,
        shrink: |options| options.ring_len = 64,
        needs: crate::guest::inside,
        excused: CARD_EXCUSED,
    },
    Rig {
        name: "igb_vfio",
        scheme: "vfio",
        joint: Joint::Vfio(["igb0", "igb1"], "vfio:{}?queues=2"),
        queues: 2,
        holds: 200,
        shrink: |options| options.ring_len = 64,
        needs: crate::guest::inside,
        excused: VFIO_EXCUSED,
    },
    Rig {
        name: "e1000_vfio",
        scheme: "vfio",
        joint: Joint::Vfio(["e1000-0", "e1000-1"], "vfio:{}"),
        queues: 1,
        holds: 200,
        shrink: |options| options.ring_len = 64,
        needs: crate::guest::inside,
        excused: VFIO_EXCUSED,
    },
    Rig {
        name: "virtio_vfio",
        scheme: "vfio",
        joint: Joint::Vfio(["virtio0", "virtio1"], "vfio:{}"),
        queues: 1,
        holds: 200,
        shrink: |options| options.ring_len = 64,
        needs: crate::guest::inside,
        excused: VFIO_EXCUSED,
    },
];

const VFIO_EXCUSED: &[(&str, &str)] = &[
    ("end", "a card never ends"),
    (
        "link_flap",
        "a card in user space is no interface; its driver's own tests pull the wire",
    ),
    ("mtu_change", "nobody sets the MTU of a card in user space"),
    ("deletion", "a card is not deleted"),
    ("overload", HELD_BACK),
    ("kill_and_restart", "random_kill does, at any moment"),
];

const MODEL_EXCUSED: &[(&str, &str)] = &[
    ("end", "a card never ends"),
    (
        "link_flap",
        "a model is no interface; its driver's own tests pull the wire",
    ),
    ("mtu_change", "nobody sets the MTU of a card in user space"),
    (
        "deletion",
        "a model is no interface; its driver's own tests pull the card",
    ),
    (
        "kill_and_restart",
        "both ends are in one process; the guest's suite kills",
    ),
    (
        "random_kill",
        "both ends are in one process; the guest's suite kills",
    ),
];

const VIRTIO_EXCUSED: &[(&str, &str)] = &[
    ("end", "a device never ends"),
    (
        "link_flap",
        "a model is no interface; its driver's own tests pull the wire",
    ),
    ("mtu_change", "nobody sets the MTU of a card in user space"),
    (
        "deletion",
        "a model is no interface; its driver's own tests pull the card",
    ),
    (
        "kill_and_restart",
        "both ends are in one process; the guest's suite kills",
    ),
    (
        "random_kill",
        "both ends are in one process; the guest's suite kills",
    ),
    ("overload", "a virtio device counts nothing that it loses"),
];

const CARD_EXCUSED: &[(&str, &str)] = &[
    ("end", "a device never ends"),
    ("deletion", "a card is not deleted"),
    ("overload", HELD_BACK),
];

const ZERO_COPY_EXCUSED: &[(&str, &str)] = &[
    ("end", "a device never ends"),
    ("deletion", "a card is not deleted"),
    ("overload", HELD_BACK),
    (
        "jumbo",
        "the driver takes no packets in pieces in this mode",
    ),
];

const HELD_BACK: &str = "an emulated wire holds packets back before a card without buffers";

const DEVICE_EXCUSED: &[(&str, &str)] = &[("end", "a device never ends")];

const FILE_EXCUSED: &[(&str, &str)] = &[
    ("overload", "a file waits for its reader"),
    ("stop", "nothing comes in but by reading"),
    ("unsent_buffers", NO_TX),
    ("frames_are_sent", NO_TX),
    ("link_flap", NO_LINK),
    ("mtu_change", NO_LINK),
    ("deletion", NO_LINK),
    ("kill_and_restart", NOTHING_HELD),
    ("random_kill", NOTHING_HELD),
];

/// A requirement.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Returns an error if the rig does not meet it.
    pub run: fn(&'static Rig) -> Result<()>,
}

macro_rules! cases {
    ($($module:ident::$case:ident,)*) => {
        &[$(Case { name: stringify!($case), run: $module::$case },)*]
    };
}

/// All requirements.
pub const CASES: &[Case] = cases![
    cases::delivery,
    cases::jumbo,
    cases::order,
    cases::flows,
    cases::no_loss_below_capacity,
    cases::overload,
    cases::batch_sizes,
    cases::idle,
    cases::end,
    cases::filter,
    cases::snaplen,
    cases::forgotten_batch,
    cases::detach,
    cases::stop,
    cases::closing_early,
    cases::unsent_buffers,
    cases::frames_are_sent,
    walk::random_walk,
    wire::link_flap,
    wire::mtu_change,
    wire::deletion,
    wire::kill_and_restart,
    wire::random_kill,
];

/// A case that takes longer hangs: each wait in a case has its own limit, and no case has many that
/// expire. Several times the longest case on two busy processors.
const CASE_LIMIT: Duration = Duration::from_secs(240);

/// Runs every case on the rig with this name, and panics with all failures at the end.
///
/// # Panics
/// If there is no such rig, or a case fails.
pub fn run(rig: &str) {
    let rig = RIGS
        .iter()
        .find(|row| row.name == rig)
        .unwrap_or_else(|| panic!("no rig is called {rig}"));
    if let Err(missing) = (rig.needs)() {
        return crate::skip::record(rig.name, &missing);
    }
    let only = std::env::var("BAREWIRE_CASE").ok();
    let mut failures = Vec::new();
    for case in CASES {
        if only.as_ref().is_some_and(|only| only != case.name) {
            continue;
        }
        if let Some((_, why)) = rig.excused.iter().find(|(name, _)| *name == case.name) {
            println!("{}: {}: does not apply: {why}", rig.name, case.name);
            continue;
        }
        let started = std::time::Instant::now();
        let what = format!("{}: {}", rig.name, case.name);
        match within(CASE_LIMIT, &what, || (case.run)(rig)) {
            Ok(()) => println!("{}: {}: {:.1?}", rig.name, case.name, started.elapsed()),
            Err(error) => {
                let failure = format!("{}: {}: {error:#}", rig.name, case.name);
                // Printed immediately as well: the rest may take minutes, or be killed.
                println!("{failure}");
                failures.push(failure);
            }
        }
    }
    // The next case finds the cards in their original state.
    kept::give_back();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Backends whose packets no other port sends, with the test that has its own requirements.
const TESTED_ELSEWHERE: &[(&str, &str)] = &[
    (
        "nflog",
        "a packet is a message of netfilter's: nflog_live.rs",
    ),
    ("nfqueue", "rules of netfilter send to it: nflog_live.rs"),
];

/// Backends without a rig, and excuses for cases that do not exist; there must be none.
pub fn gaps() -> Vec<String> {
    let mut gaps = Vec::new();
    for backend in port::BACKENDS {
        let mut elsewhere = TESTED_ELSEWHERE.iter();
        if elsewhere.any(|(scheme, _)| *scheme == backend.scheme) {
            continue;
        }
        if !RIGS.iter().any(|rig| rig.scheme == backend.scheme) {
            gaps.push(format!("backend {} has no rig", backend.scheme));
        }
    }
    for rig in RIGS {
        if !port::BACKENDS.iter().any(|row| row.scheme == rig.scheme) {
            gaps.push(format!(
                "rig {} tries a backend that is not there",
                rig.name
            ));
        }
        for (name, _) in rig.excused {
            if !CASES.iter().any(|case| case.name == *name) {
                gaps.push(format!(
                    "rig {} is excused from {name}, which is no case",
                    rig.name
                ));
            }
        }
    }
    gaps
}
