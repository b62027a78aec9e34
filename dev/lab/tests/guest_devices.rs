//! In the guest: `barewire devices` and `barewire doctor` on real drivers. Their output is compared
//! with QEMU's configuration, and with the result of opening the port.

use std::process::Command;

use lab::guest;
use port::PortOptions;
use serde_json::Value;

/// Interface, driver, RX queues in use, maximum number of RX queues.
const CARDS: &[(&str, &str, u64, u64)] = &[
    ("igb0", "igb", 2, 8),
    ("igb1", "igb", 2, 8),
    ("e1000-0", "e1000", 1, 1),
    ("e1000-1", "e1000", 1, 1),
    ("e1000e-0", "e1000e", 1, 1),
    ("e1000e-1", "e1000e", 1, 1),
    ("virtio0", "virtio_net", 2, 2),
    ("virtio1", "virtio_net", 2, 2),
];

/// Words of `devices`, and the ports that they imply.
const MODES: &[(&str, &str)] = &[
    ("native zero-copy", "attach=native&bind=zero-copy"),
    ("native copy", "attach=native&bind=copy"),
    ("generic copy", "attach=generic&bind=copy"),
];

fn barewire(args: &[&str]) -> Value {
    let output = Command::new("barewire").args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!text.is_empty(), "{args:?}: {errors}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn devices_names_every_card_and_its_driver() {
    lab::require!(guest::inside(), guest::two_queues());
    let all = barewire(&["devices", "--json"]);
    let interfaces = all["interfaces"].as_array().unwrap();
    for (name, driver, queues, queue_max) in CARDS {
        let card = interfaces.iter().find(|card| card["name"] == *name);
        let card = card.unwrap_or_else(|| panic!("no {name} in {all}"));
        assert_eq!(card["driver"]["name"], *driver, "{card}");
        assert_eq!(card["rx_queues"], *queues, "{card}");
        let bus = card["driver"]["bus"].as_str().unwrap();
        let device = std::fs::canonicalize(format!("/sys/class/net/{name}/device")).unwrap();
        // A virtio device is below its PCI device.
        assert!(device.to_string_lossy().contains(bus), "{device:?}: {card}");
        if *queue_max > 1 {
            assert_eq!(card["channels"]["combined_max"], *queue_max, "{card}");
        }
        let address = std::fs::read_to_string(format!("/sys/class/net/{name}/address")).unwrap();
        assert_eq!(card["address"], address.trim(), "{card}");
        assert_eq!(card["default_route"], false, "{card}");
        assert_eq!(card["xdp"].as_array().unwrap().len(), 0, "{card}");
    }
}

#[test]
fn exactly_the_modes_listed_by_devices_can_be_opened() {
    lab::require!(guest::inside());
    let all = barewire(&["devices", "--json"]);
    let interfaces = all["interfaces"].as_array().unwrap();
    for (name, ..) in CARDS {
        let up = Command::new("ip")
            .args(["link", "set", name, "up"])
            .status();
        assert!(up.unwrap().success());
        let card = interfaces
            .iter()
            .find(|card| card["name"] == *name)
            .unwrap();
        let reported: Vec<&str> = card["attach_modes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mode| mode.as_str().unwrap())
            .collect();
        let mut opened = Vec::new();
        for (words, options) in MODES {
            match port::open(&format!("afxdp:{name}?{options}"), &PortOptions::default()) {
                Ok(_) => opened.push(*words),
                Err(error) => println!("{name}: {words}: {error}"),
            }
        }
        println!("{name}: {opened:?}");
        assert_eq!(reported, opened, "{name}");
    }
}

#[test]
fn doctor_describes_the_guest() {
    lab::require!(guest::inside());
    let all = barewire(&["doctor", "--json"]);
    let state = |check: &str| {
        let rows = all["checks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["check"] == check);
        row.unwrap_or_else(|| panic!("no {check} in {all}")).clone()
    };
    for check in [
        "kernel",
        "privileges",
        "AF_PACKET",
        "AF_XDP",
        "BPF",
        "XDP features",
        "IOMMU",
        "VFIO",
    ] {
        assert_eq!(state(check)["state"], "yes", "{}", state(check));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let reported = state("kernel")["text"].as_str().unwrap().to_owned();
    assert!(reported.contains(&version), "{reported} on {release}");
    // Intel's, emulated, with every card in its own group except for two that share one on purpose;
    // and one card for a process.
    let groups = std::fs::read_dir("/sys/kernel/iommu_groups")
        .unwrap()
        .count();
    let reported = state("IOMMU")["text"].as_str().unwrap().to_owned();
    assert!(groups >= CARDS.len(), "{groups}");
    assert!(
        reported.contains("dmar") && reported.contains(&format!("{groups} groups")),
        "{reported}"
    );
    let reported = state("VFIO")["text"].as_str().unwrap().to_owned();
    assert!(reported.contains("through type 1"), "{reported}");
    // 64 were requested on the kernel's command line.
    assert_eq!(state("huge pages")["state"], "yes", "{all}");
    assert!(
        state("processors")["text"]
            .as_str()
            .unwrap()
            .starts_with('2')
    );
}
