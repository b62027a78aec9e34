//! A card goes back to its kernel driver when its user ends, by whatever death: a small process of
//! its own waits for the end of a pipe that the user holds.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use sys::pci::{PciAddress, PciFunction};
use sys::{Error, Result};

use super::{Owner, Place, plan, refuse};
use crate::card::Card;

/// How often a card that is still in use is looked at again.
const LOOK: Duration = Duration::from_millis(50);

/// The one who waits, seen from the process that it waits for. Dropped, the card goes back.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the process: `command` must end up in [`keep_watch`]. It keeps the rights that this
    /// process has now, hears none of the terminal's signals, and does not hold our outputs open
    /// but for errors.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from_io("start the process that gives the card back", error))?;
        Ok(Self { child })
    }

    /// Has the card given back now and waits until it is; whether that went well.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub fn release(mut self) -> Result<bool> {
        self.end()
    }

    fn end(&mut self) -> Result<bool> {
        drop(self.child.stdin.take());
        let status = self.child.wait();
        status
            .map(|status| status.success())
            .map_err(|error| Error::from_io("wait until the card is given back", error))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What the process does: waits for the end of standard input, then until nobody drives the card
/// any more, and gives it to the kernel.
///
/// # Errors
/// When it cannot be given back.
pub fn keep_watch(place: &Place, address: PciAddress) -> Result<()> {
    let mut byte = [0];
    // The other end writes nothing; a byte is as good as none.
    while io::stdin().read(&mut byte).is_ok_and(|count| count != 0) {}
    let function = PciFunction::find_under(&place.bus(), address)?;
    while let Ok(card) = Card::of(&function)
        && refuse::user(place, &function, &card).is_some()
    {
        thread::sleep(LOOK);
    }
    plan(place, address, Owner::Kernel, true)?.carry_out()
}
