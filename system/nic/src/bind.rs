//! Binds a card to vfio-pci instead of its kernel driver, so that a process can use it, and back
//! (`Documentation/ABI/testing/sysfs-bus-pci` of the kernel).
//!
//! [`plan`] determines the steps, which can be printed; [`Plan::carry_out`] executes them. The
//! former driver is recorded in a file below `/run`, so that exactly this driver is bound again.

mod guard;
mod refuse;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use sys::pci::{PciAddress, PciFunction};
use sys::{Error, ErrorKind, Result};

use crate::card::Card;
use crate::records;

pub use crate::guardian::Guard;
pub use guard::{borrow, guard_until_closed, guarded_by};

/// The driver that gives a card to a process.
pub const VFIO: &str = "vfio-pci";

/// The directories that the steps read and write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// A directory with one file for each card that we have bound to vfio-pci, which names the
    /// former driver; other users must not be able to write in it.
    pub memory: PathBuf,
    /// Whether its interfaces are those of this namespace: then the kernel can be asked for what is
    /// not in sysfs.
    pub is_live: bool,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            memory: records::FOLDER.into(),
            is_live: true,
        }
    }
}

impl Place {
    pub(crate) fn bus(&self) -> PathBuf {
        self.sys.join("bus/pci")
    }

    fn former_file(&self, address: PciAddress) -> PathBuf {
        self.memory.join(format!("bind-{address}"))
    }

    /// The recorded driver, which may be empty; `None` without a record.
    fn former(&self, address: PciAddress) -> Result<Option<String>> {
        let file = self.former_file(address);
        let text = records::read(&file).map_err(|error| {
            let what = format!("read the record {}", file.display());
            Error::from_io(what, error).with_hint("run as root; delete what another user made")
        })?;
        Ok(text.map(|text| text.trim().to_owned()))
    }
}

/// The intended user of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A process, through vfio-pci.
    Vfio,
    /// The kernel, by the driver that had it before.
    Kernel,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Load a module.
    Load(&'static str),
    /// Write a file of sysfs.
    Write {
        /// The file.
        file: PathBuf,
        /// The text; a line feed alone clears the file.
        text: String,
    },
    /// Record the former driver.
    Remember {
        /// The file that records it.
        file: PathBuf,
        /// Its name; empty if there was none.
        driver: String,
    },
    /// Delete the record.
    Forget(PathBuf),
}

impl fmt::Display for Step {
    /// Formats it as a shell command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(module) => write!(f, "modprobe {module}"),
            Self::Write { file, text } => {
                write!(f, "echo {} > {}", text.trim(), file.display())
            }
            Self::Remember { file, driver } => write!(f, "echo {driver} > {}", file.display()),
            Self::Forget(file) => write!(f, "rm -f {}", file.display()),
        }
    }
}

/// The steps that bind a card to another driver.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The present state of the card.
    pub card: Card,
    /// The steps in order; none if nothing needs to be changed.
    pub steps: Vec<Step>,
    /// The driver that must be bound afterwards, if known.
    pub wanted: Option<String>,
    place: Place,
    function: PciFunction,
}

/// Finds a card by its PCI address, or by the name of its interface.
///
/// # Errors
/// `NotFound`, with what there is.
pub fn find(place: &Place, name: &str) -> Result<PciAddress> {
    let parsed = name.parse::<PciAddress>();
    let device = place.sys.join("class/net").join(name).join("device");
    match parsed {
        Ok(address) => Ok(address),
        Err(error) if name.contains('/') || name.is_empty() => Err(error),
        Err(error) => {
            let Ok(device) = fs::canonicalize(device) else {
                let why = "there is no such interface, and it is not a PCI address";
                let error = error.with_why(why).with_kind(ErrorKind::NotFound);
                return Err(error.with_hint("`barewire nic list` shows the cards"));
            };
            // The device of a virtio card is a child of the function.
            let found = device
                .ancestors()
                .find_map(|folder| folder.file_name()?.to_str()?.parse().ok());
            found.ok_or_else(|| {
                let why = "its interface does not belong to a PCI card";
                Error::new(
                    ErrorKind::InvalidInput,
                    format!("find the card of {name}"),
                    why,
                )
                .with_hint("`barewire nic list` shows the cards")
            })
        }
    }
}

/// Determines the steps that give the card to `owner`; `force` skips the checks that protect users
/// of the card.
///
/// # Errors No such device, not a network card, no IOMMU, its group shared, its interface in use,
/// the modules absent: each with what to do about it.
pub fn plan(place: &Place, address: PciAddress, owner: Owner, force: bool) -> Result<Plan> {
    let function = PciFunction::find_under(&place.bus(), address)
        .map_err(|error| error.with_hint("`barewire nic list` shows the cards"))?;
    refuse::other_devices(&function)?;
    let card = Card::of(&function)?;
    let (steps, wanted) = match owner {
        Owner::Vfio => {
            refuse::no_iommu(&card)?;
            if !force {
                refuse::shared_group(&card)?;
                refuse::in_use_by_kernel(place, &function, &card)?;
            }
            (to_vfio(place, &function, &card)?, Some(VFIO.to_owned()))
        }
        Owner::Kernel => {
            if !force {
                refuse::in_use_by_process(place, &function, &card)?;
            }
            to_kernel(place, &function, &card)?
        }
    };
    Ok(Plan {
        card,
        steps,
        wanted,
        place: place.clone(),
        function,
    })
}

fn write(file: PathBuf, text: impl Into<String>) -> Step {
    let text = text.into();
    Step::Write { file, text }
}

/// The steps that both directions share: allow only one driver, unbind the present one, probe for
/// another.
fn change(place: &Place, function: &PciFunction, card: &Card, allow: &str) -> Vec<Step> {
    let address = card.address.to_string();
    let mut steps = vec![write(
        function.dir().join("driver_override"),
        format!("{allow}\n"),
    )];
    if card.driver.is_some() {
        steps.push(write(function.dir().join("driver/unbind"), &address));
    }
    steps.push(write(place.bus().join("drivers_probe"), &address));
    steps
}

fn to_vfio(place: &Place, function: &PciFunction, card: &Card) -> Result<Vec<Step>> {
    if card.driver.as_deref() == Some(VFIO) {
        return Ok(Vec::new());
    }
    let mut steps = Vec::new();
    for (module, sign) in [
        (VFIO, place.bus().join("drivers").join(VFIO)),
        (
            "vfio_iommu_type1",
            place.sys.join("module/vfio_iommu_type1"),
        ),
    ] {
        if !sign.is_dir() {
            steps.push(Step::Load(module));
        }
    }
    let file = place.former_file(card.address);
    // An earlier attempt may have failed half-way: then the existing record is right, not the
    // present state.
    if card.driver.is_some() || place.former(card.address)?.is_none() {
        steps.push(Step::Remember {
            file,
            driver: card.driver.clone().unwrap_or_default(),
        });
    }
    steps.extend(change(place, function, card, VFIO));
    Ok(steps)
}

fn to_kernel(
    place: &Place,
    function: &PciFunction,
    card: &Card,
) -> Result<(Vec<Step>, Option<String>)> {
    let file = place.former_file(card.address);
    let former = place.former(card.address)?;
    let is_remembered = former.is_some();
    let former = former.filter(|name| is_name(name));
    match card.driver.as_deref() {
        // It is not bound to vfio-pci.
        Some(driver) if driver != VFIO => {
            let mut steps = Vec::new();
            if is_remembered {
                // An attempt that failed half-way may have left this.
                if function.driver_override().as_deref() == Some(VFIO) {
                    steps.push(write(function.dir().join("driver_override"), "\n"));
                }
                steps.push(Step::Forget(file));
            }
            return Ok((steps, Some(driver.to_owned())));
        }
        _ => {}
    }
    let mut steps = match (&former, is_remembered) {
        // It had no driver before.
        (None, true) => {
            let mut steps = change(place, function, card, "");
            steps.pop();
            steps
        }
        // Not bound by us: the kernel chooses the driver by the PCI ID.
        (None, false) => change(place, function, card, ""),
        (Some(driver), _) => {
            let mut steps = change(place, function, card, driver);
            steps.push(write(function.dir().join("driver_override"), "\n"));
            steps
        }
    };
    if is_remembered {
        steps.push(Step::Forget(file));
    }
    Ok((steps, former))
}

/// Whether a recorded name can be that of a driver: it is written into sysfs later.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 64
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

impl Plan {
    /// Executes the steps. If one fails, the steps before it are undone.
    ///
    /// # Errors
    /// If a step fails, or if the card ends up with the wrong driver; the hint states if the
    /// previous state was not restored.
    pub fn carry_out(&self) -> Result<()> {
        let error = match self.change_and_check() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if self.wanted.as_deref() != Some(VFIO) {
            return Err(error);
        }
        // Restores the former state as far as possible: a card without a driver is of no use.
        let Err(left) = self.undo() else {
            return Err(error);
        };
        let address = self.card.address;
        Err(error.with_hint(format!(
            "it could not be undone ({left}): barewire nic bind kernel {address}"
        )))
    }

    /// Undoes the steps as far as possible: if one cannot be undone, the others still are.
    fn undo(&self) -> Result<()> {
        let back = plan(&self.place, self.card.address, Owner::Kernel, true)?;
        let mut result = Ok(());
        for step in &back.steps {
            // The record is deleted only if the former state is restored.
            if matches!(step, Step::Forget(_)) {
                result = result.and_then(|()| back.check());
            }
            if result.is_ok() || !matches!(step, Step::Forget(_)) {
                result = result.and(back.carry_out_step(step));
            }
        }
        result.and_then(|()| back.check())
    }

    /// Executes the steps and checks the driver. The record is deleted last, when the right driver
    /// is bound.
    fn change_and_check(&self) -> Result<()> {
        let is_change = |step: &&Step| !matches!(step, Step::Forget(_));
        for step in self.steps.iter().filter(is_change) {
            self.carry_out_step(step)?;
        }
        self.check()?;
        for step in self.steps.iter().filter(|step| !is_change(step)) {
            self.carry_out_step(step)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.steps.is_empty() || self.wanted.is_none() {
            return Ok(());
        }
        let now = self.function.driver();
        if now == self.wanted {
            return Ok(());
        }
        let wanted = self.wanted.as_deref().unwrap_or_default();
        let why = match now {
            Some(driver) => format!("it is bound to {driver} instead"),
            None => "no driver is bound to it now".to_owned(),
        };
        let what = format!("bind {} to {wanted}", self.card.address);
        Err(Error::new(ErrorKind::Io, what, why).with_hint("see the kernel log: dmesg | tail"))
    }

    fn carry_out_step(&self, step: &Step) -> Result<()> {
        match step {
            Step::Load(module) => self.load(module),
            Step::Write { file, text } => fs::write(file, text).map_err(|error| {
                let error = Error::from_io(format!("write {}", file.display()), error);
                match error.kind() {
                    ErrorKind::Permission => error.with_hint("run as root"),
                    _ => error.with_hint("see the kernel log: dmesg | tail"),
                }
            }),
            Step::Remember { file, driver } => {
                let written = records::write(file, &format!("{driver}\n"));
                written.map(drop).map_err(|error| {
                    let what = format!("record the driver of {}", self.card.address);
                    let error = Error::from_io(what, error);
                    error.with_hint("run as root; /run must exist")
                })
            }
            // If the record cannot be deleted, that is reported the next time.
            Step::Forget(file) => {
                let _ = fs::remove_file(file);
                Ok(())
            }
        }
    }

    /// Loads a module. The second module is built into some kernels, so it is only checked that the
    /// driver exists in the end.
    fn load(&self, module: &str) -> Result<()> {
        let output = Command::new("modprobe").arg(module).output();
        let is_there = self.place.bus().join("drivers").join(VFIO).is_dir();
        if module != VFIO || is_there {
            return Ok(());
        }
        let why = match output {
            Ok(output) if output.status.success() => {
                format!("there is still no driver {VFIO} afterwards")
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("modprobe cannot be run: {error}"),
        };
        let what = format!("load the kernel's module {module}");
        Err(Error::new(ErrorKind::Unsupported, what, why)
            .with_hint("it is part of the kernel's modules (CONFIG_VFIO_PCI); nothing was changed"))
    }
}

#[cfg(test)]
mod tests;
