//! The subcommands. A new one is a file with `Args` and `run`, and a row in [`Command`] and
//! [`run`].

mod capture;
mod cluster;
mod devices;
mod doctor;
mod extcap;
mod filter;
pub mod flows;
mod forward;
mod generate;
mod guard;
mod nic;
mod scan;
mod send;

use sys::Result;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Capture packets: print them, or write them to a file
    Capture(Box<capture::Args>),
    /// List interfaces: driver, speed, queues, XDP modes, attached XDP programs
    Devices(devices::Args),
    /// Check host support and suggest fixes
    Doctor(doctor::Args),
    /// Replay a capture or send generated packets at a given rate
    Send(Box<send::Args>),
    /// Forward packets from one port to another or both ways, zero-copy where possible
    Forward(Box<forward::Args>),
    /// Receive packets once and hand them to several programs, balanced by flow, without a copy
    Cluster(cluster::Args),
    /// Drop or limit packets in the driver (XDP), by rules
    Guard(Box<guard::Args>),
    /// Scan networks for open ports, without keeping state per probe
    Scan(Box<scan::Args>),
    /// Compile filters for the kernel and iptables; test them on a capture file
    Filter(Box<filter::Args>),
    /// Meter flows on an interface or in a capture file; show, record and export them
    Flows(Box<flows::Args>),
    /// List network cards, bind them to vfio-pci and back, give a class of packets its own queue
    Nic(nic::Args),
    /// Capture for Wireshark (extcap)
    #[command(hide = true)]
    Extcap(extcap::Args),
    /// Print a shell completion script
    Completions(generate::CompletionsArgs),
    /// Write the man pages to a directory
    Man(generate::ManArgs),
}

/// Runs a subcommand.
pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Capture(args) => capture::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Send(args) => send::run(args),
        Command::Forward(args) => forward::run(args),
        Command::Cluster(args) => cluster::run(args),
        Command::Guard(args) => guard::run(args),
        Command::Scan(args) => scan::run(args),
        Command::Flows(args) => flows::run(args),
        Command::Filter(args) => filter::run(args),
        Command::Nic(args) => nic::run(args),
        Command::Extcap(args) => extcap::run(args),
        Command::Completions(args) => generate::completions(args),
        Command::Man(args) => generate::man(args),
    }
}
