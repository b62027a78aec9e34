//! The virtual machine: its cards, how they are connected, and one run of it from power-on to
//! power-off.

mod command;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::fetch::Parts;
use super::initramfs::Initramfs;
use super::patience::Patience;
use super::stall;
use super::wire;
use super::{look, monitor};
use crate::netns::Netns;
use crate::run::{is_root, quietly, which};

use command::command;

/// A card of the guest.
pub struct Card {
    /// Name of its interface in the guest.
    pub name: &'static str,
    /// QEMU's device, with its options.
    device: &'static str,
    mac: &'static str,
    /// Cards with the same number are on one wire.
    wire: u32,
    /// Behind its own PCI Express root port.
    root_port: bool,
    /// Queue pairs, for which a TAP interface needs as many queues.
    queues: u32,
}

/// All cards, two of each kind on one wire.
///
/// Two igb must not be on one bus: their virtual functions would have the same addresses.
/// virtio-net requires the IOMMU (`iommu_platform`), or its driver would pass physical addresses:
/// no VFIO, and no zero-copy, because the ring then has no device to map frames for. It has as many
/// queue pairs as the guest has CPUs: with more to spare its driver adds queues when an XDP program
/// is attached, the card receives on them too, and they cannot be bound zero-copy. One of the two
/// offers packed rings, so that both kinds are present.
///
/// The last two are for reports about a card that is not alone in its IOMMU group.
pub const CARDS: &[Card] = &[
    card("igb0", "igb", "52:54:00:ba:01:00", 0, true, 1),
    card("igb1", "igb", "52:54:00:ba:01:01", 0, true, 1),
    card("e1000-0", "e1000", "52:54:00:ba:02:00", 1, false, 1),
    card("e1000-1", "e1000", "52:54:00:ba:02:01", 1, false, 1),
    card("e1000e-0", "e1000e", "52:54:00:ba:03:00", 2, true, 1),
    card("e1000e-1", "e1000e", "52:54:00:ba:03:01", 2, true, 1),
    card("virtio0", PACKED, "52:54:00:ba:04:00", 3, true, 2),
    card("virtio1", VIRTIO, "52:54:00:ba:04:01", 3, true, 2),
    card("shared0", FUNCTION_0, "52:54:00:ba:05:00", 4, false, 1),
    card("shared1", FUNCTION_1, "52:54:00:ba:05:01", 4, false, 1),
];

/// The cards for the benchmark of paths: one that sends, one on its wire that receives, and a third
/// to forward to, alone on its wire.
pub const CARDS_IN_A_ROW: &[Card] = &[
    card("igb0", "igb", "52:54:00:ba:01:00", 0, true, 1),
    card("igb1", "igb", "52:54:00:ba:01:01", 0, true, 1),
    card("igb2", "igb", "52:54:00:ba:01:02", 1, true, 1),
];

/// Two functions of a device without isolation between them: one IOMMU group.
const FUNCTION_0: &str = "e1000,multifunction=on,addr=10.0";
const FUNCTION_1: &str = "e1000,addr=10.1";

const VIRTIO: &str = "virtio-net-pci,disable-legacy=on,iommu_platform=on";
const PACKED: &str = "virtio-net-pci,disable-legacy=on,iommu_platform=on,packed=on";

const fn card(
    name: &'static str,
    device: &'static str,
    mac: &'static str,
    wire: u32,
    root_port: bool,
    queues: u32,
) -> Card {
    Card {
        name,
        device,
        mac,
        wire,
        root_port,
        queues,
    }
}

/// What differs between guests.
#[derive(Clone, Copy)]
pub struct Machine {
    /// The cards.
    pub cards: &'static [Card],
    /// The guest's clock counts its instructions, a nanosecond each: emulation of devices takes no
    /// time, and a program takes the same time regardless of other load. Only with `tcg`.
    pub counts_instructions: bool,
    /// The kernel's own drivers also go through the IOMMU. Otherwise they bypass it, as on most
    /// machines, and only VFIO has the cost of an emulated IOMMU.
    pub translates_all: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            cards: CARDS,
            counts_instructions: false,
            translates_all: false,
        }
    }
}

/// Parameters of a run besides the parts.
pub struct Run<'a> {
    /// Script for the guest's shell.
    pub job: String,
    /// Programs of this machine: path in the guest, file here.
    pub programs: Vec<(String, PathBuf)>,
    /// After this time the guest is ended, unless a line of its output extended it.
    pub limit: Duration,
    /// Time limit for booting, if known better than from its output.
    pub boot_limit: Option<Duration>,
    /// `kvm` or `tcg`.
    pub accelerator: &'a str,
    /// The guest.
    pub machine: Machine,
}

/// Time in which QEMU must end after its last output.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A guest without output for this long is examined.
const SILENCE: Duration = Duration::from_secs(45);

/// Maximum length of a line of the job's output.
const LINE_MAX: u64 = 64 * 1024;

/// File with QEMU's error output.
const ERRORS: &str = "errors";

/// The library that compiles filters, if Debian has it.
const LIBPCAP: &str = "/usr/lib/x86_64-linux-gnu/libpcap.so.0.8";

/// p0f's database of signatures, if p0f is installed.
const P0F: &str = "/etc/p0f/p0f.fp";

/// Printed by init on the console when it starts the job.
const UP: &str = "init: up after";

/// The outcome of a run.
pub struct Outcome {
    /// Exit code of the job; `None` if the guest never reported it.
    pub code: Option<i32>,
    /// Directory with its console and the files that it left in `/out`.
    pub dir: PathBuf,
    /// From power-on to power-off.
    pub took: Duration,
    /// Whether the time limit ended it.
    pub hung: bool,
    /// Whether it got as far as the job.
    pub booted: bool,
    /// If the emulator has failed or ended with an error: what is known of that.
    pub lost: Option<String>,
}

/// Runs a job in a guest, and passes each line of its output to `line`, which may return a new time
/// limit from then on.
///
/// # Errors
/// If the guest cannot be started.
pub fn run(
    parts: &Parts,
    run: &Run<'_>,
    dir: &Path,
    mut line: impl FnMut(&str) -> Option<Duration>,
) -> Result<Outcome> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir)?;
    let image = dir.join("initramfs");
    initramfs(parts, run, &image)?;
    let wires = Wires::new(run.machine.cards)?;
    let started = Instant::now();
    let mut child = command(parts, run, dir, &image, &wires)?
        .spawn()
        .context("cannot start QEMU")?;
    let output = child.stdout.take().context("piped")?;
    let (reader, lines) = read_lines(output);
    let mut watch = Watch {
        run,
        dir,
        wires: &wires,
        patience: Patience::new(child.id()),
        started,
        since: started,
        limit: run.limit,
        last_line_at: started,
        booted: false,
        hung: false,
        lost: None,
        looks: 0,
    };
    watch.follow(&mut child, &lines, &mut line)?;
    let booted = watch.booted || is_up(dir);
    let status = watch.end(&mut child)?;
    let (hung, mut lost) = (watch.hung, watch.lost);
    drop(lines);
    let _ = reader.join();
    let _ = std::fs::remove_file(&image);
    let took = started.elapsed();
    let errors = complaints(dir);
    let code = std::fs::read_to_string(dir.join("status"))
        .ok()
        .and_then(|text| text.trim().parse().ok());
    if !hung && !status.success() {
        lost = Some(format!("QEMU ended with {status}: {}", errors.trim()));
    }
    // A guest that hung may not have finished writing its files.
    if code.is_some() && !hung && lost.is_none() {
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(dir.join("files")).arg("-C").arg(dir);
        quietly(&mut unpack).context("files of the guest")?;
        std::fs::remove_file(dir.join("files"))?;
    }
    Ok(Outcome {
        code,
        dir: dir.to_owned(),
        took,
        hung,
        booted,
        lost,
    })
}

/// A thread that reads a guest's output, and a channel of its lines.
fn read_lines(output: ChildStdout) -> (JoinHandle<()>, Receiver<String>) {
    let (send, lines) = sync_channel(1024);
    let reader = std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut bytes = Vec::new();
        // A line without an end is split.
        let mut next = |bytes: &mut Vec<u8>| (&mut output).take(LINE_MAX).read_until(b'\n', bytes);
        while next(&mut bytes).is_ok_and(|n| n != 0) {
            let text = String::from_utf8_lossy(&bytes);
            if send.send(text.trim_end().to_owned()).is_err() {
                break;
            }
            bytes.clear();
        }
    });
    (reader, lines)
}

/// Prints unknown complaints of QEMU; returns all of them.
fn complaints(dir: &Path) -> String {
    let errors = std::fs::read(dir.join(ERRORS)).unwrap_or_default();
    let errors = String::from_utf8_lossy(&errors).into_owned();
    // A hub connects cards with each other and nothing else, which QEMU warns about. The
    // replacement of `-mon` is not in every version.
    let known = ["not connected to host", "'-mon' is deprecated"];
    for line in errors
        .lines()
        .filter(|line| !known.iter().any(|known| line.contains(known)))
    {
        eprintln!("QEMU says: {line}");
    }
    errors
}

/// Watches a running guest.
struct Watch<'a> {
    run: &'a Run<'a>,
    dir: &'a Path,
    wires: &'a Wires,
    patience: Patience,
    started: Instant,
    /// The limit counts from here.
    since: Instant,
    limit: Duration,
    /// When the last line arrived.
    last_line_at: Instant,
    booted: bool,
    hung: bool,
    /// See [`Outcome::lost`].
    lost: Option<String>,
    /// How often the guest requested a link check.
    looks: u32,
}

impl Watch<'_> {
    /// Reads the lines of a guest until it closes its output, or ends it when its time is over.
    fn follow(
        &mut self,
        child: &mut Child,
        lines: &Receiver<String>,
        line: &mut impl FnMut(&str) -> Option<Duration>,
    ) -> Result<()> {
        loop {
            // The console is checked from time to time until the kernel is up.
            if !self.booted && is_up(self.dir) {
                (self.booted, self.since) = (true, Instant::now());
            }
            // A guest with continuous output is ended, too.
            let is_over = self.is_over();
            if self.lost.is_none()
                && self.booted
                && (is_over || self.last_line_at.elapsed() >= SILENCE)
            {
                self.examine();
            }
            if is_over || self.lost.is_some() {
                self.hung = true;
                if let Err(error) = monitor::question(self.dir) {
                    eprintln!("lab: QEMU's monitor: {error:#}");
                }
                child.kill()?;
                return Ok(());
            }
            match lines.recv_timeout(Duration::from_millis(500)) {
                Ok(text) => self.take(&text, line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn is_over(&mut self) -> bool {
        if self.booted {
            return self.since.elapsed() >= self.limit;
        }
        let limit = self.run.boot_limit;
        self.patience.is_over() || limit.is_some_and(|limit| self.started.elapsed() >= limit)
    }

    /// Checks with the emulator and the console whether the guest is stuck.
    fn examine(&mut self) {
        let seen = monitor::stuck(self.dir).unwrap_or_else(|error| {
            eprintln!("lab: QEMU's monitor: {error:#}");
            None
        });
        self.lost = seen.or_else(|| stall::of(&console(self.dir)));
        self.last_line_at = Instant::now();
    }

    /// Handles a request in a line of the guest, or passes the line to `line`.
    fn take(&mut self, text: &str, line: &mut impl FnMut(&str) -> Option<Duration>) {
        self.last_line_at = Instant::now();
        if let Some((index, is_there)) = wire::asked(text, self.run.machine.cards)
            && let Err(error) = monitor::set_wire(self.dir, index, is_there)
        {
            eprintln!("lab: {text}: {error:#}");
        }
        if text == look::MARK && self.looks < look::MAX {
            self.looks += 1;
            self.lost = look::at(self.dir, self.wires.ns.as_ref());
            // The guest waits in the meantime.
            self.since += self.last_line_at.elapsed();
            self.last_line_at = Instant::now();
        } else if let Some(more) = line(text) {
            (self.since, self.limit) = (Instant::now(), more);
        }
    }

    /// Waits for a guest that has closed its output.
    fn end(&mut self, child: &mut Child) -> Result<ExitStatus> {
        let closed = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if closed.elapsed() > END_LIMIT {
                self.hung = true;
                child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn is_up(dir: &Path) -> bool {
    console(dir).contains(UP)
}

fn console(dir: &Path) -> String {
    let bytes = std::fs::read(dir.join("console")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of the console.
pub fn console_tail(dir: &Path, count: usize) -> String {
    let text = console(dir);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn initramfs(parts: &Parts, run: &Run<'_>, file: &Path) -> Result<()> {
    let mut archive = Initramfs::new()?;
    archive.file("init", include_bytes!("init.sh"))?;
    archive.file("job", run.job.as_bytes())?;
    let cards: String = run
        .machine
        .cards
        .iter()
        .map(|card| format!("{} {}\n", card.mac, card.name))
        .collect();
    archive.file("cards", cards.as_bytes())?;
    archive.file("bin/busybox", &std::fs::read(&parts.busybox)?)?;
    for entry in std::fs::read_dir(parts.kernel.join("modules"))? {
        let entry = entry?;
        let path = format!("modules/{}", entry.file_name().to_string_lossy());
        archive.file(&path, &std::fs::read(entry.path())?)?;
    }
    // Busybox has a smaller `ip`, and no ethtool.
    for name in ["ip", "ethtool"] {
        let program = which(name).with_context(|| format!("no {name}: cargo xtask setup"))?;
        archive.program(&format!("usr/sbin/{name}"), &program)?;
    }
    // For one test, which is skipped without it.
    if let Some(program) = which("pppd") {
        archive.program("usr/sbin/pppd", &program)?;
    }
    archive.link("bin/sh", "busybox")?;
    // Opened by name, so that it is not in any program's list of libraries.
    let libpcap = Path::new(LIBPCAP);
    if !run.programs.is_empty() && libpcap.exists() {
        archive.program(LIBPCAP.trim_start_matches('/'), libpcap)?;
    }
    if !run.programs.is_empty() && Path::new(P0F).exists() {
        archive.file(P0F.trim_start_matches('/'), &std::fs::read(P0F)?)?;
    }
    for (path, program) in &run.programs {
        archive.program(path, program)?;
    }
    archive.write(file)
}

/// Number of virtio-net's queue pairs here.
pub fn virtio_queues() -> u32 {
    let most = CARDS.iter().map(|card| card.queues).max().unwrap_or(1);
    if can_make_taps().is_ok() { most } else { 1 }
}

/// Whether TAP interfaces in namespaces can be created, tried once; otherwise the reason. Root in a
/// container is often not allowed to, whatever its capabilities are.
fn can_make_taps() -> &'static Result<(), String> {
    static OUTCOME: OnceLock<Result<(), String>> = OnceLock::new();
    OUTCOME.get_or_init(|| {
        if !is_root() {
            return Err("not root".into());
        }
        let tried = quiet_namespace().and_then(|ns| ns.ip("tuntap add dev tap mode tap"));
        tried.map(drop).map_err(|error| format!("{error:#}"))
    })
}

/// A namespace without unsolicited packets on its interfaces.
fn quiet_namespace() -> Result<Netns> {
    let ns = Netns::new()?;
    let quiet = "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
    ns.exec(&format!("sysctl -qw {quiet}"))?;
    Ok(ns)
}

/// The connections of the cards outside the guest.
struct Wires {
    /// Holds the TAP interfaces and the bridge of cards with several queues.
    ns: Option<Netns>,
}

impl Wires {
    /// TAP interfaces need root privileges; without them every card has one queue pair and a hub of
    /// QEMU's.
    fn new(cards: &[Card]) -> Result<Wires> {
        if cards.iter().all(|card| card.queues == 1) {
            return Ok(Wires { ns: None });
        }
        if let Err(why) = can_make_taps() {
            eprintln!("lab: no TAP interfaces ({why}): virtio-net has one queue pair");
            return Ok(Wires { ns: None });
        }
        let ns = quiet_namespace()?;
        let mut bridges = Vec::new();
        for card in cards.iter().filter(|card| card.queues > 1) {
            let bridge = format!("wire{}", card.wire);
            if !bridges.contains(&card.wire) {
                // Like a cable: floods unknown addresses, and delays nothing.
                ns.ip(&format!(
                    "link add {bridge} mtu 9000 type bridge mcast_snooping 0 stp_state 0 \
                     ageing_time 0"
                ))?;
                ns.ip(&format!("link set {bridge} up"))?;
                bridges.push(card.wire);
            }
            ns.ip(&format!(
                "tuntap add dev {} mode tap multi_queue",
                card.name
            ))?;
            ns.ip(&format!(
                "link set {} mtu 9000 master {bridge} up",
                card.name
            ))?;
        }
        Ok(Wires { ns: Some(ns) })
    }

    /// The netdev of a card, and additional options of its device.
    fn netdev(&self, index: usize, card: &Card) -> (String, String) {
        if self.ns.is_some() && card.queues > 1 {
            let Card { name, queues, .. } = card;
            let netdev =
                format!("tap,id=n{index},ifname={name},script=no,downscript=no,queues={queues}");
            // One vector for each ring, one for the configuration, one for control.
            return (netdev, format!(",mq=on,vectors={}", 2 * queues + 2));
        }
        let netdev = format!("hubport,id=n{index},hubid={}", card.wire);
        (netdev, String::new())
    }
}
