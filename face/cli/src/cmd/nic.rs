//! `barewire nic`: PCI network cards and the drivers they are bound to.

use crate::out::now;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use ::nic::Card;
use ::nic::bind::{self, Guard, Owner, Place, Plan};
use clap::ValueEnum;
use runtime::Stop;
use serde_json::{Value, json};
use sys::pci::PciAddress;
use sys::{Error, ErrorKind, Result};

/// Signals that end the run (signal(7)).
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
/// Poll interval while a command runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

/// What to do.
#[derive(clap::Subcommand)]
enum Action {
    /// List network cards: PCI IDs, driver, IOMMU group, interfaces
    List(ListArgs),
    /// Bind a card to vfio-pci for user-space drivers, or back to its kernel driver
    Bind(BindArgs),
    /// Bind a card back to its kernel driver when standard input is closed
    #[command(hide = true)]
    Guard {
        /// Its PCI address
        address: String,
    },
}

/// Arguments of `nic list`.
#[derive(clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `nic bind`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
struct BindArgs {
    /// What to bind the card to
    #[arg(value_enum)]
    owner: OwnerText,
    /// PCI address of the card (0000:01:00.0), or the name of its interface
    #[arg(value_name = "PCI-ADDRESS")]
    card: String,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Bind even if the interface is in use or the IOMMU group is shared
    #[arg(long)]
    force: bool,
    /// Bind the card back when this command ends, even if it is killed
    #[arg(long, conflicts_with = "dry_run")]
    until_exit: bool,
    /// Run a command, and bind the card back when the command ends
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "CMD")]
    #[arg(conflicts_with_all = ["dry_run", "until_exit"])]
    run: Vec<String>,
}

const HELP: &str = "\
A card bound to vfio-pci has no kernel interface. `barewire nic bind kernel` rebinds it to the \
driver it had before (recorded in /run/barewire/bind).

Without --force, bind refuses a card that carries the default route or this SSH session, whose \
interface has an address, an XDP program or an upper device, or that shares its IOMMU group with \
another device. Without an IOMMU it always refuses: the card could write anywhere in memory.

With --until-exit and --run a small helper process binds the card back when barewire ends, even by \
kill -9.

Examples:
  barewire nic list
  barewire nic bind vfio 0000:01:00.0 --dry-run
  barewire nic bind vfio eth1 --run barewire capture vfio:0000:01:00.0 -c 10
  barewire nic bind kernel 0000:01:00.0";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OwnerText {
    /// vfio-pci, for user-space drivers
    Vfio,
    /// The kernel driver it had before
    Kernel,
}

/// Lists or binds.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::List(args) => list(args),
        Action::Bind(args) => args.bind(),
        Action::Guard { address } => bind::guard_until_closed(&Place::default(), address.parse()?),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let cards = ::nic::cards()?;
    let mut out = Vec::new();
    let written = match args.json {
        true => {
            let list: Vec<Value> = cards.iter().map(to_json).collect();
            writeln!(out, "{}", json!({ "cards": list }))
        }
        false => write_text(&mut out, &cards),
    };
    written
        .and_then(|()| io::stdout().write_all(&out))
        .map_err(|e| Error::from_io("write the list", e))
}

fn write_text(out: &mut impl Write, cards: &[Card]) -> io::Result<()> {
    if cards.is_empty() {
        return writeln!(out, "no PCI network cards");
    }
    for card in cards {
        let (vendor, device) = card.id;
        let driver = card.driver.as_deref().unwrap_or("no driver");
        write!(out, "{}  {vendor:04x}:{device:04x}  {driver}", card.address)?;
        for name in &card.interfaces {
            write!(out, ", interface {name}")?;
        }
        match card.group {
            Some(group) => write!(out, ", IOMMU group {group}")?,
            None => write!(out, ", no IOMMU")?,
        }
        if let Some(name) = port::user_mode_card(card.id) {
            write!(out, ", vfio: drives it ({name})")?;
        }
        for (other, driver) in &card.companions {
            let driver = driver.as_deref().unwrap_or("no driver");
            write!(out, ", shared with {other} ({driver})")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn to_json(card: &Card) -> Value {
    let companions: Vec<Value> = card
        .companions
        .iter()
        .map(|(address, driver)| json!({ "address": address.to_string(), "driver": driver }))
        .collect();
    let (vendor, device) = card.id;
    json!({
        "address": card.address.to_string(),
        "vendor": format!("{vendor:04x}"),
        "device": format!("{device:04x}"),
        "driver": card.driver,
        "iommu_group": card.group,
        "user_mode_driver": port::user_mode_card(card.id),
        "shared_with": companions,
        "interfaces": card.interfaces,
    })
}

impl BindArgs {
    fn bind(&self) -> Result<()> {
        let place = Place::default();
        let address = bind::find(&place, &self.card)?;
        let (owner, is_kernel) = match self.owner {
            OwnerText::Vfio => (Owner::Vfio, false),
            OwnerText::Kernel => (Owner::Kernel, true),
        };
        if is_kernel && (self.until_exit || !self.run.is_empty()) {
            let what = "--until-exit and --run are for `nic bind vfio`";
            crate::exit::wrong_usage("nic", what);
        }
        let plan = bind::plan(&place, address, owner, self.force)?;
        if self.dry_run {
            return dry_run(&plan);
        }
        if self.until_exit || !self.run.is_empty() {
            return self.for_a_while(address, &plan);
        }
        plan.carry_out()?;
        report(&plan);
        if !is_kernel {
            now!("to bind it back: barewire nic bind kernel {address}");
        }
        Ok(())
    }

    /// Binds the card, waits or runs the command, and binds the card back.
    fn for_a_while(&self, address: PciAddress, plan: &Plan) -> Result<()> {
        if plan.steps.is_empty() {
            let what = format!("bind {address} temporarily");
            let why = "it is already bound to vfio-pci, so there is no driver to bind it back to";
            return Err(Error::new(ErrorKind::Busy, what, why)
                .with_hint(format!("run `barewire nic bind kernel {address}` first")));
        }
        let stop = Stop::on_signals()?;
        // Before anything is changed, so that no crash can leave it changed.
        let program = std::env::current_exe()
            .map_err(|error| Error::from_io("find the path of this program", error))?;
        let mut command = Command::new(program);
        command.args(["nic", "guard", &address.to_string()]);
        let guard = Guard::start(command)?;
        plan.carry_out()?;
        report(plan);
        let result = match self.run.split_first() {
            None => {
                now!("press Ctrl-C to bind it back");
                while !stop.is_set() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(0)
            }
            Some((program, args)) => run_command(program, args, &stop),
        };
        if !guard.release()? {
            let what = format!("bind {address} back");
            return Err(
                Error::new(ErrorKind::Io, what, "the helper process failed; see above")
                    .with_hint(format!("barewire nic bind kernel {address}")),
            );
        }
        now!("{address} is bound to its kernel driver again");
        match result? {
            0 => Ok(()),
            code => std::process::exit(code),
        }
    }
}

/// Runs a command to its end and returns its exit code, or 128 plus the signal number if a signal
/// ended it, as a shell does. Termination signals are forwarded.
fn run_command(program: &str, args: &[String], stop: &Stop) -> Result<i32> {
    let failed = |error| Error::from_io(format!("run {program}"), error);
    let mut child = Command::new(program).args(args).spawn().map_err(failed)?;
    let mut passed_on = false;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            let by_signal = || status.signal().map(|signal| 128 + signal);
            return Ok(status.code().or_else(by_signal).unwrap_or(1));
        }
        if stop.is_set() && !std::mem::replace(&mut passed_on, true) {
            let signal = sys::signal::first().unwrap_or(SIGTERM);
            // Ctrl-C is sent to the whole foreground process group: the command already has it.
            let has_it = signal == SIGINT && File::open("/dev/tty").is_ok();
            if !has_it {
                // It may have ended in the meantime.
                let _ = sys::signal::send(child.id(), signal);
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn dry_run(plan: &Plan) -> Result<()> {
    let mut out = String::new();
    for step in &plan.steps {
        out += &format!("{step}\n");
    }
    if plan.steps.is_empty() {
        now!("nothing to do");
    }
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(|e| Error::from_io("write the plan", e))
}

fn report(plan: &Plan) {
    let card = &plan.card;
    let former = card.driver.as_deref().unwrap_or("no driver");
    match &plan.wanted {
        _ if plan.steps.is_empty() => now!("{}: nothing to do", card.address),
        Some(driver) => now!("{}: {former} -> {driver}", card.address),
        None => now!(
            "{}: {former} -> the driver that the kernel picks",
            card.address
        ),
    }
}
