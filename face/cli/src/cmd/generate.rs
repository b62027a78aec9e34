//! `barewire completions` and `barewire man`: generated from the definitions of the flags, so they
//! are always current.

mod completion;
mod page;

use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;
use sys::create::CreateOptions;
use sys::{Error, Result};

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// Shell to write the script for
    shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Directory for the pages; created if missing
    folder: PathBuf,
}

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let script = completion::script(args.shell, &crate::Cli::command());
    let write = std::io::stdout().write_all(script.as_bytes());
    write.map_err(|e| Error::from_io("write the script", e))
}

/// Writes `barewire.1` and a page for each subcommand, nested ones included.
pub fn man(args: &ManArgs) -> Result<()> {
    let at = |what: &str| format!("{what} {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).map_err(|e| Error::from_io(at("make"), e))?;
    for (name, text) in page::pages(crate::Cli::command()) {
        CreateOptions::BY_UMASK
            .create(&args.folder.join(name))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| Error::from_io(at("write man pages into"), e))?;
    }
    Ok(())
}
