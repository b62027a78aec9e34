//! Checks the requirements of user-space drivers: an IOMMU, and the kernel's VFIO
//! (`Documentation/ABI/testing/sysfs-class-iommu`, `Documentation/driver-api/vfio.rst` of the
//! kernel).

use std::fs;
use std::path::Path;

use super::Finding;

pub(super) fn iommu() -> Finding {
    iommu_in(Path::new("/sys"))
}

pub(super) fn vfio() -> Finding {
    vfio_in(Path::new("/sys"), Path::new("/dev"))
}

/// Sorted names in a directory; empty if it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn iommu_in(sys: &Path) -> Finding {
    let units = names(&sys.join("class/iommu"));
    let groups = sys.join("kernel/iommu_groups");
    // VFIO creates groups of its own for cards that are not behind an IOMMU.
    let is_real = |name: &String| {
        let kind = fs::read_to_string(groups.join(name).join("name"));
        !kind.is_ok_and(|kind| kind.trim() == "vfio-noiommu")
    };
    let groups = names(&groups).iter().filter(|name| is_real(name)).count();
    let word = if groups == 1 { "group" } else { "groups" };
    match (units.first(), groups) {
        (None, 0) => Finding::No(
            "there is no IOMMU, or it is disabled".into(),
            "enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or \
             amd_iommu=on; a virtual machine needs an emulated IOMMU"
                .into(),
        ),
        (Some(unit), 0) => Finding::No(
            format!("{unit} is present, but no device uses it"),
            "boot with intel_iommu=on or amd_iommu=on, and without iommu=off".into(),
        ),
        (Some(unit), _) => {
            let others = match units.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            Finding::Yes(format!("{unit}{others}, {groups} {word} of devices"))
        }
        (None, _) => Finding::Yes(format!("{groups} {word} of devices")),
    }
}

fn vfio_in(sys: &Path, dev: &Path) -> Finding {
    let driver = sys.join("bus/pci/drivers/vfio-pci");
    if !driver.is_dir() {
        return Finding::No(
            "the vfio-pci driver is not loaded".into(),
            "modprobe vfio-pci vfio_iommu_type1 (`barewire nic bind vfio` does this)".into(),
        );
    }
    let by_type1 = dev.join("vfio/vfio").exists() && sys.join("module/vfio_iommu_type1").is_dir();
    // Functions are listed there in any case; they have a node only if iommufd supports them.
    let functions = sys.join("class/vfio-dev");
    let has_node = |name: &String| functions.join(name).join("dev").exists();
    let by_iommufd = dev.join("iommu").exists() && names(&functions).iter().any(has_node);
    let ways = match (by_type1, by_iommufd) {
        (true, true) => "type 1 and iommufd",
        (true, false) => "type 1",
        (false, true) => "iommufd",
        (false, false) => {
            return Finding::No(
                "vfio-pci is loaded, but neither VFIO type 1 nor iommufd is available".into(),
                "modprobe vfio_iommu_type1; a container needs /dev/vfio passed in; iommufd \
                 support shows only once a card is bound"
                    .into(),
            );
        }
    };
    // In the driver's directory its functions are links named by their addresses.
    let bound = names(&driver);
    let bound = bound.iter().filter(|name| name.contains(':')).count();
    let cards = if bound == 1 { "function" } else { "functions" };
    Finding::Yes(format!("vfio-pci through {ways}, bound to {bound} {cards}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requirements_are_named_with_a_fix() {
        let root = std::env::temp_dir().join(format!("barewire-doctor-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (sys, dev) = (root.join("sys"), root.join("dev"));
        let make = |path: &Path| fs::create_dir_all(path).unwrap();
        let no = |finding, what: &str, hint: &str| match finding {
            Finding::No(why, next) => {
                assert!(why.contains(what) && next.contains(hint), "{why}: {next}");
            }
            other => panic!("{other:?}"),
        };
        no(iommu_in(&sys), "no IOMMU", "firmware");
        make(&sys.join("class/iommu/dmar0"));
        no(iommu_in(&sys), "dmar0", "intel_iommu=on");
        make(&sys.join("kernel/iommu_groups/0"));
        let found = iommu_in(&sys);
        assert_eq!(found, Finding::Yes("dmar0, 1 group of devices".into()));
        make(&sys.join("kernel/iommu_groups/1"));
        let without = sys.join("kernel/iommu_groups/2");
        make(&without);
        fs::write(without.join("name"), "vfio-noiommu\n").unwrap();
        make(&sys.join("class/iommu/dmar1"));
        let found = iommu_in(&sys);
        let two = "dmar0 and 1 more, 2 groups of devices";
        assert_eq!(found, Finding::Yes(two.into()));

        no(vfio_in(&sys, &dev), "not loaded", "modprobe vfio-pci");
        let driver = sys.join("bus/pci/drivers/vfio-pci");
        make(&driver.join("0000:01:00.0"));
        fs::write(driver.join("new_id"), "").unwrap();
        // The node exists before its module is loaded.
        make(&dev.join("vfio"));
        fs::write(dev.join("vfio/vfio"), "").unwrap();
        no(vfio_in(&sys, &dev), "neither", "vfio_iommu_type1");
        make(&sys.join("module/vfio_iommu_type1"));
        let one = "vfio-pci through type 1, bound to 1 function";
        assert_eq!(vfio_in(&sys, &dev), Finding::Yes(one.into()));
        // Functions are listed even without iommufd.
        let function = sys.join("class/vfio-dev/vfio0");
        make(&function);
        fs::write(dev.join("iommu"), "").unwrap();
        assert_eq!(vfio_in(&sys, &dev), Finding::Yes(one.into()));
        fs::write(function.join("dev"), "").unwrap();
        let both = "vfio-pci through type 1 and iommufd, bound to 1 function";
        assert_eq!(vfio_in(&sys, &dev), Finding::Yes(both.into()));
        fs::remove_dir_all(root).unwrap();
    }
}
