//! Detects the XDP features that this kernel and this process can use, without changing anything.
//!
//! Version numbers are not reliable: distributions backport features to old kernels and leave
//! others out. So each row of [`FEATURES`] loads a small program, creates a map, or looks for a
//! kernel function; nothing is attached. A result is conclusive, or states why it is not.

use std::fmt;

use bpf::asm::Asm;
use bpf::ebpf::Reg::{self, R0, R1, R2, R3};
use bpf::ebpf::{Alu, Helper, Width};
use sys::bpf::{Map, MapSpec, MapType, TestRun};
use sys::xsk::{Bind, XskSocket};
use sys::{Error, ErrorKind, KernelVersion};

use crate::{XdpProgram, XskMap, btf};

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The feature is present and works.
    Yes,
    /// The feature is missing, for this reason.
    No(String),
    /// This process cannot determine it, for this reason.
    Unknown(String),
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(why) => write!(f, "no: {why}"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// A kernel feature that barewire uses.
#[derive(Clone, Copy)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// First kernel version with the feature.
    pub since: KernelVersion,
    /// What does not work without it.
    pub serves: &'static str,
    /// Tests for the feature.
    pub probe: fn() -> Presence,
}

/// All features, oldest first.
pub const FEATURES: &[Feature] = &[
    row("XDP", 4, 8, "afxdp:", xdp),
    row("AF_XDP sockets", 4, 18, "afxdp:", af_xdp),
    row(
        "mappable arrays",
        5,
        5,
        "sending by live frames",
        mappable_array,
    ),
    row(
        "packet pointer arithmetic",
        5,
        8,
        "fast filters on afxdp:",
        pointer_arithmetic,
    ),
    row("XDP links", 5, 9, "afxdp: leaves nothing behind", xdp_link),
    row(
        "packets of several buffers",
        5,
        18,
        "afxdp: with an MTU over 3.5 KB",
        frags,
    ),
    row(
        "packet length helper",
        5,
        18,
        "afxdp: without CAP_PERFMON",
        buff_len,
    ),
    row("live frames", 5, 18, "sending by XDP", live_frames),
    row(
        "TAI clock in programs",
        6,
        1,
        "wall-clock time of each packet on afxdp:",
        tai_clock,
    ),
    row(
        "metadata from the device",
        6,
        3,
        "the device's time and hash on afxdp:",
        device_metadata,
    ),
    row(
        "packets of several buffers on AF_XDP",
        6,
        6,
        "afxdp: and steering with an MTU over 3.5 KB",
        multi_buffer_sockets,
    ),
    row(
        "VLAN tag from the device",
        6,
        8,
        "VLAN tags that the device takes off",
        device_vlan,
    ),
];

const fn row(
    name: &'static str,
    major: u16,
    minor: u16,
    serves: &'static str,
    probe: fn() -> Presence,
) -> Feature {
    Feature {
        name,
        since: KernelVersion::new(major, minor),
        serves,
        probe,
    }
}

/// Interprets an error: lack of privileges is inconclusive; any other error means that the feature
/// is missing.
fn refused(error: &Error) -> Presence {
    match error.kind() {
        ErrorKind::Permission if error.os_code() == Some(1) => Presence::Unknown(
            "the process lacks the permission to test it (root, or CAP_NET_ADMIN and CAP_BPF)"
                .into(),
        ),
        _ => Presence::No(error.why().to_owned()),
    }
}

fn answer<T>(result: sys::Result<T>) -> Presence {
    result.map_or_else(|e| refused(&e), |_| Presence::Yes)
}

/// Builds a short program that passes every packet.
fn program(frags: bool, body: impl FnOnce(&mut Asm)) -> sys::Result<XdpProgram> {
    let mut asm = Asm::new();
    body(&mut asm);
    asm.mov(R0, 2);
    asm.exit();
    let insns = asm
        .finish()
        .map_err(|e| Error::new(ErrorKind::InvalidInput, "make a probe", e.to_string()))?;
    XdpProgram::load("bw_probe", &insns, frags, None)
}

fn xdp() -> Presence {
    answer(program(false, |_| {}))
}

fn af_xdp() -> Presence {
    match XskSocket::open() {
        Ok(_) => answer(XskMap::create(1)),
        Err(e) => refused(&e),
    }
}

fn mappable_array() -> Presence {
    answer(Map::create(&MapSpec {
        kind: MapType::Array,
        name: "bw_probe",
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        mappable: true,
    }))
}

/// Looks for the kernel function: a trial would have to attach a program.
pub(crate) fn xdp_link() -> Presence {
    has_function("bpf_xdp_link_attach", KernelVersion::new(5, 9))
}

fn frags() -> Presence {
    answer(program(true, |_| {}))
}

/// Whether sockets take packets of several buffers. Before, the kernel drops such a packet when a
/// program redirects it, and counts it nowhere.
///
/// # Since Linux
/// 6.6
pub fn multi_buffer_sockets() -> Presence {
    let bind = Bind {
        ifindex: u32::MAX >> 1,
        queue_index: 0,
        zero_copy: false,
        need_wakeup: false,
        multi_buffer: true,
        shared: None,
    };
    let socket = match XskSocket::open() {
        Ok(socket) => socket,
        Err(error) => return refused(&error),
    };
    // Flags are checked first: EINVAL for an unknown one, ENODEV for the interface.
    match socket.bind(bind) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            Presence::No("AF_XDP sockets refuse XDP_USE_SG".into())
        }
        _ => Presence::Yes,
    }
}

fn buff_len() -> Presence {
    answer(program(false, |asm| asm.call(Helper::XdpGetBuffLen)))
}

fn tai_clock() -> Presence {
    answer(program(false, |asm| asm.call(Helper::KtimeGetTaiNs)))
}

fn device_metadata() -> Presence {
    has_function("bpf_xdp_metadata_rx_timestamp", KernelVersion::new(6, 3))
}

fn device_vlan() -> Presence {
    has_function("bpf_xdp_metadata_rx_vlan_tag", KernelVersion::new(6, 8))
}

/// Runs a program that drops its single packet.
fn live_frames() -> Presence {
    let mut asm = Asm::new();
    asm.mov(R0, 1);
    asm.exit();
    let insns = asm.finish().unwrap_or_default();
    let run = TestRun {
        data: &[0; 64],
        repeat: 1,
        live_frames: true,
        ..TestRun::default()
    };
    answer(XdpProgram::load("bw_probe", &insns, false, None).and_then(|p| p.test_run(&run)))
}

/// Subtracts two packet pointers, which the verifier allows only with CAP_PERFMON.
fn pointer_arithmetic() -> Presence {
    let load = |asm: &mut Asm, to: Reg, field: i16| asm.load(Width::W, to, R1, field);
    let loaded = program(false, |asm| {
        load(asm, R2, 0);
        load(asm, R3, 4);
        asm.alu(Alu::Sub, R3, R2);
    });
    match loaded {
        Err(e) if e.why().contains("prohibited") => {
            Presence::No("the process lacks CAP_PERFMON; a slower form is used".into())
        }
        other => answer(other),
    }
}

fn has_function(name: &'static str, since: KernelVersion) -> Presence {
    match btf::function_ids([name]) {
        Ok([Some(_)]) => Presence::Yes,
        Ok([None]) => Presence::No(format!("the kernel has no {name}")),
        // Without the list, only the version is left.
        Err(e) => match KernelVersion::running() {
            Some(now) => {
                let likely = if now >= since { "likely" } else { "not likely" };
                Presence::Unknown(format!("{}; {likely} by its version {now}", e.why()))
            }
            None => Presence::Unknown(e.why().to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_returns_and_a_new_kernel_has_all_features() {
        let running = KernelVersion::running().unwrap();
        for feature in FEATURES {
            let presence = (feature.probe)();
            println!("{:<30} {presence}", feature.name);
            match presence {
                Presence::Yes => {}
                Presence::No(why) => {
                    let excused = running < feature.since || why.contains("CAP_PERFMON");
                    assert!(excused, "{}: {why}", feature.name);
                }
                Presence::Unknown(why) => {
                    skip::record(module_path!(), format!("probe of {}: {why}", feature.name));
                }
            }
        }
    }
}
