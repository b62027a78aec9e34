//! In the guest: a port on an unavailable card reports the reason and what to do, through the
//! command as users see it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::vfio_card::stand::{LIMIT, Stand, fact};
use crate::vfio_card::{Peer, VfioCard};
use lab::guest;
use lab::process::{Finished, Process, Signal};

/// A command that receives one packet; it ends by itself only if it is refused.
fn capture(address: &str) -> Command {
    let mut command = Command::new("barewire");
    let port = format!("vfio:{address}");
    command.args(["capture", &port, "-c", "1", "-w", "/dev/null"]);
    command
}

fn finish(command: &mut Command) -> Finished {
    Process::spawn(command).unwrap().wait(LIMIT).unwrap()
}

/// Checks that it failed, for this reason and with this hint.
fn refused(finished: &Finished, why: &str, hint: &str) {
    println!("{}", finished.stderr);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    let error = finished
        .stderr
        .lines()
        .find(|line| line.starts_with("barewire: "));
    let error = error.unwrap_or_else(|| panic!("no error: {}", finished.stderr));
    assert!(error.contains(why), "{why:?}: {}", finished.stderr);
    let (_, hints) = finished.stderr.split_once("\nhint: ").expect("a hint");
    assert!(hints.contains(hint), "{hint:?}: {}", finished.stderr);
}

/// The PCI address of an interface's card.
fn address_of(ifname: &str) -> String {
    sys::pci::PciFunction::of_interface(ifname)
        .unwrap()
        .address()
        .to_string()
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
}

#[test]
fn cards_of_the_kernel_or_of_unknown_type_are_refused() {
    lab::require!(guest::inside());
    let address = address_of("igb0");
    refused(
        &finish(&mut capture(&address)),
        "it is bound to the kernel's driver igb as interface igb0",
        &format!("barewire nic bind vfio {address}"),
    );
    refused(
        &finish(&mut capture("0000:ff:1f.7")),
        "there is no device at this address",
        "lspci -D",
    );
    // A card bound to vfio-pci for which there is no driver: an 82574.
    let card = VfioCard::bind("e1000e-0");
    refused(
        &finish(&mut capture(&card.address)),
        "barewire has no driver for 8086:10d3",
        "Intel 82576",
    );
}

#[test]
fn a_card_in_use_by_another_process_is_refused() {
    lab::require!(guest::inside());
    let card = VfioCard::bind("igb0");
    let mut first = Command::new("barewire");
    first.args([
        "capture",
        &format!("vfio:{}", card.address),
        "-w",
        "/dev/null",
    ]);
    let mut first = Process::spawn(&mut first).unwrap();
    first.wait_stderr("listening on", LIMIT).unwrap();
    refused(
        &finish(&mut capture(&card.address)),
        "busy",
        "another process has it open: fuser -v /dev/vfio/",
    );
    // It is unaffected.
    assert!(first.running().unwrap());
    first
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
}

#[test]
fn a_card_with_a_shared_iommu_group_is_refused() {
    lab::require!(guest::inside());
    let (card, other) = (address_of("shared0"), address_of("shared1"));
    let nic = |args: &[&str]| finish(Command::new("barewire").arg("nic").args(args));
    refused(
        &nic(&["bind", "vfio", &card]),
        &format!("also contains {other}, bound to e1000"),
        "--force",
    );
    let first = VfioCard::bind("shared0");
    refused(
        &finish(&mut capture(&card)),
        &format!("its IOMMU group is shared with {other} (e1000)"),
        "bind these to vfio-pci too",
    );
    // Following the hint helps.
    let second = VfioCard::bind("shared1");
    let mut both = Process::spawn(&mut capture(&card)).unwrap();
    both.wait_stderr("listening on", LIMIT).unwrap();
    both.stop(Signal::SIGINT, LIMIT).unwrap().checked().unwrap();
    drop((first, second));
}

/// Modules that are unloaded, and loaded again on drop.
struct Without(&'static [&'static str]);

impl Without {
    fn modules(modules: &'static [&'static str]) -> Without {
        let without = Without(modules);
        for module in modules {
            run("rmmod", &[module]);
        }
        without
    }
}

impl Drop for Without {
    fn drop(&mut self) {
        for module in self.0.iter().rev() {
            let file = format!("/modules/{module}.ko");
            let _ = Command::new("insmod").arg(file).status();
        }
    }
}

#[test]
fn a_kernel_without_vfio_is_reported() {
    lab::require!(guest::inside());
    let card = VfioCard::bind("igb0");
    {
        let _without = Without::modules(&["vfio_iommu_type1"]);
        refused(
            &finish(&mut capture(&card.address)),
            "VFIO's driver for this machine's IOMMU is not loaded",
            "modprobe vfio_iommu_type1",
        );
    }
    // In a container without the device nodes.
    let hidden = "mount -t tmpfs none /dev/vfio && exec \"$@\"";
    let mut container = Command::new("unshare");
    container.args(["-m", "sh", "-c", hidden, "sh", "barewire", "capture"]);
    container.args([
        &format!("vfio:{}", card.address),
        "-c",
        "1",
        "-w",
        "/dev/null",
    ]);
    refused(
        &finish(&mut container),
        "there is no such device node",
        "in a container the nodes below /dev/vfio must be passed in",
    );
    let address = card.address.clone();
    drop(card);
    let name = format!("/sys/bus/pci/devices/{address}/driver");
    let driver = || std::fs::read_link(&name).ok();
    let _without = Without::modules(&["vfio_pci"]);
    // The kernel's driver has it, and keeps it without a driver to bind it to.
    let before = driver();
    let bind = finish(Command::new("barewire").args(["nic", "bind", "vfio", &address]));
    refused(
        &bind,
        "load the kernel's module vfio-pci",
        "nothing was changed",
    );
    assert!(before.is_some());
    assert_eq!(driver(), before);
    // It has no driver.
    std::fs::write(format!("{name}/unbind"), &address).unwrap();
    let reported = finish(&mut capture(&address));
    std::fs::write("/sys/bus/pci/drivers_probe", &address).unwrap();
    rename_back("igb0", &address);
    refused(
        &reported,
        "the vfio-pci driver is not loaded",
        &format!("modprobe vfio-pci, then: barewire nic bind vfio {address}"),
    );
}

/// Restores the name of a returned interface.
fn rename_back(ifname: &str, address: &str) {
    let folder = format!("/sys/bus/pci/devices/{address}/net");
    let end = std::time::Instant::now() + LIMIT;
    let now = loop {
        let names = std::fs::read_dir(&folder)
            .ok()
            .and_then(|mut names| names.next());
        if let Some(Ok(entry)) = names {
            break entry.file_name().into_string().unwrap();
        }
        assert!(std::time::Instant::now() < end, "no interface came back");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    if now != ifname {
        run("ip", &["link", "set", &now, "name", ifname]);
    }
}

#[test]
fn a_user_without_privileges_is_refused_with_a_hint() {
    lab::require!(guest::inside());
    const NOBODY: u32 = 65534;
    let card = VfioCard::bind("igb0");
    let group = std::fs::read_link(format!("/sys/bus/pci/devices/{}/iommu_group", card.address));
    let group = group
        .unwrap()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let node = format!("/dev/vfio/{group}");
    refused(
        &finish(capture(&card.address).uid(NOBODY)),
        "ermission denied",
        &format!("chown $USER {node}"),
    );
    // The node is accessible, but no memory may be locked.
    std::os::unix::fs::chown(&node, Some(NOBODY), None).unwrap();
    let mut poor = Command::new("sh");
    poor.args([
        "-c",
        "ulimit -l 64 && exec \"$@\"",
        "sh",
        "barewire",
        "capture",
    ]);
    poor.args([
        &format!("vfio:{}", card.address),
        "-c",
        "1",
        "-w",
        "/dev/null",
    ]);
    let reported = finish(poor.uid(NOBODY));
    std::os::unix::fs::chown(&node, Some(0), None).unwrap();
    refused(
        &reported,
        "for the card",
        "the limit for locked memory is below",
    );
}

/// The value of a setting: the word in brackets, or everything.
fn chosen(file: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let word = text.split(['[', ']']).nth(1);
    word.unwrap_or(text.trim()).to_owned()
}

/// A machine without huge pages: none reserved, and none assembled from small ones; restored on
/// drop.
struct SmallPages(Vec<(&'static str, String)>);

impl SmallPages {
    fn only() -> SmallPages {
        let mut before = Vec::new();
        for (file, value) in [
            ("/proc/sys/vm/nr_hugepages", "0"),
            ("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "deny"),
        ] {
            before.push((file, chosen(file)));
            std::fs::write(file, value).unwrap();
            assert_eq!(chosen(file), value, "{file}");
        }
        SmallPages(before)
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        for (file, value) in &self.0 {
            let until = std::time::Instant::now() + LIMIT;
            // Memory may be fragmented: there are fewer huge pages then, without an error.
            while !std::fs::write(file, value).is_ok_and(|()| chosen(file) == *value) {
                if std::time::Instant::now() > until {
                    let now = chosen(file);
                    eprintln!("{file} was {value} and stays {now}");
                    assert!(std::thread::panicking(), "{file}: {now}, not {value}");
                    break;
                }
                let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn a_machine_without_huge_pages_uses_small_ones() {
    lab::require!(guest::inside());
    let _small = SmallPages::only();
    // It continues with small ones, and reports the cost.
    let peer = Peer::up("igb1", 1500);
    let mut stand = Stand::on(peer, VfioCard::bind("igb0"), "");
    let frames = fact(&stand.port, "frames");
    assert!(frames.contains("on small pages"), "{frames}");
    assert!(frames.contains("sysctl vm.nr_hugepages"), "{frames}");
    stand.wait_for_wire();
    stand.both_ways(300);
    stand.check_account();
}
