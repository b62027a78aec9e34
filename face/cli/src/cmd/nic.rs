//! `barewire nic`: which network cards there are on PCI, and who drives them.

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

/// Signals that ask for the end (signal(7)).
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
/// How often it is looked whether a command has ended, or we are to.
const LOOK: Duration = Duration::from_millis(20);

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

/// What to do.
#[derive(clap::Subcommand)]
enum Action {
    /// List the network cards: ids, driver, IOMMU group, interfaces
    List(ListArgs),
    /// Give a card to user-mode drivers (vfio), or back to its kernel driver
    Bind(BindArgs),
    /// Give a card back when standard input ends
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
    /// Who is to drive it
    #[arg(value_enum)]
    owner: OwnerText,
    /// Its PCI address (0000:01:00.0), or the name of its interface
    #[arg(value_name = "PCI-ADDRESS")]
    card: String,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Even if its interface is in use, or its IOMMU group shared
    #[arg(long)]
    force: bool,
    /// Give it back when this command ends: on Ctrl-C, on SIGTERM, or by any other death
    #[arg(long, conflicts_with = "dry_run")]
    until_exit: bool,
    /// Run a command meanwhile, and give it back when that ends
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "CMD")]
    #[arg(conflicts_with_all = ["dry_run", "until_exit"])]
    run: Vec<String>,
}

const HELP: &str = "\
A card that vfio-pci has is no interface of the kernel's any more; it comes back by `barewire \
nic bind kernel`, to exactly the driver that it had (remembered in /run/barewire/bind).

Refused, unless forced, for the card that carries the default route or this very session, whose \
interface has an address, an XDP program or something on top, and where another device is in the \
same IOMMU group. Without an IOMMU it is refused in any case: a card could then write anywhere \
in memory.

With --until-exit and --run a small process of its own waits for the end and gives the card \
back, so that even kill -9 leaves the machine as it was.

Examples:
  barewire nic list
  barewire nic bind vfio 0000:01:00.0 --dry-run
  barewire nic bind vfio eth1 --run barewire capture vfio:0000:01:00.0 -c 10
  barewire nic bind kernel 0000:01:00.0";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OwnerText {
    /// Programs, through vfio-pci
    Vfio,
    /// The driver that had it before
    Kernel,
}

/// Lists or binds.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::List(args) => list(args),
        Action::Bind(args) => args.bind(),
        Action::Guard { address } => bind::keep_watch(&Place::default(), address.parse()?),
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
        return writeln!(out, "no network card on PCI");
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
            let what = "--until-exit and --run give a card back to the kernel in the end";
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
        tell(&plan);
        if !is_kernel {
            eprintln!("barewire nic bind kernel {address} gives it back");
        }
        Ok(())
    }

    /// Binds, waits or runs the command, and has the card given back.
    fn for_a_while(&self, address: PciAddress, plan: &Plan) -> Result<()> {
        if plan.steps.is_empty() {
            let what = format!("lend {address}");
            let why = "it is bound to vfio-pci already, so it would not be as before in the end";
            return Err(Error::new(ErrorKind::Busy, what, why)
                .with_hint(format!("barewire nic bind kernel {address}, then again")));
        }
        let stop = Stop::on_signals()?;
        // Before anything is changed, so that nobody's death can leave it changed.
        let program = std::env::current_exe()
            .map_err(|error| Error::from_io("find this very program", error))?;
        let mut command = Command::new(program);
        command.args(["nic", "guard", &address.to_string()]);
        let guard = Guard::start(command)?;
        plan.carry_out()?;
        tell(plan);
        let result = match self.run.split_first() {
            None => {
                eprintln!("Ctrl-C gives it back");
                while !stop.is_set() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(0)
            }
            Some((program, args)) => run_command(program, args, &stop),
        };
        if !guard.release()? {
            let what = format!("give {address} back");
            return Err(
                Error::new(ErrorKind::Io, what, "it did not work; see above")
                    .with_hint(format!("barewire nic bind kernel {address}")),
            );
        }
        eprintln!("{address} is back");
        match result? {
            0 => Ok(()),
            code => std::process::exit(code),
        }
    }
}

/// Runs a command to its end and gives back its exit code, 128 and the signal's number if one ended
/// it, as a shell does. A signal that asks us to end is passed on.
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
            // Ctrl-C goes to all who are in front at the terminal: the command has it already.
            let has_it = signal == SIGINT && File::open("/dev/tty").is_ok();
            if !has_it {
                // It may have ended meanwhile.
                let _ = sys::signal::send(child.id(), signal);
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn dry_run(plan: &Plan) -> Result<()> {
    let mut out = String::new();
    for step in &plan.steps {
        out += &format!("{step}\n");
    }
    if plan.steps.is_empty() {
        eprintln!("nothing is to be done");
    }
    io::stdout()
        .write_all(out.as_bytes())
        .map_err(|e| Error::from_io("write the plan", e))
}

fn tell(plan: &Plan) {
    let card = &plan.card;
    let former = card.driver.as_deref().unwrap_or("no driver");
    match &plan.wanted {
        _ if plan.steps.is_empty() => eprintln!("{}: nothing is to be done", card.address),
        Some(driver) => eprintln!("{}: from {former} to {driver}", card.address),
        None => eprintln!(
            "{}: from {former} to whichever driver knows it",
            card.address
        ),
    }
}
