//! The parts of the guest: QEMU, a kernel with its modules, busybox. Fetched once.
//!
//! Everything is in one directory (`target/lab`, or that in `BAREWIRE_LAB_CACHE`) and is reused
//! without network. A part is complete if its directory exists: it is built under another name and
//! renamed. The hashes of its files are stored with it, and compared before each use.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::apt::{self, Apt};
use super::own_root;
use crate::run::{quietly, target_dir, which};

/// Variable with another directory for fetched parts.
const CACHE_VAR: &str = "BAREWIRE_LAB_CACHE";

/// Modules to load in the guest, in this order, each after its dependencies. Modules built into the
/// kernel have no file and are skipped.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "igb",
    "e1000",
    "e1000e",
    "virtio_net",
    "vfio",
    "vfio_iommu_type1",
    "vfio-pci",
    "iommufd",
    "veth",
    "bridge",
    "tun",
    "af_packet",
    "xsk_diag",
    "ppp_generic",
    "ppp_async",
];

/// Modules without which the guest is useless.
const NEEDED: &[&str] = &["igb", "e1000", "e1000e", "virtio_net", "vfio-pci"];

/// From this QEMU version on, a packet takes half the time, and interrupts were not lost in the
/// suites as with 10.0 (see [`monitor`](super::monitor)).
const GOOD: u32 = 11;

/// This machine has no guest, which is not a failure: not Debian, another architecture, no route to
/// the mirror, neither root nor user namespaces. Every other error is a failure, above all data
/// that is not what was signed.
#[derive(Debug)]
pub struct NoGuest(pub String);

impl std::fmt::Display for NoGuest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoGuest {}

/// The parts, ready.
pub struct Parts {
    /// The program, and its environment.
    pub qemu: Qemu,
    /// Directory of the kernel: `vmlinuz`, `modules/*.ko`, and `modules/order`.
    pub kernel: PathBuf,
    /// The kernel release, from its package.
    pub release: String,
    /// The program, statically linked.
    pub busybox: PathBuf,
}

/// A QEMU that supports all the lab's cards.
pub struct Qemu {
    program: PathBuf,
    /// The packages that it was unpacked from; `None` for an installed one.
    packages: Option<PathBuf>,
}

impl Qemu {
    /// The command that starts the program, to which its arguments can be added. It sees these
    /// directories, and ends with the thread that starts it.
    pub fn words(&self, given: &[&Path]) -> Vec<String> {
        let with_parent = ["setpriv", "--pdeathsig", "KILL", "--"].map(str::to_owned);
        match &self.packages {
            Some(packages) => own_root::words(packages, given, &with_parent, &self.program),
            None => {
                let program = self.program.display().to_string();
                with_parent.into_iter().chain([program]).collect()
            }
        }
    }

    fn ask(&self, args: &[&str]) -> Result<String> {
        let words = self.words(&[]);
        quietly(Command::new(&words[0]).args(&words[1..]).args(args))
    }

    /// Checks that it starts and supports igb.
    fn check(&self) -> Result<()> {
        let devices = self.ask(&["-device", "help"])?;
        ensure!(
            devices.contains("name \"igb\""),
            "{} has no igb: older than 8.0",
            self.program.display()
        );
        Ok(())
    }

    /// The major version; 0 if unknown.
    fn major(&self) -> u32 {
        let printed = self.ask(&["--version"]).unwrap_or_default();
        major(&printed).unwrap_or(0)
    }
}

/// Parses `QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)`.
fn major(printed: &str) -> Option<u32> {
    let (_, version) = printed.split_once(" version ")?;
    version.split('.').next()?.parse().ok()
}

/// The directory of fetched parts.
pub fn cache() -> Result<PathBuf> {
    let dir = match std::env::var_os(CACHE_VAR) {
        Some(dir) => PathBuf::from(dir),
        None => target_dir()?.join("lab"),
    };
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let mode = std::fs::metadata(&dir)?.permissions().mode();
    // QEMU is run from it, perhaps as root.
    ensure!(
        mode & 0o002 == 0,
        "everybody may write into {}\nhint: chmod o-w",
        dir.display()
    );
    Ok(dir.canonicalize()?)
}

/// Prepares all parts, fetching missing ones; the kernel comes from this suite.
///
/// # Errors
/// [`NoGuest`] if something is missing and cannot be fetched.
pub fn parts(suite: &str) -> Result<Parts> {
    if !cfg!(target_arch = "x86_64") {
        let why = "the guest is an x86-64 machine and its programs are built for this one";
        bail!(NoGuest(why.into()));
    }
    let cache = cache()?;
    // Two runs at once must not fetch to the same place.
    let lock = File::create(cache.join("lock"))?;
    lock.lock().context("lock of the cache")?;
    let mut apt = None;
    let busybox = busybox(&cache, suite, &mut apt)?;
    let kernel = kernel(&cache, suite, &busybox, &mut apt)?;
    let qemu = qemu(&cache, suite, &mut apt)?;
    let release = std::fs::read_to_string(kernel.join("release"))?
        .trim()
        .to_owned();
    Ok(Parts {
        qemu,
        kernel,
        release,
        busybox,
    })
}

/// Opens apt when first needed.
fn opened<'a>(cache: &Path, suite: &str, apt: &'a mut Option<Apt>) -> Result<&'a Apt> {
    if apt.is_none() {
        *apt = Some(Apt::open(&cache.join("apt"), &[suite])?);
    }
    apt.as_ref().context("apt")
}

/// Creates a directory of the cache completely or not at all; an existing one must be unchanged.
fn once(dir: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let list = dir.with_extension("sha256");
    if dir.is_dir() && list.is_file() {
        let (now, then) = (hashes(dir)?, std::fs::read_to_string(&list)?);
        ensure!(
            now == then,
            "{} is not as it was fetched: {}\nhint: delete the folder, and it is fetched again",
            dir.display(),
            difference(&then, &now)
        );
        return Ok(());
    }
    let unfinished = dir.with_extension("unfinished");
    let _ = std::fs::remove_dir_all(&unfinished);
    std::fs::create_dir_all(&unfinished)?;
    make(&unfinished)?;
    let hashes = hashes(&unfinished)?;
    if dir.is_dir() {
        // From an unfinished run, or from a version without hashes.
        std::fs::remove_dir_all(dir)?;
    }
    std::fs::write(&list, hashes)?;
    std::fs::rename(&unfinished, dir).with_context(|| dir.display().to_string())
}

/// A line for each file of a directory: its SHA-256 or link target, and its path.
fn hashes(dir: &Path) -> Result<String> {
    let (mut files, mut lines) = (Vec::new(), Vec::new());
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let inside = path.strip_prefix(dir)?.to_owned();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = std::fs::read_link(&path)?;
                lines.push(format!("-> {} {}\n", target.display(), inside.display()));
            } else {
                files.push(inside);
            }
        }
    }
    files.sort();
    if !files.is_empty() {
        let mut command = Command::new("sha256sum");
        lines.push(quietly(command.current_dir(dir).arg("--").args(&files))?);
    }
    lines.sort();
    Ok(lines.concat())
}

/// The first line that only one of the two has.
fn difference<'a>(then: &'a str, now: &'a str) -> &'a str {
    let alone = |line: &&str, other: &str| !other.lines().any(|of_other| of_other == *line);
    let gone = then.lines().find(|line| alone(line, now));
    let new = now.lines().find(|line| alone(line, then));
    gone.or(new).unwrap_or("in another order")
}

fn busybox(cache: &Path, suite: &str, apt: &mut Option<Apt>) -> Result<PathBuf> {
    let dir = cache.join("busybox");
    once(&dir, |into| {
        opened(cache, suite, apt)?.unpack(&["busybox-static".into()], into)
    })?;
    let places = ["usr/bin/busybox", "bin/busybox"].map(|place| dir.join(place));
    let found = places.into_iter().find(|place| place.is_file());
    found.context("no busybox in its package")
}

/// QEMU of one release, whatever is installed. An installed one replaces it only where it cannot be
/// fetched or run.
fn qemu(cache: &Path, suite: &str, apt: &mut Option<Apt>) -> Result<Qemu> {
    let name = "qemu-system-x86_64";
    let dir = cache.join(format!("qemu-{}", apt::RELEASE));
    let fetched = match own_root::check() {
        Ok(()) => once(&dir, |into| {
            // Nothing else from a suite that is used for the kernel only.
            let own;
            let apt = match suite.starts_with(apt::RELEASE) {
                true => opened(cache, suite, apt)?,
                false => {
                    own = Apt::open(&cache.join("apt-qemu"), &[])?;
                    &own
                }
            };
            apt.unpack(&apt.with_libraries(&["qemu-system-x86"])?, into)
        }),
        Err(error) => Err(error),
    };
    let Err(error) = fetched else {
        let qemu = Qemu {
            program: Path::new("/usr/bin").join(name),
            packages: Some(dir),
        };
        qemu.check()?;
        return Ok(qemu);
    };
    let installed = which(name).filter(|_| error.is::<NoGuest>());
    let installed = installed.map(|program| Qemu {
        program,
        packages: None,
    });
    let Some(qemu) = installed else {
        return Err(error);
    };
    if let Err(unusable) = qemu.check() {
        eprintln!("lab: the installed QEMU cannot run the guest: {unusable:#}");
        return Err(error);
    }
    let major = qemu.major();
    if major < GOOD {
        eprintln!("lab: QEMU {major}, which is slow and may hang: {error:#}");
    }
    Ok(qemu)
}

fn kernel(cache: &Path, suite: &str, busybox: &Path, apt: &mut Option<Apt>) -> Result<PathBuf> {
    // Another list of modules needs another directory.
    let dir = cache.join(format!("kernel-{suite}-{}", MODULES.len()));
    once(&dir, |into| {
        let apt = opened(cache, suite, apt)?;
        let meta = format!("linux-image-amd64/{suite}");
        let image = apt
            .depends(&meta)?
            .into_iter()
            .find(|name| name.starts_with("linux-image-"))
            .with_context(|| format!("{meta} needs no image"))?;
        // Newer packages are split in two; older ones contain everything.
        let mut packages = apt.depends(&image)?;
        packages
            .retain(|name| name.starts_with("linux-binary-") || name.starts_with("linux-modules-"));
        if packages.is_empty() {
            packages.push(image.clone());
        }
        let packages: Vec<_> = packages
            .iter()
            .map(|package| format!("{package}/{suite}"))
            .collect();
        let whole = into.join("whole");
        apt.unpack(&packages, &whole)?;
        take_kernel(&whole, into, busybox).with_context(|| image.clone())?;
        std::fs::write(
            into.join("release"),
            image.trim_start_matches("linux-image-"),
        )?;
        // A hundred megabytes of modules that are never loaded.
        std::fs::remove_dir_all(&whole).context("removing unused modules")
    })?;
    Ok(dir)
}

/// Copies the image and the modules in [`MODULES`], with their dependencies, from a package.
fn take_kernel(whole: &Path, into: &Path, busybox: &Path) -> Result<()> {
    let mut files = Vec::new();
    walk(whole, &mut files)?;
    let image = files
        .iter()
        .find(|file| name_of(file).starts_with("vmlinuz"))
        .context("no vmlinuz")?;
    std::fs::copy(image, into.join("vmlinuz"))?;
    let modules = into.join("modules");
    std::fs::create_dir_all(&modules)?;
    let mut order = Vec::new();
    for name in MODULES {
        let there = take_module(name, &files, &modules, busybox, &mut order, 0)?;
        ensure!(
            there || !NEEDED.contains(name),
            "no module {name} in the package"
        );
    }
    std::fs::write(modules.join("order"), order.join("\n") + "\n")?;
    Ok(())
}

/// Unpacks a module after its dependencies; `false` if it does not exist.
fn take_module(
    name: &str,
    files: &[PathBuf],
    into: &Path,
    busybox: &Path,
    order: &mut Vec<String>,
    depth: u32,
) -> Result<bool> {
    // Names are written with either character.
    let name = name.replace('-', "_");
    if order.contains(&name) {
        return Ok(true);
    }
    ensure!(depth < 16, "modules need each other in a circle at {name}");
    let Some(file) = files.iter().find(|file| {
        let (stem, suffix) = name_of(file).split_once(".ko").unwrap_or(("", "none"));
        matches!(suffix, "" | ".xz" | ".gz" | ".zst") && stem.replace('-', "_") == name
    }) else {
        return Ok(false);
    };
    let bytes = match file.extension().and_then(|e| e.to_str()) {
        Some("ko") => std::fs::read(file)?,
        Some("xz") => {
            let output = Command::new(busybox).arg("xzcat").arg(file).output()?;
            ensure!(output.status.success(), "xzcat {}", file.display());
            output.stdout
        }
        other => bail!("{}: compressed as {other:?}", file.display()),
    };
    for need in needs(&bytes) {
        take_module(&need, files, into, busybox, order, depth + 1)?;
    }
    std::fs::write(into.join(format!("{name}.ko")), bytes)?;
    order.push(name);
    Ok(true)
}

/// The dependencies of a module (`depends=` and `softdep=` in its section `.modinfo`).
fn needs(module: &[u8]) -> BTreeSet<String> {
    let mut needs = BTreeSet::new();
    for entry in module.split(|byte| *byte == 0) {
        if let Some(list) = entry.strip_prefix(b"depends=") {
            let list = String::from_utf8_lossy(list);
            needs.extend(list.split(',').filter(|n| !n.is_empty()).map(str::to_owned));
        }
    }
    needs
}

fn name_of(file: &Path) -> &str {
    file.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("")
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_modules_are_read() {
        let module = b"\x7fELF\0license=GPL\0depends=i2c-algo-bit,dca\0name=igb\0";
        let needs: Vec<_> = needs(module).into_iter().collect();
        assert_eq!(needs, ["dca", "i2c-algo-bit"]);
        assert!(super::needs(b"depends=\0").is_empty());
    }

    #[test]
    fn the_major_version_of_qemu_is_parsed() {
        let printed = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)\nCopyright";
        assert_eq!(major(printed), Some(11));
        assert_eq!(major("QEMU"), None);
    }

    #[test]
    fn cached_parts_are_compared_with_their_hashes() {
        let dir = std::env::temp_dir().join(format!("barewire-hash-{}", std::process::id()));
        let part = dir.join("part");
        std::fs::create_dir_all(&dir).unwrap();
        let make = |into: &Path| -> Result<()> {
            std::fs::create_dir(into.join("lib"))?;
            std::fs::write(into.join("lib/a"), "1")?;
            Ok(std::os::unix::fs::symlink("a", into.join("lib/b"))?)
        };
        let again = || once(&part, |_| bail!("must not be made again"));
        once(&part, make).unwrap();
        again().unwrap();
        // A flipped bit, an extra file, a link elsewhere: each is a failure and no reason to skip.
        let damage: [fn(&Path); 3] = [
            |lib| std::fs::write(lib.join("a"), "2").unwrap(),
            |lib| std::fs::write(lib.join("libc.so.6"), "").unwrap(),
            |lib| {
                std::fs::remove_file(lib.join("b")).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", lib.join("b")).unwrap();
            },
        ];
        for damage in damage {
            damage(&part.join("lib"));
            let error = again().unwrap_err();
            assert!(!error.is::<NoGuest>(), "{error:#}");
            assert!(
                error.to_string().contains("not as it was fetched"),
                "{error:#}"
            );
            std::fs::remove_dir_all(&part).unwrap();
            once(&part, make).unwrap();
        }
        // Without hashes it is created again.
        std::fs::remove_file(dir.join("part.sha256")).unwrap();
        assert!(again().is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_cache_directory_is_created_completely_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("barewire-once-{}", std::process::id()));
        assert!(once(&dir, |_| bail!("no network")).is_err());
        assert!(!dir.exists());
        once(&dir, |into| Ok(std::fs::write(into.join("file"), "")?)).unwrap();
        once(&dir, |_| bail!("must not be made again")).unwrap();
        assert!(dir.join("file").is_file());
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(dir.with_extension("sha256")).unwrap();
    }
}
