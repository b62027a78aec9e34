//! Checks of host support, with reasons and fixes. A new check is a row in [`CHECKS`].

mod confinement;
mod vfio;

use std::fs;

use sys::KernelVersion;
use sys::privileges::{self, Capability};
use xdp::feature::Presence;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Present; a description.
    Yes(String),
    /// Works, but could be better: what, and how.
    Partly(String, String),
    /// Missing: the reason, and how to fix it.
    No(String, String),
    /// Unknown: the reason.
    Unknown(String),
}

/// A check: a row of the table.
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    /// The features that need it.
    pub serves: &'static str,
    /// Runs the check.
    pub run: fn() -> Finding,
}

/// All checks, in the order of the report.
pub const CHECKS: &[Check] = &[
    Check {
        name: "kernel",
        serves: "everything; 6.3 or later has all features",
        run: kernel,
    },
    Check {
        name: "privileges",
        serves: "opening interfaces",
        run: capabilities,
    },
    Check {
        name: "AF_PACKET",
        serves: "afpacket: and plain interface names",
        run: af_packet,
    },
    Check {
        name: "AF_XDP",
        serves: "afxdp:",
        run: af_xdp,
    },
    Check {
        name: "BPF",
        serves: "afxdp:, counting filters",
        run: bpf_maps,
    },
    Check {
        name: "XDP features",
        serves: "afxdp: at its best",
        run: xdp_features,
    },
    Check {
        name: "BPF JIT",
        serves: "fast filters and XDP programs",
        run: jit,
    },
    Check {
        name: "kernel types (BTF)",
        serves: "hardware timestamp, hash and VLAN tag",
        run: btf,
    },
    Check {
        name: "locked memory",
        serves: "AF_XDP without CAP_IPC_LOCK",
        run: memlock,
    },
    Check {
        name: "huge pages",
        serves: "fewer TLB and IOTLB misses",
        run: huge_pages,
    },
    Check {
        name: "IOMMU",
        serves: "vfio:",
        run: vfio::iommu,
    },
    Check {
        name: "VFIO",
        serves: "vfio:",
        run: vfio::vfio,
    },
    Check {
        name: "seccomp",
        serves: "blocking system calls once everything is open",
        run: confinement::seccomp,
    },
    Check {
        name: "Landlock",
        serves: "restricting access to files once everything is open",
        run: confinement::landlock,
    },
    Check {
        name: "libpcap",
        serves: "filter expressions with --filter-compiler libpcap",
        run: libpcap,
    },
    Check {
        name: "libndpi",
        serves: "application names of nDPI (flows --decode ndpi)",
        run: libndpi,
    },
    Check {
        name: "librdkafka",
        serves: "export to Kafka (flows --export ...:kafka://)",
        run: librdkafka,
    },
    Check {
        name: "processors",
        serves: "one thread per queue",
        run: processors,
    },
];

fn kernel() -> Finding {
    match KernelVersion::running() {
        None => Finding::Unknown("/proc/sys/kernel/osrelease cannot be read".into()),
        Some(v) if v >= KernelVersion::new(6, 3) => Finding::Yes(format!("Linux {v}")),
        Some(v) if v >= KernelVersion::new(5, 18) => Finding::Partly(
            format!("Linux {v}: no XDP metadata (needs 6.3)"),
            "use Linux 6.3 or later".into(),
        ),
        Some(v) => Finding::Partly(
            format!(
                "Linux {v}: no jumbo packets with AF_XDP (needs 5.18), no XDP metadata (needs \
                 6.3)"
            ),
            "use Linux 6.3 or later".into(),
        ),
    }
}

fn capabilities() -> Finding {
    let wanted = [
        (Capability::NetRaw, "NET_RAW"),
        (Capability::NetAdmin, "NET_ADMIN"),
        (Capability::Bpf, "BPF"),
    ];
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(c, _)| !privileges::has(*c))
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        return Finding::Yes(
            "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF: nothing else is needed".into(),
        );
    }
    let hint = "run as root (privileges are dropped after opening, with --user to that user), \
                or run setcap cap_net_raw,cap_net_admin,cap_bpf=ep on the program";
    Finding::No(format!("without {}", missing.join(", ")), hint.into())
}

fn af_packet() -> Finding {
    match sys::probe::af_packet() {
        Ok(()) => Finding::Yes("sockets can be opened".into()),
        Err(e) => Finding::No(
            e.why().to_owned(),
            e.hint().unwrap_or("run as root").to_owned(),
        ),
    }
}

fn af_xdp() -> Finding {
    match sys::probe::af_xdp() {
        Ok(()) => Finding::Yes("sockets can be opened; `barewire devices` lists the modes".into()),
        Err(e) if e.kind() == sys::ErrorKind::Permission => {
            Finding::No(e.why().to_owned(), "run as root".into())
        }
        Err(e) => Finding::No(
            e.why().to_owned(),
            "use a kernel with CONFIG_XDP_SOCKETS (4.18 or later); afpacket: works without".into(),
        ),
    }
}

fn bpf_maps() -> Finding {
    match sys::probe::bpf() {
        Ok(()) => Finding::Yes("maps and programs can be created".into()),
        Err(e) => Finding::No(
            e.why().to_owned(),
            "run as root or with CAP_BPF; kernel.unprivileged_bpf_disabled blocks other users"
                .into(),
        ),
    }
}

fn xdp_features() -> Finding {
    let (mut absent, mut unknown) = (Vec::new(), Vec::new());
    for feature in xdp::feature::FEATURES {
        match (feature.probe)() {
            Presence::Yes => {}
            Presence::No(why) => absent.push(format!(
                "{} (Linux {}, for {}): {why}",
                feature.name, feature.since, feature.serves
            )),
            Presence::Unknown(why) => unknown.push(format!("{}: {why}", feature.name)),
        }
    }
    match (absent.is_empty(), unknown.is_empty()) {
        (true, true) => Finding::Yes(format!("all {}", xdp::feature::FEATURES.len())),
        (true, false) => Finding::Unknown(unknown.join("; ")),
        (false, _) => Finding::Partly(
            absent.join("; "),
            "use a newer kernel; barewire falls back to slower ways where it can".into(),
        ),
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn jit() -> Finding {
    match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("0") => Finding::Partly(
            "BPF JIT disabled: programs are interpreted".into(),
            "sysctl net.core.bpf_jit_enable=1".into(),
        ),
        Some(_) => Finding::Yes("BPF JIT enabled".into()),
        None => Finding::Unknown("net.core.bpf_jit_enable cannot be read".into()),
    }
}

fn btf() -> Finding {
    match fs::metadata("/sys/kernel/btf/vmlinux") {
        Ok(_) => Finding::Yes("/sys/kernel/btf/vmlinux is there".into()),
        Err(_) => Finding::Partly(
            "no /sys/kernel/btf/vmlinux: the XDP program takes timestamps; no hash, no VLAN tag"
                .into(),
            "use a kernel with CONFIG_DEBUG_INFO_BTF, and mount /sys".into(),
        ),
    }
}

fn memlock() -> Finding {
    let limits = read("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().nth(3)) else {
        return Finding::Unknown("/proc/self/limits has no such line".into());
    };
    if privileges::has(Capability::IpcLock) {
        return Finding::Yes(format!("unlimited with CAP_IPC_LOCK (the limit is {soft})"));
    }
    match soft.parse::<u64>() {
        Err(_) => Finding::Yes("unlimited".into()),
        Ok(bytes) if bytes >= 256 << 20 => Finding::Yes(format!("{} MiB", bytes >> 20)),
        Ok(bytes) => Finding::Partly(
            format!(
                "{} MiB: larger pools fail with \"no buffer space\"",
                bytes >> 20
            ),
            "raise it with `ulimit -l unlimited`, or grant CAP_IPC_LOCK".into(),
        ),
    }
}

fn huge_pages() -> Finding {
    let text = read("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    match (number("HugePages_Free:"), number("Hugepagesize:")) {
        (Some(0), _) => Finding::Partly(
            "none free: frame pools use 4 KiB pages".into(),
            "sysctl vm.nr_hugepages=64".into(),
        ),
        (Some(free), Some(kib)) => Finding::Yes(format!("{free} free, {kib} KiB each")),
        _ => Finding::Unknown("/proc/meminfo has no such line".into()),
    }
}

fn libpcap() -> Finding {
    library(sys::libpcap::version(), "", "apt-get install libpcap0.8")
}

fn libndpi() -> Finding {
    library(
        sys::libndpi::version(),
        "libndpi ",
        "apt-get install libndpi4.2",
    )
}

fn librdkafka() -> Finding {
    let version = sys::librdkafka::version();
    library(version, "librdkafka ", "apt-get install librdkafka1")
}

/// An optional library: its version after `label`, or why it cannot be used and how to install it.
/// The hint of the error is omitted, because it is about another command.
fn library(version: sys::Result<String>, label: &str, install: &str) -> Finding {
    match version {
        Ok(version) => Finding::Yes(format!("{label}{version}")),
        Err(e) => Finding::No(e.why().to_owned(), install.to_owned()),
    }
}

fn processors() -> Finding {
    let allowed = sys::affinity::allowed_cpus().len();
    if allowed == 1 {
        return Finding::Partly(
            "one, shared by the receiving thread and the kernel".into(),
            "with a second CPU, twice the rate can be received without loss".into(),
        );
    }
    Finding::Yes(format!("{allowed} usable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_runs_and_every_problem_has_a_fix() {
        for check in CHECKS {
            match (check.run)() {
                Finding::Yes(text) | Finding::Unknown(text) => assert!(!text.is_empty()),
                Finding::Partly(why, hint) | Finding::No(why, hint) => {
                    assert!(!why.is_empty() && !hint.is_empty(), "{}", check.name);
                }
            }
        }
    }
}
