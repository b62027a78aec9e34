//! Binds a card back to its kernel driver when the process that uses it ends: what the helper
//! process ([`guardian`]) does for a card. If the helper was ended too, `barewire
//! nic bind kernel` binds the card back.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use sys::pci::{PciAddress, PciFunction};
use sys::{Error, ErrorKind, Result};

use super::{Owner, Place, plan, refuse};
use crate::card::Card;
use crate::guardian::{self, Guard};

/// How often to check whether the card is still in use.
const LOOK: Duration = Duration::from_millis(50);

/// The program that calls [`guard_until_closed`], with its arguments before the card's address.
static GUARDIAN: OnceLock<(PathBuf, Vec<String>)> = OnceLock::new();

/// Sets the program that, with these arguments and a card's address appended, calls
/// [`guard_until_closed`]. Called once per process, by its main function; without it no card can be
/// borrowed.
pub fn guarded_by(program: PathBuf, args: &[&str]) {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    // The first call wins.
    let _ = GUARDIAN.set((program, args));
}

/// Takes a card from its kernel driver until the guard is dropped or this process dies; `None` if
/// vfio-pci is already bound, which is then left bound.
///
/// # Errors
/// As [`plan`] without force and [`Plan::carry_out`](super::Plan::carry_out); `Unsupported` in a
/// program without a helper to guard the card.
pub fn borrow(address: PciAddress) -> Result<Option<Guard>> {
    let plan = plan(&Place::default(), address, Owner::Vfio, false)?;
    if plan.steps.is_empty() {
        return Ok(None);
    }
    let Some((program, args)) = GUARDIAN.get() else {
        let why = "this program has no helper process to bind the card back when it dies";
        let error = Error::new(ErrorKind::Unsupported, format!("take {address}"), why);
        return Err(error.with_hint(format!("barewire nic bind vfio {address}")));
    };
    let mut command = Command::new(program);
    command.args(args).arg(address.to_string());
    // Started before anything is changed, so that the card is returned after any crash.
    let guard = Guard::start(command)?;
    plan.carry_out()?;
    Ok(Some(guard))
}

/// The helper's main function: waits for the end of standard input, then until no process uses the
/// card any more, and binds the card to the kernel driver.
///
/// # Errors
/// When it cannot be returned.
pub fn guard_until_closed(place: &Place, address: PciAddress) -> Result<()> {
    guardian::wait_until_closed(guardian::NAME)?;
    return_card(place, address)
}

fn return_card(place: &Place, address: PciAddress) -> Result<()> {
    let function = PciFunction::find_under(&place.bus(), address)?;
    while let Ok(card) = Card::of(&function)
        && refuse::user(place, &function, &card).is_some()
    {
        thread::sleep(LOOK);
    }
    plan(place, address, Owner::Kernel, true)?.carry_out()
}
