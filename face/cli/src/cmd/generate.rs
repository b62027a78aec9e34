//! `barewire completions` and `barewire man`: made from the definitions of the flags, so they
//! cannot be stale.

use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;
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
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    let subcommands = command.get_subcommands().cloned().collect::<Vec<_>>();
    for command in subcommands.into_iter().chain([command]) {
        let name = clap_mangen::Man::new(command.clone()).get_filename();
        page(command)
            .and_then(|page| std::fs::write(args.folder.join(name), page))
            .map_err(|e| Error::from_io(at("write man pages into"), e))?;
    }
    Ok(())
}

/// A man page. The synopsis is the usage that the help shows: the generator's own lists every flag
/// and leaves out what it takes.
fn page(mut command: clap::Command) -> std::io::Result<String> {
    const HEAD: &str = ".SH SYNOPSIS\n";
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    let page = String::from_utf8(page).map_err(std::io::Error::other)?;
    let Some((before, rest)) = page.split_once(HEAD) else {
        return Ok(page);
    };
    let after = rest.find(".SH ").map_or("", |at| &rest[at..]);
    let usage = command.render_usage().to_string();
    let lines: Vec<String> = usage
        .trim_start_matches("Usage:")
        .lines()
        .map(|line| line.trim().replace('\\', "\\\\").replace('-', "\\-"))
        .collect();
    Ok(format!("{before}{HEAD}{}\n{after}", lines.join("\n.br\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synopses_name_what_is_to_be_given() {
        let mut command = crate::Cli::command();
        command.build();
        for (name, usage) in [
            ("capture", "barewire capture [OPTIONS] PORT [FILTER]..."),
            ("flows", "barewire flows [OPTIONS] <PORT> [FILTER]..."),
            ("man", "barewire man <FOLDER>"),
        ] {
            let page = page(command.find_subcommand(name).unwrap().clone()).unwrap();
            let (_, synopsis) = page.split_once(".SH SYNOPSIS\n").unwrap();
            assert_eq!(synopsis.lines().next(), Some(usage), "{page}");
        }
    }
}
