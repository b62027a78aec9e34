//! `barewire doctor`: checks of host support, each with a fix.

use std::io::{self, Write};

use runtime::doctor::{CHECKS, Finding};
use serde_json::json;
use sys::{Error, Result};

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs all checks and prints them. Problems are findings, not errors: the exit code is 0.
pub fn run(args: &Args) -> Result<()> {
    let mut out = Vec::new();
    let written = if args.json {
        write_json(&mut out)
    } else {
        write_text(&mut out)
    };
    written
        .and_then(|()| io::stdout().write_all(&out))
        .map_err(|e| Error::from_io("write the report", e))
}

fn write_text(out: &mut impl Write) -> io::Result<()> {
    let width = CHECKS
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    let mut open = 0;
    for check in CHECKS {
        let (mark, text, hint) = match (check.run)() {
            Finding::Yes(text) => ("ok", text, None),
            Finding::Partly(why, hint) => ("partly", why, Some(hint)),
            Finding::No(why, hint) => ("NO", why, Some(hint)),
            Finding::Unknown(why) => ("unknown", why, None),
        };
        writeln!(out, "{mark:<8} {:<width$}  {text}", check.name)?;
        if let Some(hint) = hint {
            open += 1;
            writeln!(out, "{:8} {:<width$}  for: {}", "", "", check.serves)?;
            writeln!(out, "{:8} {:<width$}  hint: {hint}", "", "")?;
        }
    }
    match open {
        0 => writeln!(
            out,
            "\nno problems found; `barewire devices` lists the interfaces"
        ),
        n => writeln!(
            out,
            "\n{n} to fix or improve; `barewire devices` lists the interfaces"
        ),
    }
}

fn write_json(out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<_> = CHECKS
        .iter()
        .map(|check| {
            let (state, text, hint) = match (check.run)() {
                Finding::Yes(text) => ("yes", text, None),
                Finding::Partly(why, hint) => ("partly", why, Some(hint)),
                Finding::No(why, hint) => ("no", why, Some(hint)),
                Finding::Unknown(why) => ("unknown", why, None),
            };
            json!({
                "check": check.name, "serves": check.serves, "state": state, "text": text,
                "hint": hint,
            })
        })
        .collect();
    writeln!(out, "{}", json!({ "checks": rows }))
}
