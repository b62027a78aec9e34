//! QEMU's command line: the machine, its channels, its cards.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::{Card, ERRORS, Run, Wires, monitor};
use crate::lab::fetch::Parts;

/// A QEMU command with a guest that runs a job, not yet started.
pub(super) fn command(
    parts: &Parts,
    run: &Run<'_>,
    dir: &Path,
    image: &Path,
    wires: &Wires,
) -> Result<Command> {
    let words = parts.qemu.words(&[dir, &parts.kernel]);
    let mut command = match &wires.ns {
        Some(ns) => ns.command(&words[0]),
        None => Command::new(&words[0]),
    };
    command.args(&words[1..]);
    let iommu_passthrough = machine(&mut command, run);
    command.arg("-kernel").arg(parts.kernel.join("vmlinuz"));
    command.arg("-initrd").arg(image);
    // On a busy machine the emulated timer is late, which the kernel's check takes for a broken
    // one.
    command.arg("-append").arg(format!(
        "console=ttyS0 quiet loglevel=4 panic=-1 intel_iommu=on iommu={iommu_passthrough} \
         net.ifnames=0 hugepages=64 no_timer_check"
    ));
    channels(&mut command, dir);
    for (index, card) in run.machine.cards.iter().enumerate() {
        plug(&mut command, index, card, wires);
    }
    let mut log = File::create(dir.join("command"))?;
    writeln!(log, "{command:?}")?;
    command
        // For the monitor's socket; all other paths are absolute.
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // A file, not a pipe, which might fill up.
        .stderr(File::create(dir.join(ERRORS))?);
    Ok(command)
}

/// Processor, memory and IOMMU. Returns the kernel's parameters for the IOMMU.
fn machine(command: &mut Command, run: &Run<'_>) -> &'static str {
    let cpu = if run.accelerator == "kvm" {
        "host"
    } else {
        "max"
    };
    command.args(["-M", "q35,kernel-irqchip=split", "-accel", run.accelerator]);
    if run.machine.counts_instructions {
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    command.args(["-cpu", cpu, "-m", "2048", "-smp", "2", "-nodefaults"]);
    command.args(["-no-reboot", "-display", "none"]);
    // In caching mode each new mapping is a call to the IOMMU; a guest with only its own cards does
    // not need it.
    let (caching, passthrough) = match run.machine.translates_all {
        true => ("off", "nopt"),
        false => ("on", "pt"),
    };
    // With it the kernel accesses its interrupt controllers by processor registers, where a clock
    // that counts instructions may not be read: QEMU ends ("Bad icount read").
    let x2apic = match run.machine.counts_instructions {
        true => "off",
        false => "on",
    };
    let iommu = format!("intel-iommu,intremap=on,eim={x2apic},caching-mode={caching}");
    command.args(["-device", &iommu]);
    passthrough
}

/// Console, output, exit code, files, and the monitor.
fn channels(command: &mut Command, dir: &Path) {
    let file = |name: &str| format!("file,id={name},path={}", dir.join(name).display());
    command.args(["-chardev", &file("console"), "-serial", "chardev:console"]);
    command.args(["-device", "virtio-serial-pci"]);
    for name in ["output", "status", "files"] {
        // Not the chardev "stdio", which closes if there is no standard input.
        let chardev = match name {
            "output" => "file,id=output,path=/dev/stdout".to_owned(),
            _ => file(name),
        };
        command.args(["-chardev", &chardev]);
        command.arg("-device");
        command.arg(format!("virtserialport,chardev={name},name={name}"));
    }
    let chardev = format!(
        "socket,id=monitor,path={},server=on,wait=off",
        monitor::SOCKET
    );
    command.args(["-chardev", &chardev, "-mon", "chardev=monitor"]);
}

/// A card, and the port that it is behind.
fn plug(command: &mut Command, index: usize, card: &Card, wires: &Wires) {
    let (netdev, more) = wires.netdev(index, card);
    command.args(["-netdev", &netdev]);
    let mut bus = "pcie.0".to_owned();
    if card.root_port {
        bus = format!("rp{index}");
        command.arg("-device");
        command.arg(format!(
            "pcie-root-port,id={bus},chassis={0},slot={0}",
            index + 1
        ));
    }
    command.arg("-device");
    let Card { device, mac, .. } = card;
    command.arg(format!(
        "{device},netdev=n{index},mac={mac},bus={bus}{more}"
    ));
}
