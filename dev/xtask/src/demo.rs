//! `cargo xtask demo`: from packets on a wire to flows on screen, in one command.
//!
//! Two namespaces are connected by a veth pair. `barewire send` replays a capture of real programs
//! into one end; `barewire flows` receives the packets on the other through AF_XDP. At the end the
//! kernel's own counters of both ends are printed with the programs' counts.

mod account;
mod steps;

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
use crate::run::{cargo, need_root, no_more, quietly, root, take_flag, take_option, target_dir};
use crate::setup::{self, Set};
use account::{Applications, Figures, Kernel};
use steps::Steps;

/// Interface that sends, in its own namespace.
const SENDER: &str = "tx0";

/// Interface that is probed, in its own namespace.
pub const PROBED: &str = "rx0";

/// Address of the probe's metrics, in its namespace.
const METRICS: &str = "127.0.0.1:14739";

/// How long a program may take to start, or to end once it was asked to.
const LIMIT: Duration = Duration::from_secs(15);

/// The user's options.
struct Options {
    seconds: u64,
    rate: String,
    queues: u32,
    keep: bool,
    /// Draw the table on the terminal while it runs, rather than one line each second.
    live: bool,
}

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let number = |text: Option<String>, default: u64| match text {
        Some(text) => text
            .parse()
            .with_context(|| format!("not a number: {text}")),
        None => Ok(default),
    };
    let given = take_option(&mut args, "--binary")?.map(PathBuf::from);
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
    let folder = target_dir()?.join("demo");
    let mut steps = Steps::new(4, folder.join("build.log"))?;
    steps.begin(&format!(
        "build barewire; the output is in {}",
        short(steps.log())
    ));
    setup::ensure_with(&[Set::Demo], |command| {
        steps.run("installing packages", command)
    })?;
    let binary = match given {
        Some(binary) => std::path::absolute(binary)?,
        None => {
            let build = ["build", "--release", "--package", "barewire-cli"];
            steps.run("building", cargo().args(build))?;
            target_dir()?.join("release/barewire")
        }
    };
    steps.end();
    let mut traffic = Traffic::demo(binary);
    traffic.rate.clone_from(&options.rate);
    let demo = Demo {
        records: folder.join("flows.json"),
        traffic,
        options,
    };

    // From here on Ctrl-C, SIGTERM and SIGHUP only request a stop; resources are dropped at the
    // normal exit.
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed))?;
    demo.show(&mut steps, &stop)?;
    demo.next(&steps);
    Ok(ExitCode::SUCCESS)
}

/// The files of the demo.
struct Demo {
    options: Options,
    traffic: Traffic,
    /// The probe's export.
    records: PathBuf,
}

/// The replayed capture, repeated until stopped.
pub struct Traffic {
    binary: PathBuf,
    capture: PathBuf,
    rate: String,
}

impl Traffic {
    /// A capture of real programs, by this binary.
    pub fn demo(binary: PathBuf) -> Traffic {
        Traffic {
            binary,
            capture: root().join("testdata/captures/lab-mix.pcapng"),
            rate: "20kpps".into(),
        }
    }

    /// Starts it in this namespace.
    pub fn start(&self, ns: &Netns) -> Result<Running> {
        let mut send = program(ns, &self.binary);
        // With the qdisc the kernel selects the queue by flow, as RSS of a card does; otherwise all
        // packets would be sent on one processor's queue.
        let port = format!("afpacket:{SENDER}?qdisc_bypass=no");
        send.arg("send").arg(&self.capture).arg(port);
        send.args(["--rate", &self.rate, "--loop", "0"]);
        // Its summary would be printed over the live view.
        send.stdout(Stdio::null()).stderr(Stdio::piped());
        Running::start("barewire send", &mut send, false)
    }
}

/// The outcome of the run.
struct Run {
    figures: Option<Figures>,
    /// The view was closed before the sender ended.
    closed_first: bool,
}

impl Demo {
    /// The second and later steps; every namespace and process they create ends with them.
    fn show(&self, steps: &mut Steps, stop: &AtomicBool) -> Result<()> {
        let options = &self.options;
        sweep()?;
        steps.begin("join two network namespaces by a veth pair");
        let (mut sender, mut probed) = (Netns::new()?, Netns::new()?);
        join(&sender, &probed, options.queues)?;
        if options.keep {
            sender.keep();
            probed.keep();
        }
        println!(
            "    {SENDER} in {}, {PROBED} in {}; {} queues each",
            sender.name, probed.name, options.queues
        );
        steps.end();

        steps.begin(&format!(
            "replay {} into {SENDER} at {} for {} s; meter flows on {PROBED} by AF_XDP",
            self.traffic
                .capture
                .file_name()
                .unwrap_or_default()
                .display(),
            options.rate,
            options.seconds,
        ));
        let before = (counters(&sender, SENDER)?, counters(&probed, PROBED)?);
        let run = self.replay((&sender, &probed), before.1.packets_in, stop)?;
        steps.end();

        steps.begin("account for every packet");
        let (sent, seen) = (counters(&sender, SENDER)?, counters(&probed, PROBED)?);
        let kernel = Kernel {
            sent: sent.packets_out - before.0.packets_out,
            received: seen.packets_in - before.1.packets_in,
            dropped: seen.dropped_in - before.1.dropped_in,
        };
        let records = std::fs::read_to_string(&self.records).unwrap_or_default();
        let applications = Applications::read(&records)?;
        print!("{}", account::words(&kernel, run.figures, &applications));
        if run.closed_first {
            println!("    The view was closed while packets were sent; it missed those after.");
        }
        Ok(())
    }

    /// Runs both programs to their ends.
    fn replay(
        &self,
        (sender, probed): (&Netns, &Netns),
        before: u64,
        stop: &AtomicBool,
    ) -> Result<Run> {
        let mut flows = self.probe(probed)?;
        flows.until(stop, "to attach to the interface", || attached(probed))?;
        let mut send = self.traffic.start(sender)?;
        let until = Instant::now() + Duration::from_secs(self.options.seconds);
        let mut flows_status = None;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            flows_status = flows.ended()?;
            if flows_status.is_some() {
                // In the live view Ctrl-C and `q` are keys.
                break;
            }
            if let Some(status) = send.ended()? {
                bail!("barewire send ended early: {status}\n{}", send.said());
            }
            sleep(Duration::from_millis(50));
        }
        // The sender first, so that no packet is in flight when the probe counts.
        let send_status = send.end()?;
        ensure!(
            send_status.success(),
            "barewire send: {send_status}\n{}",
            send.said()
        );
        let closed_first = flows_status.is_some();
        let mut figures = None;
        if !closed_first {
            let received = counters(probed, PROBED)?.packets_in - before;
            figures = settled(probed, &mut flows, received)?;
        }
        let flows_status = flows_status.map_or_else(|| flows.end(), Ok)?;
        ensure!(flows_status.success(), "barewire flows: {flows_status}");
        Ok(Run {
            figures,
            closed_first,
        })
    }

    fn probe(&self, ns: &Netns) -> Result<Running> {
        // The records of an earlier run would be counted as well.
        let _ = std::fs::remove_file(&self.records);
        let mut flows = program(ns, &self.traffic.binary);
        flows.arg("flows").arg(format!("afxdp:{PROBED}"));
        flows.args(["--decode", "all", "--sort", "bytes", "--metrics", METRICS]);
        flows
            .arg("--export")
            .arg(format!("json:{}", self.records.display()));
        if !self.options.live {
            // One snapshot of the live view, at the end.
            flows
                .args(["--once", "--duration", "24h"])
                .env("LINES", "24");
            flows.stderr(Stdio::piped());
        }
        Running::start("barewire flows", &mut flows, self.options.live)
    }

    /// Prints commands to try next, and the total time.
    fn next(&self, steps: &Steps) {
        let (program, capture) = (short(&self.traffic.binary), short(&self.traffic.capture));
        println!("\nAll of it took {}. What to try next:", steps.total());
        println!("  {program} doctor");
        println!("  {program} flows {capture} --decode all --report flows.html");
        println!("  {program} flows eth0     # your own interface; q quits");
    }
}

/// A path relative to the root of the repository, where users run the tasks.
fn short(path: &Path) -> String {
    let root = root();
    let own = path.strip_prefix(&root).unwrap_or(path);
    own.display().to_string()
}

/// Waits until the probe has counted as many packets as the interface has received; returns its
/// figures, or the last ones if they never agree.
fn settled(ns: &Netns, flows: &mut Running, received: u64) -> Result<Option<Figures>> {
    let until = Instant::now() + LIMIT;
    let mut last = None;
    while Instant::now() < until && flows.ended()?.is_none() {
        last = figures(ns).or(last);
        if last.is_some_and(|figures| figures.received() >= received) {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    Ok(last)
}

/// The metrics page, fetched by a shell in the namespace.
fn figures(ns: &Netns) -> Option<Figures> {
    let (host, port) = METRICS.split_once(':')?;
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    );
    let page = quietly(ns.command("bash").args(["-c", &script])).ok()?;
    Figures::read(&page)
}

/// Connects the two by a veth pair that carries nothing but what is sent.
pub fn join(sender: &Netns, probed: &Netns, queues: u32) -> Result<()> {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    sender.ip(&format!(
        "link add name {SENDER} {queues} type veth peer name {PROBED} {queues} netns {}",
        probed.name
    ))?;
    for (ns, ifname) in [(sender, SENDER), (probed, PROBED)] {
        // Without offloads a packet sent is a packet on the wire; without IPv6 the kernel sends
        // nothing on a link that comes up.
        ns.exec(&format!(
            "ethtool -K {ifname} tx off gso off tso off gro off"
        ))?;
        let switch = format!("echo 1 > /proc/sys/net/ipv6/conf/{ifname}/disable_ipv6");
        quietly(ns.command("sh").args(["-c", &switch]))?;
        ns.ip(&format!("link set {ifname} up"))?;
    }
    Ok(())
}

/// Packets through an interface since it was created.
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

/// Waits until the probe has attached to its interface.
pub fn wait_attached(flows: &mut Running, probed: &Netns) -> Result<()> {
    let never = AtomicBool::new(false);
    flows.until(&never, "to attach to the interface", || attached(probed))
}

/// Whether an XDP program is on the probed interface.
fn attached(ns: &Netns) -> Result<bool> {
    Ok(!link(ns, PROBED)?["xdp"].is_null())
}

fn program(ns: &Netns, binary: &Path) -> Command {
    ns.command(&PathBuf::from(binary).to_string_lossy())
}

/// A program of the demo, killed on drop.
pub struct Running {
    name: &'static str,
    child: Child,
}

impl Running {
    /// Starts it. A program that draws on the terminal has the terminal, keys included. Any other
    /// is in its own process group: Ctrl-C then reaches only the demo, which ends the programs in
    /// the right order.
    fn start(name: &'static str, command: &mut Command, draws: bool) -> Result<Running> {
        if !draws {
            command.stdin(Stdio::null()).process_group(0);
        }
        Running::spawn(name, command)
    }

    /// Starts it with the streams that the command has.
    pub fn spawn(name: &'static str, command: &mut Command) -> Result<Running> {
        Ok(Running {
            name,
            child: command.spawn().context(name)?,
        })
    }

    /// Waits for its end, which was requested.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            sleep(Duration::from_millis(10));
        }
        bail!("{} did not end within {limit:?}", self.name);
    }

    /// Waits for a state that the program is to reach.
    fn until(
        &mut self,
        stop: &AtomicBool,
        what: &str,
        reached: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while !reached()? && !stop.load(Ordering::Relaxed) {
            if let Some(status) = self.ended()? {
                let said = self.said();
                bail!("{} ended early: {status}\n{said}", self.name);
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

    /// Its exit status, if it has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Its piped standard error; waits for its end.
    fn said(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    }

    /// Interrupts it as Ctrl-C would, and waits; kills it if it does not end.
    pub fn end(&mut self) -> Result<ExitStatus> {
        // An error means that it has ended.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT);
        self.wait(LIMIT)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // The view restores the terminal on a signal.
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT);
            let _ = self.wait(Duration::from_secs(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
