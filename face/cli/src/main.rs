//! The barewire command: one binary, one file per subcommand in `cmd/`.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod config;
mod confine;
mod exit;
mod fifo;
mod inputs;
mod interface;
mod kept;
mod live;
mod nmap;
mod out;
mod report;
mod short;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser};
use sys::Result;

/// Capture, replay, forward and meter packets.
#[derive(Parser)]
#[command(name = "barewire", version, about)]
#[command(after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> std::process::ExitCode {
    if let Ok(program) = std::env::current_exe() {
        ::nic::bind::guarded_by(program, &["nic", "guard"]);
    }
    let code = match nmap::replace(std::env::args_os().collect()).and_then(config::expand) {
        Ok(arguments) => exit::report(run(arguments)),
        Err(error) => exit::report(Err(error)),
    };
    out::finish();
    code
}

/// Parses the arguments, and runs the command.
fn run(arguments: Vec<OsString>) -> Result<()> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(arguments);
    let matches = matches.unwrap_or_else(|error| exit::usage(&error));
    let cli = Cli::from_arg_matches(&matches);
    let cli = cli.unwrap_or_else(|error| exit::usage(&error.format(&mut command)));
    kept::keep_inputs(&command, &matches)?;
    cmd::run(&cli.command)
}
