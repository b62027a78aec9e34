//! The barewire command: one binary, one file per subcommand in `cmd/`.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod config;
mod confine;
mod exit;
mod fifo;
mod inputs;
mod live;
mod nmap;
mod out;
mod report;
mod short;

use clap::Parser;

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
        Ok(arguments) => match Cli::try_parse_from(arguments) {
            Ok(cli) => exit::report(cmd::run(&cli.command)),
            Err(error) => exit::usage(&error),
        },
        Err(error) => exit::report(Err(error)),
    };
    out::finish();
    code
}
