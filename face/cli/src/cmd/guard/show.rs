//! Output of a guard while it runs and at the end: text on standard error, JSON on standard output.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use ::guard::{Counters, Limit, Verdict};
use runtime::Ended;
use runtime::guard::{
    DetectSetup, Guard, Item, ListSpec, Outcome, RuleSpec, RuleTotals, Step, TapCounts, Totals,
};
use runtime::output::{Output, Piece, Refused};
use serde_json::{Value, json};
use sys::{Error, Result};

use super::{flood, steer};
use crate::out::{self, say};
use crate::report::{counted, si};
use crate::short::words;

/// Maximum number of JSON lines queued for the reader.
const LINES_MAX: usize = 16;
/// Width of the rule name column.
const NAME_WIDTH: usize = 40;
/// Maximum number of rules in the live table; JSON and the account list all.
const TABLE_LEN: usize = 20;

/// A valid rule for JSON.
pub fn checked(rule: &RuleSpec) -> Value {
    let mut value = json!({});
    describe(&mut value, rule);
    value["user_space"] = rule.in_user_space.into();
    value["expires_s"] = rule.expires_after.map(|after| after.as_secs()).into();
    value
}

/// What a rule matches, in one line.
pub fn matches(rule: &RuleSpec) -> String {
    let expression = Some(&rule.expression).filter(|e| !e.is_empty()).cloned();
    let mut names = list("names", &rule.names);
    if let (Some(names), false) = (&mut names, rule.types.is_empty()) {
        *names += &format!(" of type {}", type_names(rule).join(" or "));
    }
    let parts = [
        list("sources", &rule.sources),
        list("destinations", &rule.destinations),
        names,
        expression,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn list<T: Item>(word: &str, list: &Option<ListSpec<T>>) -> Option<String> {
    let list = list.as_ref()?;
    let (name, count) = (words(&list.name(), NAME_WIDTH), list.list().len());
    Some(format!("{word} {name} ({count} {})", T::PLURAL))
}

/// The types of the queries that a rule matches.
fn type_names(rule: &RuleSpec) -> Vec<String> {
    rule.types.iter().map(ToString::to_string).collect()
}

/// What is shown of a run beside its counts.
pub struct About {
    /// The interface.
    pub interface: String,
    /// The attach mode of XDP, "tc" or "iptables".
    pub mode: String,
    /// Whether nothing is dropped.
    pub dry_run: bool,
    /// How floods are detected; `None` if detection is off.
    pub detect: Option<DetectSetup>,
    /// The file for samples of dropped packets.
    pub samples: Option<PathBuf>,
}

impl About {
    /// Of a program.
    pub fn of(opened: &Guard) -> Self {
        Self {
            interface: opened.interface().to_owned(),
            mode: opened.mode(),
            dry_run: opened.is_dry_run(),
            detect: opened.detection().copied(),
            samples: opened.sample_file().map(Path::to_owned),
        }
    }
}

/// Output of one run.
pub struct Show {
    about: About,
    json: bool,
    on_terminal: bool,
    /// Lines of the table currently on the terminal.
    drawn: usize,
    before: Totals,
    began: Instant,
    at: Instant,
    stdout: Output,
    /// The error of standard output, if its reader has gone.
    error: Option<Error>,
}

impl Show {
    /// Prints the interface, mode and rules.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn start(about: About, totals: Totals, json: bool) -> Result<Self> {
        out::start()?;
        let dry = match about.dry_run {
            true => ", dry run: nothing is dropped",
            false => "",
        };
        let count = counted(totals.rules.len() as u64, "rule");
        let place = match &*about.mode {
            "tc" => "tc ingress".to_owned(),
            "iptables" => "by iptables".to_owned(),
            mode => format!("{mode} mode"),
        };
        let interface = &about.interface;
        say!("guarding {interface} with {count}, {place}{dry}");
        if let Some(steered) = &totals.steer {
            say!("{}", steer::way(steered));
        }
        let now = Instant::now();
        let mut show = Self {
            about,
            json,
            on_terminal: io::stderr().is_terminal(),
            drawn: 0,
            before: totals,
            began: now,
            at: now,
            stdout: out::stdout(LINES_MAX)?,
            error: None,
        };
        show.learning();
        Ok(show)
    }

    /// Prints what detection learns, until when, and what counts as a flood until then.
    fn learning(&mut self) {
        let Some(setup) = self.about.detect else {
            return;
        };
        say!("{}", flood::learning(&setup, SystemTime::now()));
        if self.json {
            self.give(&flood::learning_json(&setup));
        }
    }

    /// Prints the counters of the last second.
    pub fn progress(&mut self, totals: &Totals) {
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        if self.json {
            let line = self.line("counters", totals);
            // A reader that is too slow misses lines; the next line has the full counts.
            self.give(&line);
        } else if self.on_terminal {
            self.draw(totals, seconds);
        }
        self.before = totals.clone();
    }

    /// Prints an event of flood detection.
    pub fn flood(&mut self, step: &Step) {
        let Some(action) = self.about.detect.map(|detect| detect.action) else {
            return;
        };
        self.clear();
        say!("{}", flood::text(step, action));
        if self.json {
            self.give(&flood::to_json(step, action));
        }
    }

    fn give(&mut self, line: &Value) {
        let piece = Piece {
            bytes: format!("{line}\n").into_bytes(),
            ..Piece::default()
        };
        if let Err(Refused::Failed(error)) = self.stdout.try_give(piece) {
            self.error
                .get_or_insert(Error::from_io("write to standard output", error));
        }
    }

    fn draw(&mut self, totals: &Totals, seconds: f64) {
        let rate = |now: u64, before: u64| si(now.saturating_sub(before) as f64 / seconds, "pps");
        let mut text = String::new();
        if self.drawn != 0 {
            // Moves to the table's first line (ECMA-48 CPL).
            let _ = write!(text, "\x1b[{}F", self.drawn);
        }
        let mut lines = vec![format!(
            "{:>6.0} s  seen {}  passed {}  dropped {}",
            self.began.elapsed().as_secs_f64(),
            rate(totals.seen.packets, self.before.seen.packets),
            rate(totals.passed(), self.before.passed()),
            rate(totals.dropped(), self.before.dropped()),
        )];
        for rule in totals.rules.iter().take(TABLE_LEN) {
            let same = |other: &&RuleTotals| other.spec == rule.spec;
            let before = self.before.rules.iter().find(same);
            let before = before.map_or(Counters::default(), |rule| rule.counters);
            lines.push(format!(
                "  {:<14} {:<NAME_WIDTH$} {:>12} {:>14} {:>14} dropped",
                verdict(rule),
                words(&rule.spec.name, NAME_WIDTH),
                rate(rule.counters.packets, before.packets),
                counted(rule.counters.packets, "packet"),
                rule.counters.dropped,
            ));
        }
        if let Some(steered) = &totals.steer {
            let before = self.before.steer.clone().unwrap_or_default();
            lines.push(format!(
                "  to user space  steered {}  returned {}  dropped {}  lost {}",
                rate(steered.steered, before.steered),
                rate(steered.given_back, before.given_back),
                rate(steered.dropped, before.dropped),
                rate(steered.lost + steered.failed, before.lost + before.failed),
            ));
        }
        for flood in totals.floods.iter().flatten() {
            lines.push(format!(
                "  flood  {:<NAME_WIDTH$} {:>12} {:>14} passed {:>6} % stopped",
                words(&flood.of, NAME_WIDTH),
                si(flood.rate_pps as f64, "pps"),
                si(flood.passed_pps as f64, "pps"),
                flood.covered_percent,
            ));
        }
        if let Some(more) = totals.rules.len().checked_sub(TABLE_LEN + 1) {
            lines.push(format!("  and {} more", counted(more as u64 + 1, "rule")));
        }
        for line in &lines {
            // Erases the rest of a longer previous line (ECMA-48 EL).
            let _ = writeln!(text, "{line}\x1b[K");
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        out::words(text.into_bytes());
    }

    /// Leaves the table in place; later output is printed below it.
    pub fn clear(&mut self) {
        self.drawn = 0;
    }

    /// Prints the totals so far.
    pub fn so_far(&mut self, totals: &Totals) {
        self.clear();
        let text = self.account(totals, self.began.elapsed().as_secs_f64());
        out::words(text.into_bytes());
    }

    /// Prints the account.
    pub fn end(mut self, outcome: &Outcome) -> Result<()> {
        self.clear();
        let mut text = self.account(&outcome.totals, outcome.elapsed.as_secs_f64());
        if let Some(TapCounts { sampled, lost }) = outcome.sampled {
            let sampled = counted(sampled, "packet");
            let _ = writeln!(text, "  detection: {sampled} sampled, {lost} of these lost");
        }
        out::over();
        out::last_words(text.into_bytes());
        if self.json {
            let mut line = self.line("totals", &outcome.totals);
            line["seconds"] = outcome.elapsed.as_secs_f64().into();
            line["ended"] = match outcome.ended {
                Ended::Finished => "duration".into(),
                _ => "stopped".into(),
            };
            line["detection"] = outcome
                .sampled
                .map(|TapCounts { sampled, lost }| json!({ "sampled": sampled, "lost": lost }))
                .into();
            line["error"] = outcome.error.as_ref().map(ToString::to_string).into();
            out::print(&self.stdout, format!("{line}\n").into_bytes())?;
        }
        self.error.map_or(Ok(()), Err)
    }

    /// The account: what each rule did with its packets.
    fn account(&self, totals: &Totals, seconds: f64) -> String {
        let mut text = String::new();
        let steered = match &totals.steer {
            Some(_) => format!(", {} steered", totals.steered()),
            None => String::new(),
        };
        let would = if self.about.dry_run { " (dry run)" } else { "" };
        let _ = writeln!(
            text,
            "{}: {} seen ({}), {} passed, {} dropped{would}{steered} in {seconds:.3} s",
            self.about.interface,
            counted(totals.seen.packets, "packet"),
            si(totals.seen.packets as f64 / seconds.max(1e-3), "pps"),
            totals.passed(),
            totals.dropped(),
        );
        for rule in &totals.rules {
            let answered = match rule.spec.verdict {
                Verdict::Challenge => format!(", {} answered", rule.counters.answered),
                Verdict::User => format!(", {} steered", rule.counters.steered),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "  {} \"{}\": {}, {} dropped{answered}",
                verdict(rule),
                rule.spec.name,
                rule.counters.packets,
                rule.counters.dropped
            );
        }
        if totals.removed != Counters::default() {
            let _ = writeln!(
                text,
                "  removed rules: {}, {} dropped",
                counted(totals.removed.packets, "packet"),
                totals.removed.dropped
            );
        }
        if let Some(file) = &self.about.samples {
            let taken = counted(totals.samples.taken, "packet");
            let (file, lost) = (file.display(), totals.samples.lost);
            let _ = writeln!(text, "  samples: {taken} in {file}, {lost} lost");
        }
        if let Some(steered) = &totals.steer {
            steer::write(&mut text, steered);
        }
        let unmatched = counted(totals.unmatched.packets, "packet");
        let _ = writeln!(text, "  no rule: {unmatched}");
        match totals.imbalance() {
            0 => {}
            missing => {
                let _ = writeln!(text, "  {missing} not accounted for");
            }
        }
        text
    }

    fn line(&self, kind: &str, totals: &Totals) -> Value {
        let rules: Vec<Value> = totals.rules.iter().map(rule).collect();
        json!({
            "type": kind,
            "seconds": self.began.elapsed().as_secs_f64(),
            "interface": self.about.interface,
            "mode": self.about.mode,
            "dry_run": self.about.dry_run,
            "seen": totals.seen.packets,
            "seen_bytes": totals.seen.bytes,
            "passed": totals.passed(),
            "dropped": totals.dropped(),
            "answered": totals.answered(),
            "steered": totals.steered(),
            "unmatched": totals.unmatched.packets,
            "removed": counters(&totals.removed),
            "samples": self.about.samples.as_ref().map(|_| {
                json!({ "taken": totals.samples.taken, "lost": totals.samples.lost })
            }),
            "imbalance": totals.imbalance(),
            "rules": rules,
            "steer": totals.steer.as_ref().map(steer::to_json),
            "floods": totals.floods.as_ref().map(|floods| {
                floods.iter().map(flood::in_progress).collect::<Vec<_>>()
            }),
        })
    }
}

/// A rule and its counts.
pub fn rule(rule: &RuleTotals) -> Value {
    let mut value = counters(&rule.counters);
    describe(&mut value, &rule.spec);
    value["expired"] = rule.is_expired.into();
    value
}

/// Adds what a rule is.
fn describe(value: &mut Value, spec: &RuleSpec) {
    value["name"] = spec.name.clone().into();
    value["match"] = spec.expression.clone().into();
    value["sources"] = spec.sources.as_ref().map(ListSpec::name).into();
    let destinations = spec.destinations.as_ref();
    value["destinations"] = destinations.map(ListSpec::name).into();
    value["names"] = spec.names.as_ref().map(ListSpec::name).into();
    value["qtype"] = type_names(spec).into();
    value["verdict"] = match spec.verdict {
        Verdict::Pass => "pass".into(),
        Verdict::Drop => "drop".into(),
        Verdict::Count => "count".into(),
        Verdict::Challenge => "challenge".into(),
        Verdict::User => "user".into(),
        Verdict::Limit(limit) => {
            value["rate_pps"] = limit.rate_pps().into();
            value["burst"] = limit.burst().into();
            "limit".into()
        }
        Verdict::LimitSources(source, all) => {
            value["rate_pps"] = all.map(Limit::rate_pps).into();
            value["burst"] = all.map(Limit::burst).into();
            value["source_rate_pps"] = source.limit.rate_pps().into();
            value["source_burst"] = source.limit.burst().into();
            let (ipv4, ipv6) = source.prefix_lens();
            value["source_prefix_lens"] = json!([ipv4, ipv6]);
            "limit".into()
        }
    };
    value["priority"] = spec.priority.into();
}

pub fn counters(counters: &Counters) -> Value {
    json!({
        "packets": counters.packets,
        "bytes": counters.bytes,
        "dropped": counters.dropped,
        "dropped_bytes": counters.dropped_bytes,
        "answered": counters.answered,
        "steered": counters.steered,
    })
}

fn verdict(rule: &RuleTotals) -> String {
    match rule.is_expired {
        true => "expired".to_owned(),
        false => rule.spec.verdict.to_string(),
    }
}
