//! What was run twice: a line for each test or guest suite that failed and was run once more, kept
//! over runs, so that one that fails now and then is noticed.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::run::{quietly, root, target_dir};

/// Variable with the path of the file. Without it, it is in the build directory: CI, which builds
/// in a new clone, names one that stays.
const FILE_VAR: &str = "BAREWIRE_RETRIES";

/// Lines kept, the newest.
const LINES_MAX: usize = 1000;

/// Tests named in the report, those that were run again most often.
const SHOWN_MAX: usize = 30;

/// A test or suite that was run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// `SUITE TEST`, or `guest suite NAME`.
    pub name: String,
    /// Whether it passed then.
    pub has_passed: bool,
}

/// Records what this run has run again, and returns the report of all runs: empty if there was
/// none.
///
/// # Errors
/// If the file cannot be read or written.
pub fn update(retries: &[Retry]) -> Result<String> {
    let path = match std::env::var_os(FILE_VAR) {
        Some(path) => PathBuf::from(path),
        None => target_dir()?.join("retries.tsv"),
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH);
    let date = date(seconds.map_or(0, |since| since.as_secs()));
    let mut git = std::process::Command::new("git");
    git.current_dir(root())
        .args(["rev-parse", "--short=8", "HEAD"]);
    let commit = quietly(&mut git).unwrap_or_else(|_| "unknown".to_owned());
    record(&path, retries, &date, commit.trim())?;
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    Ok(report(&text, &path))
}

fn record(path: &Path, retries: &[Retry], date: &str, commit: &str) -> Result<()> {
    if retries.is_empty() {
        return Ok(());
    }
    let failed = || format!("the history of retries {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(failed)?;
    }
    let mut lines = String::new();
    for Retry { name, has_passed } in retries {
        let result = if *has_passed { "passed" } else { "failed" };
        lines += &format!("{date}\t{commit}\t{result}\t{name}\n");
    }
    let mut file = OpenOptions::new();
    let mut file = file
        .create(true)
        .append(true)
        .open(path)
        .with_context(failed)?;
    file.write_all(lines.as_bytes()).with_context(failed)?;
    let text = std::fs::read_to_string(path).with_context(failed)?;
    let count = text.lines().count();
    if count > LINES_MAX {
        let kept = text.lines().skip(count - LINES_MAX);
        let kept: String = kept.map(|line| format!("{line}\n")).collect();
        std::fs::write(path, kept).with_context(failed)?;
    }
    Ok(())
}

/// What is known of a name.
#[derive(Default)]
struct Sum<'a> {
    passed: usize,
    failed: usize,
    first: &'a str,
    last: &'a str,
    commit: &'a str,
}

/// The report on a file of lines.
fn report(text: &str, path: &Path) -> String {
    let mut sums: BTreeMap<&str, Sum<'_>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(4, '\t');
        let (Some(date), Some(commit), Some(result), Some(name)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let sum = sums.entry(name).or_default();
        match result {
            "passed" => sum.passed += 1,
            _ => sum.failed += 1,
        }
        if sum.first.is_empty() {
            sum.first = date;
        }
        (sum.last, sum.commit) = (date, commit);
    }
    if sums.is_empty() {
        return String::new();
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.passed + sum.failed));
    let mut text = format!("Run again so far, by {}:\n", path.display());
    for (name, sum) in rows.iter().take(SHOWN_MAX) {
        let Sum {
            passed,
            failed,
            first,
            last,
            commit,
        } = sum;
        text += &format!("  {passed} passed, {failed} failed then, {first} to {last}");
        text += &format!(" ({commit}): {name}\n");
    }
    if rows.len() > SHOWN_MAX {
        text += &format!("  and {} more\n", rows.len() - SHOWN_MAX);
    }
    text
}

/// The date of a time in seconds since 1970, UTC (Howard Hinnant, chrono-compatible low-level date
/// algorithms: `civil_from_days`).
pub fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year_of_era + 400 * era, month + 3),
        _ => (year_of_era + 400 * era + 1, month - 9),
    };
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(name: &str, has_passed: bool) -> Retry {
        Retry {
            name: name.into(),
            has_passed,
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_799, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn retries_of_all_runs_are_kept_and_counted() {
        let name = format!("barewire-retries-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let path = folder.join("of/ci/retries.tsv");
        let shown = || report(&std::fs::read_to_string(&path).unwrap_or_default(), &path);
        record(&path, &[], "2026-01-01", "0").unwrap();
        assert_eq!(shown(), "");
        let both = [retry("all a::b", true), retry("guest suite x", false)];
        record(&path, &both, "2026-01-01", "aaa").unwrap();
        record(&path, &[retry("all a::b", true)], "2026-02-03", "bbb").unwrap();
        let text = shown();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = [
            "  2 passed, 0 failed then, 2026-01-01 to 2026-02-03 (bbb): all a::b",
            "  0 passed, 1 failed then, 2026-01-01 to 2026-01-01 (aaa): guest suite x",
        ];
        assert_eq!(lines, expected);
        // The oldest are dropped.
        let many = vec![retry("all c", false); LINES_MAX];
        record(&path, &many, "2026-02-04", "ccc").unwrap();
        let text = shown();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains(&format!("0 passed, {LINES_MAX} failed")),
            "{text}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
