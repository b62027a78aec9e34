//! `barewire doctor`: checks of host support, each with a fix.

use std::io::{self, Write};

use export::query::Engine;
use runtime::doctor::{CHECKS, Check, Finding};
use serde_json::json;
use sys::{Error, Result};

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A check for this program only, after the checks of the host.
const DUCKDB: Check = Check {
    name: "DuckDB",
    serves: "flows query",
    run: duckdb,
};

/// Headings of the report and the states below them, in its order.
const GROUPS: &[(&str, &str)] = &[
    ("Works", "yes"),
    ("Works, with limits", "partly"),
    ("Does not work", "no"),
    ("Could not be checked", "unknown"),
];

/// The result of a check.
struct Row {
    check: &'static Check,
    state: &'static str,
    text: String,
    hint: Option<String>,
}

/// Runs all checks and prints them. Problems are findings, not errors: the exit code is 0.
pub fn run(args: &Args) -> Result<()> {
    let rows: Vec<Row> = CHECKS.iter().chain([&DUCKDB]).map(Row::of).collect();
    let mut out = Vec::new();
    let written = if args.json {
        write_json(&mut out, &rows)
    } else {
        write_text(&mut out, &rows)
    };
    written
        .and_then(|()| io::stdout().write_all(&out))
        .map_err(|e| Error::from_io("write the report", e))
}

impl Row {
    fn of(check: &'static Check) -> Row {
        let (state, text, hint) = match (check.run)() {
            Finding::Yes(text) => ("yes", text, None),
            Finding::Partly(why, hint) => ("partly", why, Some(hint)),
            Finding::No(why, hint) => ("no", why, Some(hint)),
            Finding::Unknown(why) => ("unknown", why, None),
        };
        Row {
            check,
            state,
            text,
            hint,
        }
    }
}

fn duckdb() -> Finding {
    match Engine::find(None) {
        Ok(Engine::Program(path)) => Finding::Yes(path.display().to_string()),
        Ok(Engine::Python(path)) => Finding::Yes(format!("module of {}", path.display())),
        Err(e) => Finding::No(
            e.why().to_owned(),
            e.hint().unwrap_or("pip install duckdb").to_owned(),
        ),
    }
}

fn write_text(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let widths = rows.iter().map(|row| row.check.name.len());
    let width = widths.max().unwrap_or(0);
    for (heading, state) in GROUPS {
        let mut heading = Some(heading);
        for row in rows.iter().filter(|row| row.state == *state) {
            if let Some(heading) = heading.take() {
                writeln!(out, "{heading}:")?;
            }
            write!(out, "  {:<width$}  {}", row.check.name, row.text)?;
            match row.hint {
                // The hint is listed below, by name.
                Some(_) => writeln!(out, " (for {})", row.check.serves)?,
                None => writeln!(out)?,
            }
        }
        if heading.is_none() {
            writeln!(out)?;
        }
    }
    let hints: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row.check.name, row.hint.as_ref()?)))
        .collect();
    if hints.is_empty() {
        return writeln!(out, "`barewire devices` lists the interfaces");
    }
    writeln!(out, "How to get more:")?;
    for (name, hint) in hints {
        writeln!(out, "  {name:<width$}  {hint}")?;
    }
    writeln!(out, "\n`barewire devices` lists the interfaces")
}

fn write_json(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "check": row.check.name, "serves": row.check.serves, "state": row.state,
                "text": row.text, "hint": row.hint,
            })
        })
        .collect();
    writeln!(out, "{}", json!({ "type": "checks", "checks": rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check {
        name: "a check",
        serves: "tests",
        run: || Finding::No("absent".into(), "install it".into()),
    };

    #[test]
    fn lines_are_grouped_and_hints_come_last() {
        let row = |state, text: &str, hint: Option<&str>| Row {
            check: &CHECK,
            state,
            text: text.into(),
            hint: hint.map(str::to_owned),
        };
        let rows = [
            row("partly", "old", Some("update it")),
            row("yes", "there", None),
            Row::of(&CHECK),
            row("yes", "there, too", None),
        ];
        let mut out = Vec::new();
        write_text(&mut out, &rows).unwrap();
        let expected = "\
Works:
  a check  there
  a check  there, too

Works, with limits:
  a check  old (for tests)

Does not work:
  a check  absent (for tests)

How to get more:
  a check  update it
  a check  install it

`barewire devices` lists the interfaces
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        write_text(&mut out, &rows[1..2]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains("How to get more"), "{text}");
    }

    #[test]
    fn optional_programs_and_libraries_are_among_the_checks() {
        for name in ["libpcap", "libndpi", "librdkafka", "DuckDB"] {
            let mut all = CHECKS.iter().chain([&DUCKDB]);
            assert!(all.any(|check| check.name == name), "{name}");
        }
    }
}
