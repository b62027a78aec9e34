//! The subcommands. A new one is a file with `Args` and `run`, and a row in [`Command`] and
//! [`run`].

mod capture;
mod devices;
mod doctor;
pub mod flows;
mod forward;
mod generate;
mod nic;
mod send;

use sys::Result;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Write packets to a file, or print a line each
    Capture(Box<capture::Args>),
    /// List the interfaces: driver, speed, queues, XDP modes, who holds XDP
    Devices(devices::Args),
    /// Tell what this machine can do, why not, and what to do about it
    Doctor(doctor::Args),
    /// Replay a capture, or send generated packets, at a rate
    Send(Box<send::Args>),
    /// Pass packets from one port to another, or both ways, without copying them where that can be
    Forward(Box<forward::Args>),
    /// Show the flows of an interface or a capture
    Flows(Box<flows::Args>),
    /// List network cards, and give them to user-mode drivers or back to the kernel
    Nic(nic::Args),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArgs),
    /// Write the man pages into a folder
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
        Command::Flows(args) => flows::run(args),
        Command::Nic(args) => nic::run(args),
        Command::Completions(args) => generate::completions(args),
        Command::Man(args) => generate::man(args),
    }
}
