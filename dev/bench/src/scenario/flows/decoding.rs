//! The table for decoders: programs that decode TLS, HTTP, DNS and QUIC in a capture rich in
//! applications.

use std::process::Command;

use super::{Comparison, Places, Subject, barewire};

/// Repetitions of all connections in the capture: 1.3 M packets.
pub(super) const REPETITIONS: u32 = 30;

/// On the capture that `applications` merges.
pub(super) const COMPARED: Comparison = Comparison {
    file: "applications.pcap",
    measure: "decoders: real connections of many applications",
    table_size: "1M",
    subjects: &SUBJECTS,
};

/// The fields of ipfixprobe's plugins, and its output plugin.
pub(super) const EXPORTED: Subject = Subject {
    name: "barewire, tls,http,dns,quic, IPFIX over UDP",
    is_baseline: false,
    command: |places| {
        let mut command = decoding(places, "tls,http,dns,quic")?;
        command.arg("--export");
        command.arg(format!("ipfix:udp://127.0.0.1:{}", places.port));
        Ok(command)
    },
};

fn decoding(places: &Places<'_>, names: &str) -> anyhow::Result<Command> {
    let mut command = barewire(places)?;
    command.args(["--plain", "--top", "1", "--decode", names]);
    Ok(command)
}

const SUBJECTS: [Subject; 7] = [
    Subject {
        name: "ipfixprobe, tls,http,dns,quic, IPFIX over UDP",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("ipfixprobe");
            let file = places.capture.display();
            command.args(["-i", &format!("pcap;file={file}")]);
            command.args(["-s", "cache;s=20;a=300;i=30"]);
            command.args(["-p", "tls", "-p", "http", "-p", "dns", "-p", "quic", "-o"]);
            command.arg(format!("ipfix;host=127.0.0.1;port={};udp", places.port));
            Ok(command)
        },
    },
    Subject {
        name: "ndpiReader",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("ndpiReader");
            command.args(["-q", "-i"]).arg(places.capture);
            Ok(command)
        },
    },
    Subject {
        name: "nfpcapd (no decoders)",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("nfpcapd");
            command.args(["-B", "1000000", "-e", "300,30", "-t", "300", "-w"]);
            command.arg(places.scratch).arg("-r").arg(places.capture);
            Ok(command)
        },
    },
    EXPORTED,
    Subject {
        name: "barewire, tls,http,dns,quic",
        is_baseline: false,
        command: |places| decoding(places, "tls,http,dns,quic"),
    },
    Subject {
        name: "barewire, all decoders",
        is_baseline: false,
        command: |places| decoding(places, "all"),
    },
    Subject {
        name: "barewire (no decoders)",
        is_baseline: false,
        command: |places| {
            let mut command = barewire(places)?;
            command.args(["--plain", "--top", "1"]);
            Ok(command)
        },
    },
];
