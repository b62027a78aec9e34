//! `cargo xtask demo`: the whole way from a wire to flows on screen, in one command.
//!
//! Two namespaces joined by a veth pair. `barewire send` replays a capture of real programs into
//! one end; `barewire flows` takes the packets from the other through AF_XDP. At the end the
//! kernel's own counters of both ends stand beside what the programs said.

use std::io::{IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::netns::{Netns, sweep};
use crate::run::{
    cargo, need_root, no_more, quietly, root, take_flag, take_option, target_dir, visibly,
};
use crate::setup::{self, Set};

/// Interface that sends, in its own namespace.
const SENDER: &str = "tx0";

/// Interface that is probed, in its own namespace.
const PROBED: &str = "rx0";

/// How long a program may take to start, or to end after it was asked to.
const LIMIT: Duration = Duration::from_secs(15);

/// What the user chose.
struct Options {
    seconds: u64,
    rate: String,
    queues: u32,
    keep: bool,
    /// Draw the table on the terminal while it runs, rather than a line each second.
    live: bool,
}

/// The task: see the module.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let number = |text: Option<String>, default: u64| match text {
        Some(text) => text
            .parse()
            .with_context(|| format!("not a number: {text}")),
        None => Ok(default),
    };
    let options = Options {
        seconds: number(take_option(&mut args, "--seconds")?, 10)?,
        rate: take_option(&mut args, "--rate")?.unwrap_or_else(|| "20kpps".into()),
        queues: u32::try_from(number(take_option(&mut args, "--queues")?, 2)?)?,
        keep: take_flag(&mut args, "--keep"),
        live: !take_flag(&mut args, "--plain")
            && std::io::stdin().is_terminal()
            && std::io::stdout().is_terminal(),
    };
    no_more(&args)?;
    need_root("demo")?;
    setup::ensure(&[Set::Demo])?;
    let capture = root().join("testdata/captures/lab-mix.pcapng");
    ensure!(capture.is_file(), "{} is not there", capture.display());
    visibly(cargo().args(["build", "--release", "--package", "barewire-cli"]))?;
    let binary = target_dir()?.join("release/barewire");

    // From here on Ctrl-C, SIGTERM and SIGHUP only ask for the end; what was made is dropped on
    // the ordinary way out.
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed))?;
    show(&options, &binary, &capture, &stop)
}

/// The demo itself; every namespace and process it makes ends with it.
fn show(options: &Options, binary: &Path, capture: &Path, stop: &AtomicBool) -> Result<ExitCode> {
    sweep()?;
    let (mut sender, mut probed) = (Netns::new()?, Netns::new()?);
    join(&sender, &probed, options.queues)?;
    if options.keep {
        sender.keep();
        probed.keep();
    }
    eprintln!(
        "{} -> {SENDER} in {} ==veth, {} queues== {PROBED} in {} -> live flow table",
        capture.file_name().unwrap_or_default().display(),
        sender.name,
        options.queues,
        probed.name
    );
    let (sent_before, seen_before) = (counters(&sender, SENDER)?, counters(&probed, PROBED)?);

    let mut flows = program(&probed, binary);
    flows.arg("flows").arg(format!("afxdp:{PROBED}"));
    if !options.live {
        flows.arg("--plain");
    }
    let mut flows = Running::start("barewire flows", &mut flows, options.live)?;
    flows.until(stop, "to attach to the interface", || attached(&probed))?;
    let mut send = program(&sender, binary);
    // By way of the qdisc the kernel chooses the queue by the flow, as RSS of a card does; past it
    // all would leave by the queue of one processor.
    let port = format!("afpacket:{SENDER}?qdisc_bypass=no");
    send.arg("send").arg(capture).arg(port);
    send.args(["--rate", &options.rate, "--loop", "0"]);
    // Its summary would go through the picture of the live table.
    send.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut send = Running::start("barewire send", &mut send, false)?;

    let until = Instant::now() + Duration::from_secs(options.seconds);
    let mut flows_status = None;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        flows_status = flows.ended()?;
        if flows_status.is_some() {
            // In the live table Ctrl-C and `q` are keys.
            break;
        }
        if let Some(status) = send.ended()? {
            bail!("barewire send ended early: {status}\n{}", send.said());
        }
        sleep(Duration::from_millis(50));
    }
    // The sender first, so that nothing is under way when the probe counts.
    let send_status = send.end()?;
    sleep(Duration::from_millis(300));
    let closed_first = flows_status.is_some();
    let flows_status = flows_status.map_or_else(|| flows.end(), Ok)?;

    let (sent, seen) = (counters(&sender, SENDER)?, counters(&probed, PROBED)?);
    let sent = sent.packets_out - sent_before.packets_out;
    let received = seen.packets_in - seen_before.packets_in;
    let dropped = seen.dropped_in - seen_before.dropped_in;
    println!(
        "\nThe other end says: {}",
        send.said().trim_end().replace('\n', "; ")
    );
    println!(
        "The kernel's own counters: {SENDER} sent {sent} packets, {PROBED} received {received}, \
         of which it dropped {dropped}"
    );
    if closed_first {
        println!("The table was closed before the sender: the table has not seen what came after.");
    }
    ensure!(send_status.success(), "barewire send: {send_status}");
    ensure!(flows_status.success(), "barewire flows: {flows_status}");
    Ok(ExitCode::SUCCESS)
}

/// Joins the two by a veth pair over which nothing goes but what is sent.
fn join(sender: &Netns, probed: &Netns, queues: u32) -> Result<()> {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    sender.ip(&format!(
        "link add name {SENDER} {queues} type veth peer name {PROBED} {queues} netns {}",
        probed.name
    ))?;
    for (ns, ifname) in [(sender, SENDER), (probed, PROBED)] {
        // Without offloads a packet sent is a packet on the wire; without IPv6 the kernel has
        // nothing to say on a link that comes up.
        ns.exec(&format!(
            "ethtool -K {ifname} tx off gso off tso off gro off"
        ))?;
        let switch = format!("echo 1 > /proc/sys/net/ipv6/conf/{ifname}/disable_ipv6");
        quietly(ns.command("sh").args(["-c", &switch]))?;
        ns.ip(&format!("link set {ifname} up"))?;
    }
    Ok(())
}

/// Packets through an interface since it was made.
struct Counters {
    packets_in: u64,
    dropped_in: u64,
    packets_out: u64,
}

fn link(ns: &Netns, ifname: &str) -> Result<Value> {
    let text = ns.ip(&format!("-s -j -d link show dev {ifname}"))?;
    let mut links: Value = serde_json::from_str(&text)?;
    Ok(links[0].take())
}

fn counters(ns: &Netns, ifname: &str) -> Result<Counters> {
    let link = link(ns, ifname)?;
    let get = |direction: &str, name: &str| {
        let value = link["stats64"][direction][name].as_u64();
        value.with_context(|| format!("no counter {direction} {name}"))
    };
    Ok(Counters {
        packets_in: get("rx", "packets")?,
        dropped_in: get("rx", "dropped")?,
        packets_out: get("tx", "packets")?,
    })
}

/// Whether an XDP program is on the probed interface.
fn attached(ns: &Netns) -> Result<bool> {
    Ok(!link(ns, PROBED)?["xdp"].is_null())
}

fn program(ns: &Netns, binary: &Path) -> Command {
    ns.command(&PathBuf::from(binary).to_string_lossy())
}

/// A program of the demo, killed when dropped.
struct Running {
    name: &'static str,
    child: Child,
}

impl Running {
    /// Starts it. One that draws on the terminal has the terminal, keys included. Any other is in a
    /// process group of its own: the Ctrl-C of a terminal then comes to us alone, and we end the
    /// programs in the right order.
    fn start(name: &'static str, command: &mut Command, draws: bool) -> Result<Running> {
        if !draws {
            command.stdin(Stdio::null()).process_group(0);
        }
        Ok(Running {
            name,
            child: command.spawn().context(name)?,
        })
    }

    /// Waits for a state that the program brings about.
    fn until(
        &mut self,
        stop: &AtomicBool,
        what: &str,
        reached: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while !reached()? && !stop.load(Ordering::Relaxed) {
            if let Some(status) = self.ended()? {
                bail!("{} ended early: {status}", self.name);
            }
            ensure!(
                Instant::now() < until,
                "{} took more than {LIMIT:?} {what}",
                self.name
            );
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// What it wrote to its piped standard error; waits for its end.
    fn said(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }

    /// Asks it to end, as Ctrl-C would, and waits; kills it when it does not.
    fn end(&mut self) -> Result<ExitStatus> {
        // An error means that it has ended.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT);
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            sleep(Duration::from_millis(10));
        }
        bail!("{} did not end within {LIMIT:?} of SIGINT", self.name);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
