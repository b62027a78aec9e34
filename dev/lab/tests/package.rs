//! The results of `cargo xtask package`, installed, started, upgraded and purged on a temporary
//! copy of this machine: an overlay over its root in a mount namespace. The program in it is that
//! of the tests, since a release build takes longer than all tests; it is stripped and packed the
//! same way.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::export::Folder;
use lab::process::{Process, barewire, xtask};
use lab::{Finished, require, skip};

/// Packing takes half a minute on two busy processors.
const LIMIT: Duration = Duration::from_secs(300);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> Finished {
    Process::spawn(command).unwrap().wait(LIMIT).unwrap()
}

/// Runs a program with these arguments; returns its output.
fn printed(program: &str, args: &[&str]) -> String {
    run(Command::new(program).args(args))
        .checked()
        .unwrap()
        .stdout
}

/// The packages, built once for all tests; the directory is below `target`, for the next run to
/// use.
fn packages() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let xtask = xtask().unwrap();
        let out = xtask.parent().unwrap().join("package-test");
        let _ = std::fs::remove_dir_all(&out);
        let mut command = Command::new(&xtask);
        command.args(["package", "deb", "tarball", "image", "--binary"]);
        command.arg(barewire().unwrap()).arg("--out").arg(&out);
        run(&mut command).checked().unwrap();
        out
    });
    made.clone()
}

/// The only result with this extension.
fn result(ending: &str) -> PathBuf {
    let mut found = std::fs::read_dir(packages())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found = found.find(|path| path.to_string_lossy().ends_with(ending));
    found.unwrap_or_else(|| panic!("no *{ending} in {}", packages().display()))
}

/// Checks that an overlay over this machine's root is possible, and that it was installed by dpkg.
fn overlay() -> Result<(), skip::Missing> {
    skip::lab()?;
    skip::program("dpkg", "dpkg")?;
    let try_it = "d=$(mktemp -d); mount -t tmpfs none $d; mkdir $d/u $d/w $d/c; \
                  mount -t overlay -o lowerdir=/,upperdir=$d/u,workdir=$d/w none $d/c";
    let tried = run(Command::new("unshare").args(["--mount", "sh", "-euc", try_it]));
    match tried.success() {
        true => Ok(()),
        false => Err(skip::Missing::Machine(
            "an overlay file system over /".into(),
        )),
    }
}

/// Runs a script as root of a copy of this machine, with its own network. `$1` is a directory in it
/// with these files.
fn in_copy(files: &[&Path], script: &str) -> String {
    let folder = Folder::new("package-root");
    let outer = r#"
        cd /
        mount -t tmpfs none "$1"
        mkdir "$1/upper" "$1/work" "$1/copy"
        mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" none "$1/copy"
        mount -t proc none "$1/copy/proc"
        mount --bind /dev "$1/copy/dev"
        mkdir "$1/copy/given"
        copy=$1/copy script=$2
        shift 2
        cp -- "$@" "$copy/given"
        ip link set lo up
        exec chroot "$copy" sh -euc "cd /given; $script" sh
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
    command
        .args(["sh", "-euc", outer, "sh", folder.path(), script])
        .args(files);
    run(&mut command).checked().unwrap().stdout
}

/// The package with another version and another default configuration.
fn upgraded(folder: &Folder) -> PathBuf {
    let (deb, tree) = (result(".deb"), folder.0.join("tree"));
    let tree = tree.to_str().unwrap();
    printed("dpkg-deb", &["-R", deb.to_str().unwrap(), tree]);
    let control = Path::new(tree).join("DEBIAN/control");
    let text = std::fs::read_to_string(&control).unwrap();
    let version = text
        .lines()
        .find(|line| line.starts_with("Version: "))
        .unwrap();
    std::fs::write(&control, text.replace(version, "Version: 99.0")).unwrap();
    let example = Path::new(tree).join("etc/barewire/flows-example.toml");
    let text = std::fs::read_to_string(&example).unwrap();
    std::fs::write(&example, format!("{text}\n# of version 99\n")).unwrap();
    let new = folder.0.join("barewire_99.deb");
    printed("dpkg-deb", &["-Zgzip", "-b", tree, new.to_str().unwrap()]);
    new
}

#[test]
fn the_debian_package_is_installed_started_upgraded_and_purged() {
    require!(overlay());
    require!(skip::program("ping", "iputils-ping"));
    require!(skip::program("systemd-analyze", "systemd"));
    let (old, folder) = (result(".deb"), Folder::new("package-upgrade"));
    let new = upgraded(&folder);
    let script = r#"
        mv barewire_99.deb new
        dpkg --purge barewire >/dev/null 2>&1 || true
        dpkg -i barewire_*.deb
        barewire --version
        barewire doctor >/dev/null
        for page in barewire barewire-flows barewire-nic-bind barewire-flows-query; do
            test -s "/usr/share/man/man1/$page.1.gz"
        done
        bash -euc 'source /usr/share/bash-completion/completions/barewire; complete -p barewire'

        for unit in barewire-flows@eth0 barewire-cluster@ids; do
            systemd-analyze verify --man=no --recursive-errors=no "$unit.service" 2>&1 |
                grep barewire && exit 1
        done

        : started, by the command of the unit and a configuration of the administrator
        cat > /etc/barewire/flows-lo.toml <<END
port = "lo"
count = 3
export = ["json:/var/lib/barewire/flows.json"]
END
        mkdir -p /var/lib/barewire
        timeout 120 ping -q 127.0.0.1 >/dev/null &
        ping=$!
        start=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/barewire-flows@.service)
        timeout 120 $(echo "$start" | sed 's/%i/lo/') 2>&1
        kill $ping
        grep -q 127.0.0.1 /var/lib/barewire/flows.json
        echo METERED

        : upgraded, with a configuration that was changed here and in the package
        echo '# mine' >> /etc/barewire/flows-example.toml
        dpkg -i --force-confdef new
        dpkg-query -W -f '${Version}\n' barewire
        grep -q '# mine' /etc/barewire/flows-example.toml
        grep -q '# of version 99' /etc/barewire/flows-example.toml.dpkg-dist
        echo KEPT

        dpkg --remove barewire
        test ! -e /usr/bin/barewire
        grep -q '# mine' /etc/barewire/flows-example.toml
        dpkg --purge barewire
        test -e /var/lib/barewire/flows.json
        test -e /etc/barewire/flows-lo.toml
        rm -r /var/lib/barewire /etc/barewire
        echo LEFT: $(find /etc /usr /var /lib -xdev -name '*barewire*' \
            -not -path '/usr/local/*' -not -path '*/cargo/*')
    "#;
    let printed = in_copy(&[&old, &new], script);
    let version = format!("barewire {}\n", env!("CARGO_PKG_VERSION"));
    for part in [version.as_str(), "METERED\n", "99.0\n", "KEPT\n", "LEFT:\n"] {
        assert!(printed.contains(part), "{part:?} is not in\n{printed}");
    }
}

#[test]
fn lintian_finds_nothing_in_the_debian_package() {
    require!(skip::program("dpkg", "dpkg"));
    require!(skip::program("lintian", "lintian"));
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on", "error,warning"]);
    // The maintainer must be set by whoever builds the package; there is no default.
    command.args(["--suppress-tags", "bogus-mail-host"]);
    let finished = run(command.arg(result(".deb")));
    let all = format!("{}{}", finished.stdout, finished.stderr);
    assert!(finished.success(), "{all}");
    let found = |line: &&str| line.starts_with("E:") || line.starts_with("W:");
    assert_eq!(all.lines().find(found), None, "{all}");
}

/// The debug information belongs to the program, which has none.
#[test]
fn debug_information_is_next_to_the_program() {
    require!(skip::program("dpkg", "dpkg"));
    require!(skip::program("readelf", "binutils"));
    let file = |name: &str| packages().join(name).to_str().unwrap().to_owned();
    let (program, debug) = (file("barewire"), file("barewire.debug"));
    let sections = |file: &str| printed("readelf", &["--wide", "--sections", file]);
    let of_program = sections(&program);
    assert!(of_program.contains(".gnu_debuglink"), "{of_program}");
    assert!(!of_program.contains(".debug_line"), "{of_program}");
    assert!(sections(&debug).contains(".debug_line"));
    let link = printed("readelf", &["-p", ".gnu_debuglink", &program]);
    assert!(link.contains("barewire.debug"), "{link}");
    let id = |file: &str| {
        let notes = printed("readelf", &["--notes", file]);
        let id = notes
            .lines()
            .find_map(|line| line.trim().strip_prefix("Build ID: "));
        id.unwrap_or_else(|| panic!("{notes}")).to_owned()
    };
    assert_eq!(id(&program), id(&debug));
    let packed = std::fs::metadata(&program).unwrap().len();
    let whole = std::fs::metadata(barewire().unwrap()).unwrap().len();
    assert!(packed < whole / 2, "{packed} of {whole} bytes");
}

#[test]
fn the_tarball_runs_where_it_is_unpacked() {
    require!(skip::program("dpkg", "dpkg"));
    let folder = Folder::new("package-tarball");
    let tarball = result(".tar.gz");
    let args = [
        "-xzf",
        tarball.to_str().unwrap(),
        "--strip-components=1",
        "-C",
        folder.path(),
    ];
    printed("tar", &args);
    let program = folder.0.join("bin/barewire");
    let version = printed(program.to_str().unwrap(), &["--version"]);
    assert_eq!(version, format!("barewire {}\n", env!("CARGO_PKG_VERSION")));
    for file in [
        "share/man/man1/barewire-nic-bind.1.gz",
        "share/barewire/grafana/barewire.json",
        "share/doc/barewire/LICENSE-MIT",
        "share/doc/barewire/flows-example.toml",
    ] {
        assert!(folder.0.join(file).is_file(), "{file}");
    }
    for service in ["barewire-flows@.service", "barewire-cluster@.service"] {
        let unit = folder.0.join("lib/systemd/system").join(service);
        let unit = std::fs::read_to_string(unit).unwrap();
        let start = "ExecStart=/usr/local/bin/barewire ";
        assert!(unit.contains(start), "{unit}");
    }
    let licences = folder.0.join("share/doc/barewire/THIRD-PARTY-LICENSES");
    let licences = std::fs::read_to_string(licences).unwrap();
    assert!(licences.contains("rustls ") && licences.contains("Apache License"));
}

/// skopeo checks digests and manifests, and umoci unpacks layers to a root in which the program
/// runs, filter expressions included.
#[test]
fn the_container_image_is_valid_and_runs() {
    require!(skip::root());
    require!(skip::program("skopeo", "skopeo"));
    require!(skip::program("umoci", "umoci"));
    require!(skip::program("dpkg", "dpkg"));
    let folder = Folder::new("package-image");
    let archive = format!("oci-archive:{}", result(".oci.tar").display());
    let inspected: serde_json::Value =
        serde_json::from_str(&printed("skopeo", &["inspect", "--config", &archive])).unwrap();
    assert_eq!(inspected["config"]["Entrypoint"][0], "/usr/bin/barewire");
    let layout = format!("{}/layout:x", folder.path());
    printed(
        "skopeo",
        &[
            "copy",
            "--quiet",
            "--insecure-policy",
            &archive,
            &format!("oci:{layout}"),
        ],
    );
    let bundle = format!("{}/bundle", folder.path());
    printed("umoci", &["unpack", "--image", &layout, &bundle]);
    let rootfs = format!("{bundle}/rootfs");
    let mode = std::fs::metadata(format!("{rootfs}/tmp")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o1777);
    let mix = root().join("testdata/captures/lab-mix.pcapng");
    std::fs::copy(mix, format!("{rootfs}/mix.pcapng")).unwrap();
    let args = [
        &rootfs,
        "/usr/bin/barewire",
        "flows",
        "/mix.pcapng",
        "--json",
        "udp",
        "port",
        "53",
    ];
    let flows = printed("chroot", &args);
    assert!(flows.lines().count() > 1, "{flows}");
    let top: BTreeSet<String> = std::fs::read_dir(&rootfs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for name in ["sbin", "home", "root"] {
        assert!(!top.contains(name), "{top:?}");
    }
}

/// Built again, every result has the same bytes: they contain neither the time nor the directory.
#[test]
fn packaging_twice_gives_the_same_bytes() {
    require!(skip::program("dpkg", "dpkg"));
    let first = std::fs::read_to_string(packages().join("SHA256SUMS")).unwrap();
    let folder = Folder::new("package-again");
    let mut command = Command::new(xtask().unwrap());
    command
        .args(["package", "tarball", "--binary"])
        .arg(barewire().unwrap());
    run(command.arg("--out").arg(folder.path()))
        .checked()
        .unwrap();
    let again = std::fs::read_to_string(folder.0.join("SHA256SUMS")).unwrap();
    assert!(again.contains(".tar.gz"), "{again}");
    for line in again.lines() {
        assert!(
            first.lines().any(|of_first| of_first == line),
            "{line}\n{first}"
        );
    }
}
