//! `barewire completions` and `barewire man`: made from the definitions of the flags, so they
//! cannot be stale.

use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;
use sys::{Error, Result};

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Folder for the pages; made if it is missing
    folder: PathBuf,
}

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::Cli::command(),
        "barewire",
        &mut script,
    );
    let write = std::io::stdout().write_all(&script);
    write.map_err(|e| Error::from_io("write the script", e))
}

/// Writes `barewire.1` and a page for each subcommand.
pub fn man(args: &ManArgs) -> Result<()> {
    let at = |what: &str| format!("{what} {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).map_err(|e| Error::from_io(at("make"), e))?;
    clap_mangen::generate_to(crate::Cli::command(), &args.folder)
        .map_err(|e| Error::from_io(at("write man pages into"), e))
}
