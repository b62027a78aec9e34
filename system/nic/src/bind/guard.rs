//! Binds a card back to its kernel driver when the process that uses it ends, even by `kill -9`: a
//! small helper process waits for the end of a pipe that the user holds.
//!
//! The helper has its own session and its own name, so that it survives when the terminal is closed
//! or the program is killed by name (pkill(1)). It does not survive when the service or container
//! of both is stopped. In that case `barewire nic bind kernel` binds the card back.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use sys::pci::{PciAddress, PciFunction};
use sys::{Error, ErrorKind, Result};

use super::{Owner, Place, plan, refuse};
use crate::card::Card;

/// How often to check whether the card is still in use.
const LOOK: Duration = Duration::from_millis(50);
/// How long to wait for it on drop.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// The helper's name, for ps(1) and pkill(1): at most 15 bytes (`TASK_COMM_LEN`).
const NAME: &str = "nic-guardian";
/// What the helper writes when it is ready.
const READY: [u8; 6] = *b"ready\n";

/// The helper, as seen by the process that it waits for. Dropping this binds the card back.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the helper process: `command` must call [`guard_until_closed`]. The helper keeps the
    /// privileges that this process has now, receives none of the terminal's signals, and holds
    /// none of our outputs open but standard error. It is ready when this returns.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let failed = |error| Error::from_io("start the process that binds the card back", error);
        let child = command
            .arg0(NAME)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut guard = Self { child };
        let mut said = [0; READY.len()];
        let output = guard.child.stdout.take();
        match output.map(|mut output| output.read_exact(&mut said)) {
            Some(Ok(())) if said == READY => Ok(guard),
            _ => Err(failed(io::Error::other("it exited at once"))),
        }
    }

    /// Binds the card back now and waits until that is done; returns whether it succeeded.
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
            .map_err(|error| Error::from_io("wait until the card is bound back", error))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The helper waits for every process that has the card open, which may include this one:
        // then it continues when this one has exited.
        let end = Instant::now() + DROP_WAIT;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(LOOK);
        }
    }
}

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
    // If it leads a process group already (a shell started it), it needs no session of its own.
    let _ = sys::session::begin();
    // The name of the main thread is also that of the process.
    let _ = fs::write("/proc/self/comm", NAME);
    ready().map_err(|error| Error::from_io("tell that the card is guarded", error))?;
    let mut byte = [0];
    // The other end never writes; a byte would be ignored.
    while io::stdin().read(&mut byte).is_ok_and(|count| count != 0) {}
    return_card(place, address)
}

fn ready() -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(&READY)?;
    output.flush()
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
