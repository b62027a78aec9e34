//! `barewire guard check`: the rules of a file, warnings about those without effect, or its error.

use std::fmt::Write as _;
use std::path::Path;

use runtime::filter::Compiler;
use runtime::guard::{self, RuleSpec, Warning};
use serde_json::{Value, json};
use sys::{Error, ErrorKind, Result};

use super::show::{checked, matches};
use crate::exit;
use crate::out::{self, warning};
use crate::report::counted;

/// Maximum number of JSON lines queued for the reader.
const LINES_MAX: usize = 16;

/// Checks a file. An error in it ends the process.
pub fn run(file: &Path, compiler: Compiler, as_json: bool) -> Result<()> {
    let found = guard::read(file, compiler)
        .and_then(|rules| Ok((guard::check(&rules)?, guard::warnings(&rules)?, rules)));
    match found {
        Ok((insn_count, warnings, rules)) => show(&rules, insn_count, &warnings, as_json),
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            if as_json {
                print(&json!({ "type": "rules", "errors": [wrong(&error)] }))?;
            }
            exit::wrong_file(&error)
        }
        Err(error) => Err(error),
    }
}

fn print(value: &Value) -> Result<()> {
    out::print(&out::stdout(LINES_MAX)?, format!("{value}\n").into_bytes())
}

/// An error for JSON.
fn wrong(error: &Error) -> Value {
    let why = error.why();
    let line = why.strip_prefix("line ").and_then(|rest| {
        let (number, _) = rest.split_once(':')?;
        number.parse::<u64>().ok()
    });
    json!({ "line": line, "text": why })
}

/// Prints the rules of a file in the order of matching, the warnings, and the length of their
/// program.
fn show(rules: &[RuleSpec], insn_count: usize, warnings: &[Warning], as_json: bool) -> Result<()> {
    let mut rules: Vec<&RuleSpec> = rules.iter().collect();
    rules.sort_by_key(|rule| rule.priority);
    if as_json {
        return print(&json!({
            "type": "rules",
            "rules": rules.iter().map(|rule| checked(rule)).collect::<Vec<_>>(),
            "instructions": insn_count,
            "warnings": warnings.iter().map(warned).collect::<Vec<_>>(),
            "errors": [],
        }));
    }
    let mut text = String::new();
    for rule in &rules {
        let _ = writeln!(
            text,
            "{:>6}  {:<14} {}: {}",
            rule.priority,
            rule.verdict.to_string(),
            rule.name,
            matches(rule)
        );
    }
    for one in warnings {
        match &one.rule {
            Some(rule) => warning!("warning: rule \"{rule}\": {}", one.text),
            None => warning!("warning: {}", one.text),
        }
    }
    let warned = match warnings.len() {
        0 => String::new(),
        count => format!(", {}", counted(count as u64, "warning")),
    };
    let _ = writeln!(
        text,
        "{}, all valid{warned}; the program has {}",
        counted(rules.len() as u64, "rule"),
        counted(insn_count as u64, "instruction")
    );
    out::print(&out::stdout(LINES_MAX)?, text.into_bytes())
}

/// A warning for JSON.
fn warned(warning: &Warning) -> Value {
    json!({
        "kind": warning.kind,
        "rule": warning.rule,
        "by": warning.by,
        "text": warning.text,
    })
}
