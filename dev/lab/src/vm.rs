//! A virtual machine outside of the tests' namespaces: QEMU with one virtio-net by vhost-user. Its
//! parts are those that `cargo xtask lab` fetches.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Finished, Process};
use crate::skip::Missing;
use crate::unpacked::{self, Unpacked};

/// Environment variable with the directory of the parts; as in `cargo xtask lab`.
const CACHE: &str = "BAREWIRE_LAB_CACHE";

/// Modules of the driver, in this order.
const MODULES: &[&str] = &["failover", "net_failover", "virtio_net"];

/// Ubuntu's kernel, in its packages.
const UBUNTU_KERNEL: &str = "boot/vmlinuz-6.8.0-31-generic";

/// The guest's first program: sets the address, reports each step on the console, and pings the
/// peer, if there is one, after each start.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
exec >/dev/console 2>&1 </dev/console
for module in failover net_failover virtio_net; do
    [ -e /modules/$module.ko ] && insmod /modules/$module.ko
done
for word in $(cat /proc/cmdline); do
    case $word in own=*|peer=*|mtu=*) eval "$word" ;; esac
done
echo vm: booted
while [ ! -e /sys/class/net/eth0 ]; do sleep 0.1; done
[ -n "$mtu" ] && ip link set eth0 mtu $mtu
ip address add $own/24 dev eth0
ip link set eth0 up
echo vm: up
[ -n "$peer" ] && ping -c 10 -i 0.1 -w 60 $peer && echo vm: answered
while true; do
    count=$(cat /sys/class/net/eth0/statistics/rx_packets)
    echo vm: received $count after $(cut -d' ' -f1 /proc/uptime)
    sleep 1
done
"#;

/// Whose kernel and programs a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Debian's backported kernel, the one of the guest lab.
    Debian,
    /// Ubuntu 24.04: Linux 6.8, with the driver built in.
    Ubuntu,
}

/// The parts of a virtual machine.
struct Parts {
    qemu: Unpacked,
    kernel: PathBuf,
    /// Modules of the driver, unless it is built in.
    modules: Option<PathBuf>,
    busybox: PathBuf,
}

impl Parts {
    fn find(system: System) -> Option<Parts> {
        let (cache, qemu) = (cache(), qemu()?);
        let parts = match system {
            System::Debian => {
                let kernel = kernel(&cache)?;
                Parts {
                    qemu,
                    kernel: kernel.join("vmlinuz"),
                    modules: Some(kernel.join("modules")),
                    busybox: cache.join("busybox/usr/bin/busybox"),
                }
            }
            System::Ubuntu => Parts {
                qemu,
                kernel: unpacked("ubuntu", UBUNTU_KERNEL)?,
                modules: None,
                busybox: unpacked("ubuntu", "usr/bin/busybox")?,
            },
        };
        parts.busybox.is_file().then_some(parts)
    }
}

/// The directory of the parts.
fn cache() -> PathBuf {
    match std::env::var_os(CACHE) {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/lab"),
    }
}

/// QEMU, if `cargo xtask lab` has unpacked it.
pub fn qemu() -> Option<Unpacked> {
    Unpacked::at(&cache().join("qemu-trixie"), "usr/bin/qemu-system-x86_64")
}

/// A file of packages that `cargo xtask setup` has unpacked below `target`.
fn unpacked(folder: &str, file: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let file = target.join(folder).join(file);
    file.is_file().then_some(file)
}

/// The folder of the guest's kernel; its name ends in the number of the kernel's modules.
fn kernel(cache: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(cache).ok()?.flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let is_one = name.is_some_and(|name| name.starts_with("kernel-trixie-backports"));
        is_one && path.join("vmlinuz").is_file()
    });
    folders.max()
}

/// Whether the parts are there.
///
/// # Errors
/// What is missing.
pub fn available() -> Result<(), Missing> {
    available_of(System::Debian)
}

/// The same for a machine of this system.
///
/// # Errors
/// What is missing.
pub fn available_of(system: System) -> Result<(), Missing> {
    unpacked::namespaces()?;
    match Parts::find(system) {
        Some(_) if cfg!(target_arch = "x86_64") => Ok(()),
        _ => {
            let what = match system {
                System::Debian => {
                    "QEMU, a kernel and busybox in target/lab (cargo xtask lab boots 1)"
                }
                System::Ubuntu => {
                    "QEMU in target/lab (cargo xtask lab boots 1), and a kernel of Ubuntu \
                     (cargo xtask setup)"
                }
            };
            Err(Missing::Machine(what.into()))
        }
    }
}

/// A directory, deleted on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the guest's card is connected to.
#[derive(Clone, Debug)]
pub enum Link {
    /// The socket of a vhost-user back-end.
    VhostUser(PathBuf),
    /// The same with so many queue pairs, on a machine with as many processors.
    Queues(PathBuf, u32),
    /// A TAP interface, in the namespace at this path.
    Tap(PathBuf, String),
    /// None at the start: a free slot, for a back-end on this socket ([`Machine::plug`]).
    Later(PathBuf),
}

impl Link {
    /// The socket of the back-end.
    fn socket(&self) -> Option<&Path> {
        match self {
            Link::VhostUser(socket) | Link::Queues(socket, _) | Link::Later(socket) => Some(socket),
            Link::Tap(..) => None,
        }
    }
}

/// What differs between machines.
#[derive(Clone, Debug)]
pub struct Options {
    /// The other end of its card.
    pub link: Link,
    /// The guest's IPv4 address.
    pub own: String,
    /// The address that it pings after each start; empty for none.
    pub peer: String,
    /// MTU of its interface; 0 for the default.
    pub mtu: u32,
    /// MAC address of its interface.
    pub mac: String,
}

/// A virtual machine, killed on drop.
pub struct Machine {
    process: Process,
    folder: Folder,
}

impl Machine {
    /// Starts a machine of Debian.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, options: &Options) -> Result<Machine> {
        Machine::start_of(System::Debian, name, options)
    }

    /// Starts a machine of this system.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_of(system: System, name: &str, options: &Options) -> Result<Machine> {
        let parts = Parts::find(system).context("no parts: see `available`")?;
        let folder = std::env::temp_dir().join(format!("bw-vm-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let folder = Folder(folder);
        let initramfs = initramfs(&parts, &folder.0)?;
        let mut command = command(&parts, &options.link, &folder.0)?;
        command.args([
            "-M",
            "q35,memory-backend=mem",
            "-accel",
            "tcg",
            "-cpu",
            "max",
        ]);
        command.args(["-m", "256", "-nodefaults", "-display", "none"]);
        command.args(["-object", "memory-backend-memfd,id=mem,size=256M,share=on"]);
        command.arg("-kernel").arg(&parts.kernel);
        command.arg("-initrd").arg(initramfs);
        let mut append = format!(
            "console=ttyS0 quiet panic=-1 net.ifnames=0 no_timer_check rdinit=/init own={}",
            options.own
        );
        if !options.peer.is_empty() {
            append += &format!(" peer={}", options.peer);
        }
        if options.mtu != 0 {
            append += &format!(" mtu={}", options.mtu);
        }
        command.args(["-append", &append]);
        let console = folder.0.join("console").display().to_string();
        command.args(["-serial", &format!("file:{console}")]);
        let monitor = folder.0.join("monitor").display().to_string();
        command.args(["-monitor", &format!("unix:{monitor},server=on,wait=off")]);
        let chardev = |socket: &Path| {
            let socket = socket.display();
            format!("socket,id=vhost,path={socket},reconnect-ms=200")
        };
        let mut device = format!("virtio-net-pci,netdev=net,mac={}", options.mac);
        let netdev = match &options.link {
            Link::VhostUser(socket) => {
                command.args(["-chardev", &chardev(socket)]);
                "vhost-user,id=net,chardev=vhost".to_owned()
            }
            Link::Queues(socket, count) => {
                command.args(["-chardev", &chardev(socket), "-smp", &count.to_string()]);
                device += &format!(",mq=on,vectors={}", 2 * count + 2);
                format!("vhost-user,id=net,chardev=vhost,queues={count}")
            }
            Link::Tap(_, ifname) => {
                format!("tap,id=net,ifname={ifname},script=no,downscript=no")
            }
            Link::Later(_) => String::new(),
        };
        if netdev.is_empty() {
            command.args(["-device", "pcie-root-port,id=free,chassis=1"]);
        } else {
            command.args(["-netdev", &netdev, "-device", &device]);
        }
        let process = Process::spawn(&mut command)?;
        Ok(Machine { process, folder })
    }

    /// What the guest has printed.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(self.folder.0.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the guest has printed `text` at least `count` times.
    ///
    /// # Errors
    /// If `limit` passes first, or QEMU ends; the error has the console.
    pub fn wait_console(&mut self, text: &str, count: usize, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            let console = self.console();
            if console.matches(text).count() >= count {
                return Ok(());
            }
            let runs = self.process.running()?;
            if !runs || Instant::now() > until {
                let errors = self.process.stderr();
                bail!(
                    "{text:?} was not printed {count} times (runs: {runs}):\n{console}\n{errors}"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The guest's counts of received packets so far, with the time since its start in seconds.
    pub fn counters(&self) -> Vec<(f64, f64)> {
        let console = self.console();
        let lines = console.lines();
        lines
            .filter_map(|line| {
                let words = line.trim().strip_prefix("vm: received ")?;
                let (count, time) = words.split_once(" after ")?;
                Some((time.parse().ok()?, count.parse().ok()?))
            })
            .collect()
    }

    /// Plugs a card into the free slot, with a vhost-user back-end on the socket of
    /// [`Link::Later`].
    ///
    /// # Errors
    /// If the monitor cannot be reached.
    pub fn plug(&self, socket: &Path, mac: &str) -> Result<()> {
        let socket = socket.display();
        self.monitor(&format!(
            "chardev-add socket,id=vhost,path={socket},reconnect-ms=200"
        ))?;
        self.monitor("netdev_add vhost-user,id=net,chardev=vhost")?;
        self.monitor(&format!(
            "device_add virtio-net-pci,id=card,netdev=net,mac={mac},bus=free"
        ))
    }

    /// Takes the card out of the slot; the guest's driver releases it first.
    ///
    /// # Errors
    /// If the monitor cannot be reached.
    pub fn unplug(&self) -> Result<()> {
        self.monitor("device_del card")
    }

    /// Gives a command to QEMU's monitor.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub fn monitor(&self, command: &str) -> Result<()> {
        let mut socket = UnixStream::connect(self.folder.0.join("monitor"))?;
        socket.write_all(format!("{command}\n").as_bytes())?;
        // The monitor prints its prompt after it has taken the command.
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut text = Vec::new();
        let mut bytes = [0; 4096];
        while text.windows(6).filter(|at| at == b"(qemu)").count() < 2 {
            let len = std::io::Read::read(&mut socket, &mut bytes)?;
            ensure!(len != 0, "the monitor has closed the connection");
            text.extend_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    /// Kills QEMU, as `kill -9` does.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(mut self) -> Result<Finished> {
        self.process.kill()
    }
}

/// The program, which sees the kernel, the machine's directory and that of its socket. It ends with
/// this process.
fn command(parts: &Parts, link: &Link, folder: &Path) -> Result<Command> {
    let mut qemu = parts.qemu.clone().with(folder).with(&parts.kernel);
    if let Some(socket) = link.socket() {
        qemu = qemu.with(socket.parent().context("a socket in a directory")?);
    }
    let qemu = qemu.with_parent();
    let Link::Tap(ns, _) = link else {
        return Ok(qemu.command(None));
    };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", ns.display()));
    command.args(qemu.words());
    Ok(command)
}

/// Writes the guest's file system: busybox packs it.
fn initramfs(parts: &Parts, folder: &Path) -> Result<PathBuf> {
    let root = folder.join("root");
    for name in ["bin", "modules", "dev", "proc", "sys"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    std::fs::write(root.join("init"), INIT)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(root.join("init"), mode)?;
    std::fs::copy(&parts.busybox, root.join("bin/busybox"))?;
    for (module, folder) in MODULES.iter().zip(parts.modules.iter().cycle()) {
        let name = format!("{module}.ko");
        let from = folder.join(&name);
        std::fs::copy(&from, root.join("modules").join(&name))
            .with_context(|| from.display().to_string())?;
    }
    let file = folder.join("initramfs");
    let script = format!(
        "find . | {} cpio -o -H newc > {}",
        parts.busybox.canonicalize()?.display(),
        file.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&root);
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(file)
}
