//! The record: a CSV with every round's value, a text, and a chart per measure, by machine and
//! date.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::rounds::{Outcome, Spread};
use crate::{machine, picture};

/// Writes a scenario's outcome; returns the file names.
pub fn write(folder: &Path, scenario: &str, outcome: &Outcome) -> Result<Vec<String>> {
    let folder = folder.join(machine::name());
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let stem = format!("{}-{scenario}", machine::date());
    let mut files = Vec::new();
    let mut save = |name: String, text: &str| -> Result<()> {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        files.push(path.display().to_string());
        Ok(())
    };
    save(format!("{stem}.csv"), &csv(outcome))?;
    save(format!("{stem}.txt"), &outcome.text())?;
    for (at, table) in outcome.tables.iter().enumerate() {
        save(
            format!("{stem}-{}.svg", at + 1),
            &picture::draw(scenario, table)?,
        )?;
    }
    Ok(files)
}

/// Quotes a field that may contain a comma (RFC 4180 §2).
fn quoted(field: &str) -> String {
    match field.contains([',', '"']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.into(),
    }
}

fn csv(outcome: &Outcome) -> String {
    let mut out = String::from("measure,unit,at,subject,round,value,ratio_median\n");
    for table in &outcome.tables {
        for series in &table.series {
            let ratio = table
                .ratio(series)
                .map_or(f64::NAN, |Spread { median, .. }| median);
            for (round, value) in series.values.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "{},{},{},{},{},{value},{ratio:.4}",
                    quoted(table.measure),
                    table.unit,
                    series.at,
                    quoted(&series.subject),
                    round
                );
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_field_is_quoted() {
        assert_eq!(
            quoted("kernel stack, recvmmsg"),
            "\"kernel stack, recvmmsg\""
        );
        assert_eq!(quoted("TPACKET_V3"), "TPACKET_V3");
    }
}
