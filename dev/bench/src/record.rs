//! The record: a CSV with every round's value, a text, and a chart per measure, by machine and
//! date.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::rounds::{Outcome, Series, Spread, Table};
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

/// Puts the rounds and notes of today's record, if there is one, before those of an outcome: rounds
/// can be spread over the times at which a machine is idle.
pub fn prepend_earlier(folder: &Path, scenario: &str, outcome: &mut Outcome) -> Result<()> {
    let stem = format!("{}-{scenario}", machine::date());
    let path = |ending| {
        folder
            .join(machine::name())
            .join(format!("{stem}.{ending}"))
    };
    let read = |path: PathBuf| match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    };
    let Some(text) = read(path("csv"))? else {
        return Ok(());
    };
    prepend_rounds(&text, &mut outcome.tables)?;
    let text = read(path("txt"))?.unwrap_or_default();
    let notes = text.lines().filter_map(|line| line.strip_prefix("note: "));
    let mut notes: Vec<String> = notes.map(str::to_owned).collect();
    outcome.notes.retain(|note| !notes.contains(note));
    notes.append(&mut outcome.notes);
    outcome.notes = notes;
    Ok(())
}

/// Puts the rounds of a CSV before those of tables. Measures that no table has are left out.
fn prepend_rounds(text: &str, tables: &mut [Table]) -> Result<()> {
    let mut earlier: Vec<(&mut Table, Vec<Series>)> =
        tables.iter_mut().map(|table| (table, Vec::new())).collect();
    for line in text.lines().skip(1) {
        let fields = fields(line);
        let [measure, unit, at, subject, _, value, _] = &fields[..] else {
            anyhow::bail!("not a line of a record: {line}");
        };
        let found = earlier
            .iter_mut()
            .find(|(table, _)| table.measure == measure && table.unit == unit);
        let Some((_, series)) = found else { continue };
        let (at, value) = (at.parse()?, value.parse()?);
        match series
            .iter_mut()
            .find(|s: &&mut Series| s.subject == *subject && s.at == at)
        {
            Some(series) => series.values.push(value),
            None => series.push(Series {
                subject: subject.clone(),
                at,
                values: vec![value],
            }),
        }
    }
    for (table, before) in earlier {
        let after = std::mem::replace(&mut table.series, before);
        for series in after {
            for value in series.values {
                table.add(&series.subject, series.at, value);
            }
        }
    }
    Ok(())
}

/// The fields of a line, the reverse of [`quoted`].
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut is_quoted = false;
    let mut before = ',';
    for c in line.chars() {
        match c {
            '"' => {
                // A doubled quotation mark within a quoted field stands for one.
                if before == '"' && !is_quoted {
                    field.push('"');
                }
                is_quoted = !is_quoted;
            }
            ',' if !is_quoted => fields.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
        before = c;
    }
    fields.push(field);
    fields
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

    #[test]
    fn fields_are_read_as_they_are_written() {
        for field in [
            "TPACKET_V3",
            "a, b",
            "the \"null\" port",
            "\"",
            "",
            ",\",\"",
        ] {
            let line = format!("{},x,{}", quoted(field), quoted(field));
            assert_eq!(fields(&line), [field, "x", field]);
        }
    }

    #[test]
    fn earlier_rounds_come_first() {
        let table = || Table {
            measure: "time a packet, all of it",
            unit: "ns",
            axis: "",
            more_is_better: false,
            reference: "a".into(),
            series: Vec::new(),
        };
        let mut before = table();
        for (subject, value) in [("a", 1.5), ("b", 3.0), ("a", 2.5), ("gone", f64::NAN)] {
            before.add(subject, 0, value);
        }
        let text = csv(&Outcome {
            tables: vec![before],
            notes: Vec::new(),
        });
        let mut tables = [table()];
        for (subject, value) in [("a", 4.0), ("b", 5.0), ("new", 6.0)] {
            tables[0].add(subject, 0, value);
        }
        prepend_rounds(&text, &mut tables).unwrap();
        let values = |subject: &str| {
            let series = tables[0].series.iter().find(|s| s.subject == subject);
            series.unwrap().values.clone()
        };
        assert_eq!(values("a"), [1.5, 2.5, 4.0]);
        assert_eq!(values("b"), [3.0, 5.0]);
        assert_eq!(values("new"), [6.0]);
        assert!(values("gone")[0].is_nan());
        assert!(prepend_rounds("header\nnot a record\n", &mut tables).is_err());
    }
}
