//! In the guest: `barewire nic` on real cards. A card's driver is read from sysfs.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::guest;
use lab::process::{Finished, Process, Signal};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// An unused card, its driver, and its interface.
const CARD: &str = "0000:03:00.0";
const DRIVER: &str = "e1000e";

fn folder(card: &str) -> PathBuf {
    PathBuf::from("/sys/bus/pci/devices").join(card)
}

fn driver(card: &str) -> Option<String> {
    let target = std::fs::read_link(folder(card).join("driver")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// The interface of a card; its name changes when it returns. That of a virtio device is below the
/// device on the virtio bus.
fn interface(card: &str) -> Option<String> {
    let below = std::fs::read_dir(folder(card)).ok()?.flatten();
    let on_virtio = below.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with("virtio"))
    });
    let mut folders: Vec<_> = on_virtio.map(|entry| entry.path()).collect();
    folders.push(folder(card));
    folders.iter().find_map(|folder| {
        let mut entries = std::fs::read_dir(folder.join("net")).ok()?;
        entries.next()?.ok()?.file_name().into_string().ok()
    })
}

/// Waits for the interface of a returned card, and restores its name.
fn name_again(card: &str, name: &str) {
    wait_for("the interface", || interface(card).is_some());
    let now = interface(card).unwrap();
    if now != name {
        ip(&["link", "set", &now, "name", name]);
    }
}

fn spawn(args: &[&str]) -> Process {
    Process::spawn(Command::new("barewire").arg("nic").args(args)).unwrap()
}

fn nic(args: &[&str]) -> Finished {
    spawn(args).wait(LIMIT).unwrap()
}

/// Kills processes by name, as pkill(1) does; returns how many.
fn kill_by_name(part: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter(|entry| {
        let name = std::fs::read_to_string(entry.path().join("comm"));
        name.is_ok_and(|name| name.contains(part))
    });
    let killed = processes.filter(|entry| {
        let pid = entry.file_name().into_string().unwrap().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).is_ok()
    });
    killed.count()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status().unwrap();
    assert!(status.success(), "ip {args:?}");
}

#[test]
fn cards_are_listed_with_driver_and_group() {
    lab::require!(guest::inside());
    let text = nic(&["list", "--json"]).checked().unwrap().stdout;
    let all: Value = serde_json::from_str(&text).unwrap();
    let cards = all["cards"].as_array().unwrap();
    for (address, vendor, device, user_mode) in [
        ("0000:01:00.0", "8086", "10c9", true),
        ("0000:03:00.0", "8086", "10d3", false),
    ] {
        let card = cards.iter().find(|card| card["address"] == address);
        let card = card.unwrap_or_else(|| panic!("no {address} in {all}"));
        assert_eq!(
            (&card["vendor"], &card["device"]),
            (&vendor.into(), &device.into())
        );
        assert_eq!(card["driver"].as_str(), driver(address).as_deref());
        assert!(card["iommu_group"].is_u64(), "{card}");
        assert!(card["user_mode_driver"].is_string() || !user_mode, "{card}");
        assert_eq!(card["shared_with"].as_array().unwrap().len(), 0, "{card}");
    }
}

/// In sequence: all are about the same card.
#[test]
fn a_card_is_bound_and_bound_back() {
    lab::require!(guest::inside());
    assert_eq!(driver(CARD).as_deref(), Some(DRIVER));
    // Nothing changes if nothing is to be done.
    let reported = nic(&["bind", "vfio", CARD, "--dry-run"]).checked().unwrap();
    assert!(
        reported.stdout.contains("driver_override"),
        "{}",
        reported.stdout
    );
    assert_eq!(driver(CARD).as_deref(), Some(DRIVER));

    let name = interface(CARD).unwrap();
    stays_while_in_use(&name);
    // Bound and bound back.
    nic(&["bind", "vfio", &name]).checked().unwrap();
    assert_eq!(driver(CARD).as_deref(), Some("vfio-pci"));
    assert_eq!(interface(CARD), None);
    nic(&["bind", "kernel", CARD]).checked().unwrap();
    assert_eq!(driver(CARD).as_deref(), Some(DRIVER));
    wait_for("the interface", || interface(CARD).is_some());

    is_back_after_a_command();
    is_back_after_a_kill();
    // Until it is stopped, and until it is killed.
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut holder = spawn(&["bind", "vfio", CARD, "--until-exit"]);
        holder.wait_stderr("bind it back", LIMIT).unwrap();
        assert_eq!(driver(CARD).as_deref(), Some("vfio-pci"));
        holder.stop(signal, LIMIT).unwrap();
        wait_for("the former driver", || {
            driver(CARD).as_deref() == Some(DRIVER)
        });
    }
    name_again(CARD, &name);
}

/// A card with an address or the default route is refused.
fn stays_while_in_use(name: &str) {
    ip(&["link", "set", name, "up"]);
    ip(&["address", "add", "192.0.2.1/24", "dev", name]);
    let refused = nic(&["bind", "vfio", name]);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("has the address 192.0.2.1"),
        "{}",
        refused.stderr
    );
    ip(&["route", "add", "default", "via", "192.0.2.2"]);
    let refused = nic(&["bind", "vfio", CARD]);
    assert!(
        refused.stderr.contains("default route"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("hint: --force"),
        "{}",
        refused.stderr
    );
    ip(&["address", "flush", "dev", name]);
}

/// For as long as a command runs, whose exit code is passed on.
fn is_back_after_a_command() {
    let script = format!("readlink /sys/bus/pci/devices/{CARD}/driver; exit 7");
    let ran = nic(&["bind", "vfio", CARD, "--run", "sh", "-c", &script]);
    assert_eq!(ran.code(), Some(7), "{}", ran.stderr);
    assert!(ran.stdout.contains("vfio-pci"), "{}", ran.stdout);
    assert_eq!(driver(CARD).as_deref(), Some(DRIVER), "{}", ran.stderr);

    // A command with a signal handler exits in its own way; one without is ended by the signal.
    let script = "trap 'echo reported; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    for (script, code, printed) in [
        (script, 5, "reported"),
        ("echo ready; exec sleep 1000", 143, ""),
    ] {
        let mut holder = spawn(&["bind", "vfio", CARD, "--run", "sh", "-c", script]);
        holder.wait_stdout("ready", LIMIT).unwrap();
        assert_eq!(driver(CARD).as_deref(), Some("vfio-pci"));
        let ended = holder.stop(Signal::SIGTERM, LIMIT).unwrap();
        assert_eq!(ended.code(), Some(code), "{}", ended.stderr);
        assert!(ended.stdout.contains(printed), "{}", ended.stdout);
        // The holder does not end before the card is back.
        assert_eq!(driver(CARD).as_deref(), Some(DRIVER), "{}", ended.stderr);
    }
}

/// All processes of this name are killed; the helper that returns the card has another name. A
/// command that has nothing to do with the card continues.
fn is_back_after_a_kill() {
    for run in [false, true] {
        let script = ["--run", "sh", "-c", "echo ready; exec sleep 5"];
        let more = if run { &script[..] } else { &["--until-exit"] };
        let mut holder = spawn(&[&["bind", "vfio", CARD], more].concat());
        match run {
            true => holder.wait_stdout("ready", LIMIT).unwrap(),
            false => holder.wait_stderr("bind it back", LIMIT).unwrap(),
        }
        assert_eq!(driver(CARD).as_deref(), Some("vfio-pci"));
        assert_eq!(kill_by_name("barewire"), 1, "one is called so");
        let ended = holder.wait(LIMIT).unwrap();
        assert_eq!(ended.signal(), Some(Signal::SIGKILL), "{}", ended.stderr);
        wait_for("the former driver", || {
            driver(CARD).as_deref() == Some(DRIVER)
        });
    }
}

/// A card that the host depends on is bound with `--force` only, and is bound back.
#[test]
fn the_card_of_the_default_route_is_bound_with_force_only() {
    lab::require!(guest::inside());
    const CARD: &str = "0000:00:04.0";
    const DRIVER: &str = "e1000";
    let name = interface(CARD).unwrap();
    let live_on_it = || {
        ip(&["link", "set", &name, "up"]);
        ip(&["address", "add", "192.0.2.1/24", "dev", &name]);
        ip(&["route", "add", "default", "via", "192.0.2.2"]);
    };
    let routes = || {
        let output = Command::new("ip")
            .args(["route", "show", "default"])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    live_on_it();
    for port in [false, true] {
        let reported = match port {
            true => {
                let port = format!("vfio:{CARD}?bind=yes");
                let mut command = Command::new("barewire");
                command.args(["capture", &port, "-w", "/dev/null"]);
                Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
            }
            false => nic(&["bind", "vfio", CARD]),
        };
        assert_eq!(reported.code(), Some(1), "{}", reported.stderr);
        assert!(
            reported.stderr.contains("default route"),
            "{}",
            reported.stderr
        );
        assert_eq!(driver(CARD).as_deref(), Some(DRIVER));
        assert!(routes().contains(&name), "{}", routes());
    }

    nic(&["bind", "vfio", CARD, "--force"]).checked().unwrap();
    assert_eq!(driver(CARD).as_deref(), Some("vfio-pci"));
    assert_eq!(interface(CARD), None);
    assert_eq!(
        routes(),
        "",
        "the kernel takes the route away with the interface"
    );
    nic(&["bind", "kernel", CARD]).checked().unwrap();
    assert_eq!(driver(CARD).as_deref(), Some(DRIVER));
    name_again(CARD, &name);

    // And for a while only.
    live_on_it();
    let mut holder = spawn(&["bind", "vfio", CARD, "--force", "--until-exit"]);
    holder.wait_stderr("bind it back", LIMIT).unwrap();
    assert_eq!(driver(CARD).as_deref(), Some("vfio-pci"));
    holder.stop(Signal::SIGINT, LIMIT).unwrap();
    wait_for("the former driver", || {
        driver(CARD).as_deref() == Some(DRIVER)
    });
    name_again(CARD, &name);
    assert_eq!(routes(), "");
}

#[test]
fn a_port_binds_its_card_while_open() {
    lab::require!(guest::inside());
    for (card, kernel) in [
        ("0000:02:00.0", "igb"),
        ("0000:00:04.0", "e1000"),
        ("0000:05:00.0", "virtio-pci"),
    ] {
        let name = interface(card).unwrap();
        let port = format!("vfio:{card}?bind=yes");
        for signal in [Signal::SIGINT, Signal::SIGKILL] {
            assert_eq!(driver(card).as_deref(), Some(kernel));
            let mut command = Command::new("barewire");
            command.args(["capture", &port, "-w", "/dev/null"]);
            let mut capture = Process::spawn(&mut command).unwrap();
            capture.wait_stderr("listening on", LIMIT).unwrap();
            assert_eq!(driver(card).as_deref(), Some("vfio-pci"), "{card}");
            assert_eq!(interface(card), None, "{card}");
            let ended = capture.stop(signal, LIMIT).unwrap();
            if signal == Signal::SIGINT {
                ended.checked().unwrap();
            }
            wait_for("the former driver", || {
                driver(card).as_deref() == Some(kernel)
            });
            wait_for("the interface", || interface(card).is_some());
        }
        name_again(card, &name);
    }
}

#[test]
fn others_are_refused() {
    lab::require!(guest::inside());
    for (args, why) in [
        (["bind", "vfio", "0000:00:1f.2"], "not a network card"),
        (
            ["bind", "vfio", "0000:00:1e.7"],
            "no device at this address",
        ),
        (["bind", "vfio", "no-such-if"], "PCI address"),
    ] {
        let refused = nic(&args);
        assert_eq!(refused.code(), Some(1), "{args:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(why), "{args:?}: {}", refused.stderr);
        assert!(
            refused.stderr.contains("hint: "),
            "{args:?}: {}",
            refused.stderr
        );
    }
}
