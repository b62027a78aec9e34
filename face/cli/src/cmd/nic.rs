//! `barewire nic`: PCI network cards, the drivers they are bound to, and their queues.

mod bind;
mod hold;
mod isolate;

use std::io::{self, Write};

use ::nic::Card;
use ::nic::bind::Place;
use ::nic::isolate::{self as queues, Store};
use serde_json::{Value, json};
use sys::{Error, Result};

use crate::out::now;

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
    Bind(bind::BindArgs),
    /// Give a class of packets a receive queue of its own, by rules of the card
    Isolate(isolate::IsolateArgs),
    /// Bind a card back to its kernel driver when standard input is closed
    #[command(hide = true)]
    Guard {
        /// Its PCI address
        address: String,
    },
    /// Undo the isolation of a queue when standard input is closed
    #[command(hide = true)]
    GuardQueue {
        /// Index of the interface
        index: u32,
    },
}

/// Arguments of `nic list`.
#[derive(clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists, binds or isolates.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::List(args) => list(args),
        Action::Bind(args) => args.bind(),
        Action::Isolate(args) => args.isolate(),
        Action::Guard { address } => {
            ::nic::bind::guard_until_closed(&Place::default(), address.parse()?)
        }
        Action::GuardQueue { index } => {
            let notes = queues::undo_when_closed(&Store::default(), *index)?;
            for note in notes {
                now!("note: {note}");
            }
            Ok(())
        }
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let cards = ::nic::cards()?;
    let mut out = Vec::new();
    let written = match args.json {
        true => {
            let list: Vec<Value> = cards.iter().map(to_json).collect();
            writeln!(out, "{}", json!({ "type": "cards", "cards": list }))
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
