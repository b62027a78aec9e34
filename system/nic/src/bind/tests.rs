//! Binding of cards in a copy of sysfs.

use std::os::unix::fs::symlink;

use super::*;
use crate::cards_in;

/// A copy of `/sys`, `/proc` and `/run` with cards, in a directory that is deleted on drop.
struct Copy {
    place: Place,
    root: PathBuf,
}

impl Copy {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("bw-bind-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let place = Place {
            sys: root.join("sys"),
            proc: root.join("proc"),
            memory: root.join("run/barewire-nic"),
            is_live: false,
        };
        for folder in [
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers/igb",
            "sys/bus/pci/drivers/vfio-pci",
            "sys/module/vfio_pci",
            "sys/module/vfio_iommu_type1",
            "proc",
            "run",
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("sys/bus/pci/drivers_probe"), "").unwrap();
        Self { place, root }
    }

    /// Adds a function with a class, a group (0 means none) and a driver ("" means none).
    fn function(&self, address: &str, class: &str, group: u32, driver: &str) -> PciAddress {
        let bus = self.place.bus();
        let folder = bus.join("devices").join(address);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in [
            ("vendor", "0x8086\n"),
            ("device", "0x10c9\n"),
            ("class", class),
            ("driver_override", "(null)\n"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        if group != 0 {
            let members = self.place.sys.join(format!("groups/{group}/devices"));
            fs::create_dir_all(&members).unwrap();
            symlink(&folder, members.join(address)).unwrap();
            symlink(members.parent().unwrap(), folder.join("iommu_group")).unwrap();
        }
        if !driver.is_empty() {
            self.drive(address, driver);
        }
        address.parse().unwrap()
    }

    /// Does what the kernel does when it binds a driver.
    fn drive(&self, address: &str, driver: &str) {
        let bus = self.place.bus();
        let driver = bus.join("drivers").join(driver);
        fs::create_dir_all(&driver).unwrap();
        let link = bus.join("devices").join(address).join("driver");
        let _ = fs::remove_file(&link);
        let interfaces = bus.join("devices").join(address).join("net");
        if driver.ends_with(VFIO) {
            let _ = fs::remove_dir_all(interfaces);
        } else {
            fs::create_dir_all(interfaces.join("eth7")).unwrap();
        }
        symlink(driver, link).unwrap();
    }

    /// Executes a plan, with the effects that the kernel would produce after each step.
    fn carry_out(&self, plan: &Plan) -> Vec<String> {
        let address = plan.card.address.to_string();
        let bus = self.place.bus();
        let folder = bus.join("devices").join(&address);
        let mut done = Vec::new();
        for step in &plan.steps {
            done.push(step.to_string().replace(self.root.to_str().unwrap(), ""));
            plan.carry_out_step(step).unwrap();
            if let Step::Write { file, .. } = step {
                match file.file_name().unwrap().to_str().unwrap() {
                    "unbind" => fs::remove_file(folder.join("driver")).unwrap(),
                    "drivers_probe" => {
                        let allowed = fs::read_to_string(folder.join("driver_override")).unwrap();
                        match allowed.trim() {
                            // The driver that matches the id.
                            "" => self.drive(&address, "igb"),
                            driver => self.drive(&address, driver),
                        }
                    }
                    _ => {}
                }
            }
        }
        done
    }

    fn refusal(&self, address: PciAddress, owner: Owner) -> String {
        let error = plan(&self.place, address, owner, false).expect_err("refused");
        assert!(error.hint().is_some(), "{error}");
        error.to_string()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

const ETHERNET: &str = "0x020000\n";

#[test]
fn a_card_is_bound_and_bound_back_to_the_same_driver() {
    for former in ["igb", "ours-special", ""] {
        let copy = Copy::new(&format!("round-{former}"));
        let address = copy.function("0000:01:00.0", ETHERNET, 7, former);
        let there = plan(&copy.place, address, Owner::Vfio, false).unwrap();
        let device = "/sys/bus/pci/devices/0000:01:00.0";
        let mut expected = vec![
            format!("echo {former} > /run/barewire-nic/bind-0000:01:00.0"),
            format!("echo vfio-pci > {device}/driver_override"),
            format!("echo 0000:01:00.0 > {device}/driver/unbind"),
            "echo 0000:01:00.0 > /sys/bus/pci/drivers_probe".to_owned(),
        ];
        if former.is_empty() {
            expected.remove(2);
        }
        assert_eq!(copy.carry_out(&there), expected);
        assert_eq!(there.function.driver().as_deref(), Some(VFIO));
        // Once more there is nothing to do.
        assert!(
            plan(&copy.place, address, Owner::Vfio, false)
                .unwrap()
                .steps
                .is_empty()
        );

        let back = plan(&copy.place, address, Owner::Kernel, false).unwrap();
        let done = copy.carry_out(&back);
        let now = back.function.driver();
        if former.is_empty() {
            assert_eq!(now, None, "{done:?}");
        } else {
            assert_eq!(now.as_deref(), Some(former), "{done:?}");
            assert_eq!(done[3], format!("echo  > {device}/driver_override"));
        }
        let only = fs::read_to_string(back.function.dir().join("driver_override")).unwrap();
        assert_eq!(only.trim(), "", "every driver may take it again");
        assert!(!copy.place.former_file(address).exists());
    }
}

#[test]
fn a_half_finished_bind_is_known_the_next_time() {
    let copy = Copy::new("half-way");
    let address = copy.function("0000:01:00.0", ETHERNET, 7, "igb");
    let first = plan(&copy.place, address, Owner::Vfio, false).unwrap();
    // Killed after the override: it is taken back.
    for step in &first.steps[..2] {
        first.carry_out_step(step).unwrap();
    }
    let back = plan(&copy.place, address, Owner::Kernel, false).unwrap();
    copy.carry_out(&back);
    assert_eq!(back.function.driver_override(), None);
    assert_eq!(back.function.driver().as_deref(), Some("igb"));
    // Killed after unbinding: the second attempt still has the previous driver.
    for step in &first.steps[..3] {
        first.carry_out_step(step).unwrap();
    }
    fs::remove_file(first.function.dir().join("driver")).unwrap();
    let again = plan(&copy.place, address, Owner::Vfio, false).unwrap();
    copy.carry_out(&again);
    let back = plan(&copy.place, address, Owner::Kernel, false).unwrap();
    copy.carry_out(&back);
    assert_eq!(back.function.driver().as_deref(), Some("igb"));
}

#[test]
fn a_card_bound_by_another_program_returns_to_the_matching_driver() {
    let copy = Copy::new("unknown");
    let address = copy.function("0000:01:00.0", ETHERNET, 7, VFIO);
    let back = plan(&copy.place, address, Owner::Kernel, false).unwrap();
    assert_eq!(back.wanted, None);
    copy.carry_out(&back);
    assert_eq!(back.function.driver().as_deref(), Some("igb"));
    // What is remembered is no place to write other things from.
    copy.drive("0000:01:00.0", VFIO);
    records::write(&copy.place.former_file(address), "igb\nvfio\n/../..").unwrap();
    let back = plan(&copy.place, address, Owner::Kernel, false).unwrap();
    assert_eq!(back.wanted, None);
}

#[test]
fn devices_that_must_not_be_bound_are_refused() {
    let copy = Copy::new("refused");
    let disk = copy.function("0000:00:02.0", "0x010802\n", 1, "nvme");
    assert!(
        copy.refusal(disk, Owner::Vfio)
            .contains("not a network card (class 010802)")
    );
    let bare = copy.function("0000:00:03.0", ETHERNET, 0, "igb");
    assert!(copy.refusal(bare, Owner::Vfio).contains("no IOMMU"));
    let absent = "0000:00:1f.7".parse().unwrap();
    assert!(copy.refusal(absent, Owner::Vfio).contains("0000:00:1f.7"));

    let one = copy.function("0000:01:00.0", ETHERNET, 7, "igb");
    copy.function("0000:01:00.1", ETHERNET, 7, "igb");
    copy.function("0000:00:01.0", "0x060400\n", 7, "pcieport");
    let why = copy.refusal(one, Owner::Vfio);
    assert!(
        why.contains("group 7 also contains 0000:01:00.1, bound to igb"),
        "{why}"
    );
    assert!(plan(&copy.place, one, Owner::Vfio, true).is_ok(), "forced");
    copy.drive("0000:01:00.1", VFIO);
    assert!(
        plan(&copy.place, one, Owner::Vfio, false).is_ok(),
        "the other is free now"
    );

    let master = copy.function("0000:02:00.0", ETHERNET, 8, "igb");
    let folder = copy.place.bus().join("devices/0000:02:00.0");
    fs::write(folder.join("sriov_numvfs"), "2\n").unwrap();
    assert!(
        copy.refusal(master, Owner::Vfio)
            .contains("2 of its virtual functions")
    );
    fs::write(folder.join("sriov_numvfs"), "0\n").unwrap();
    fs::create_dir_all(copy.place.sys.join("class/net/eth7/upper_bond0")).unwrap();
    assert!(
        copy.refusal(master, Owner::Vfio)
            .contains("eth7 is part of bond0")
    );
    // Its interface is elsewhere: sysfs shows those of one namespace.
    fs::remove_dir(folder.join("net/eth7")).unwrap();
    let why = copy.refusal(master, Owner::Vfio);
    assert!(why.contains("another network namespace"), "{why}");
    assert!(
        plan(&copy.place, master, Owner::Vfio, true).is_ok(),
        "forced"
    );
}

#[test]
fn a_failed_bind_is_undone_as_far_as_possible() {
    let copy = Copy::new("undone");
    let address = copy.function("0000:01:00.0", ETHERNET, 7, "igb");
    let there = plan(&copy.place, address, Owner::Vfio, false).unwrap();
    // Nothing acts as the kernel here: the card keeps its driver, so it does not get the requested
    // one.
    let error = there.carry_out().unwrap_err();
    assert!(
        error.to_string().contains("bound to igb instead"),
        "{error}"
    );
    assert_eq!(there.function.driver_override(), None, "taken back");
    assert!(!copy.place.former_file(address).exists(), "forgotten");
    assert!(!error.hint().unwrap().contains("undone"), "{error}");
    // The driver let go, and none comes: that is reported, and known the next time.
    let folder = there.function.dir();
    let there = plan(&copy.place, address, Owner::Vfio, false).unwrap();
    for step in &there.steps[..2] {
        there.carry_out_step(step).unwrap();
    }
    fs::remove_file(folder.join("driver")).unwrap();
    let again = plan(&copy.place, address, Owner::Vfio, false).unwrap();
    let error = again.carry_out().unwrap_err();
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("nic bind kernel 0000:01:00.0"), "{hint}");
    assert_eq!(
        again.function.driver_override(),
        None,
        "the next step was taken"
    );
    assert!(copy.place.former_file(address).exists(), "remembered");
}

#[test]
fn a_card_in_use_by_a_process_stays_bound() {
    let copy = Copy::new("user");
    let address = copy.function("0000:01:00.0", ETHERNET, 7, VFIO);
    let process = copy.place.proc.join("4711");
    fs::create_dir_all(process.join("fd")).unwrap();
    fs::write(process.join("comm"), "barewire\n").unwrap();
    symlink("/dev/vfio/vfio", process.join("fd/3")).unwrap();
    assert!(plan(&copy.place, address, Owner::Kernel, false).is_ok());
    symlink("/dev/vfio/7", process.join("fd/4")).unwrap();
    let why = copy.refusal(address, Owner::Kernel);
    assert!(why.contains("process 4711 (barewire) uses it"), "{why}");
}

#[test]
fn absent_modules_are_loaded_or_reported() {
    let copy = Copy::new("modules");
    let address = copy.function("0000:01:00.0", ETHERNET, 7, "igb");
    for folder in ["sys/module/vfio_pci", "sys/bus/pci/drivers/vfio-pci"] {
        fs::remove_dir_all(copy.root.join(folder)).unwrap();
    }
    let plan = plan(&copy.place, address, Owner::Vfio, false).unwrap();
    assert_eq!(plan.steps[0], Step::Load(VFIO));
    // modprobe on this machine does not add a driver to the copy.
    let error = plan.carry_out().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("nothing was changed"))
    );
    assert_eq!(plan.function.driver().as_deref(), Some("igb"));
}

#[test]
fn cards_are_found_by_address_and_interface() {
    let copy = Copy::new("list");
    copy.function("0000:00:02.0", "0x010802\n", 1, "nvme");
    let one = copy.function("0000:01:00.0", ETHERNET, 7, "igb");
    let other = copy.function("0000:01:00.1", ETHERNET, 7, "");
    let device = copy.place.bus().join("devices/0000:01:00.0");
    fs::create_dir_all(device.join("net/eth7")).unwrap();
    fs::create_dir_all(copy.place.sys.join("class/net/eth7")).unwrap();
    symlink(&device, copy.place.sys.join("class/net/eth7/device")).unwrap();
    let cards = cards_in(&copy.place).unwrap();
    assert_eq!(
        cards.iter().map(|card| card.address).collect::<Vec<_>>(),
        [one, other]
    );
    assert_eq!(cards[0].interfaces, ["eth7"]);
    assert_eq!(cards[0].companions, [(other, None)]);
    assert_eq!((cards[0].id, cards[0].group), ((0x8086, 0x10c9), Some(7)));
    assert_eq!(find(&copy.place, "01:00.0").unwrap(), one);
    assert_eq!(find(&copy.place, "eth7").unwrap(), one);
    for absent in ["eth8", "", "../eth7", "01:00.9"] {
        let error = find(&copy.place, absent).unwrap_err();
        assert!(error.hint().is_some(), "{absent}: {error}");
    }
}
