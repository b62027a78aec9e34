//! `barewire nic bind`: gives a card to a process, or back to the kernel.

use std::io::{self, Write};

use ::nic::bind::{self, Owner, Place, Plan};
use clap::ValueEnum;
use sys::pci::PciAddress;
use sys::{Error, ErrorKind, Result};

use super::hold::Held;
use crate::out::now;

/// Arguments of `nic bind`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(super) struct BindArgs {
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
driver it had before (recorded in /run/barewire-nic).

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

impl BindArgs {
    pub(super) fn bind(&self) -> Result<()> {
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
        // Before anything is changed, so that no crash can leave it changed.
        let held = Held::start(&["guard", &address.to_string()])?;
        plan.carry_out()?;
        report(plan);
        let code = held.wait(&self.run, "bind it back")?;
        if !code.undone {
            let what = format!("bind {address} back");
            return Err(
                Error::new(ErrorKind::Io, what, "the helper process failed; see above")
                    .with_hint(format!("barewire nic bind kernel {address}")),
            );
        }
        now!("{address} is bound to its kernel driver again");
        code.end()
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
