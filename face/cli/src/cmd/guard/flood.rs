//! Events of flood detection, as text and JSON.

use std::time::{Duration, SystemTime};

use ::guard::Verdict;
use runtime::guard::{
    Action, DetectSetup, FloodTotals, Found, Learned, Normal, Rates, RuleSpec, Step,
};
use serde_json::{Value, json};

use crate::report::{counted, si};

/// The first line about detection: what it learns, until when, and what is a flood before that.
pub fn learning(setup: &DetectSetup, now: SystemTime) -> String {
    let settings = &setup.settings;
    let least = si(settings.rate_least_pps, "pps");
    let floods = format!(
        "half-open connections (SYNs that no ACK follows) and impossible TCP flags, above {least} \
         to one address,"
    );
    let floods = match settings.rate_most_pps.is_finite() {
        true => {
            let most = si(settings.rate_most_pps, "pps");
            format!("{floods} and other packets above {most} count as floods")
        }
        false => format!("{floods} count as floods; most=RATE adds other packets"),
    };
    let warm_up = Duration::from_nanos(settings.warm_up_ns);
    let (end, seconds) = (clock(now + warm_up), warm_up.as_secs());
    format!("learning normal rates until {end} ({seconds} s); until then only {floods}")
}

/// The time of day, in UTC.
fn clock(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs() % 86_400;
    let (minutes, second) = (seconds / 60, seconds % 60);
    format!("{:02}:{:02}:{second:02} UTC", minutes / 60, minutes % 60)
}

/// The same for programs.
pub fn learning_json(setup: &DetectSetup) -> Value {
    let settings = &setup.settings;
    let most = Some(settings.rate_most_pps).filter(|rate| rate.is_finite());
    json!({
        "type": "flood",
        "event": "learning",
        "seconds": settings.warm_up_ns as f64 / 1e9,
        "half_open_least_pps": settings.rate_least_pps,
        "most_pps": most,
    })
}

fn learned(learned: &Learned) -> String {
    let Learned {
        destinations,
        signatures,
        highest,
    } = learned;
    let Some(highest) = highest else {
        return "learned normal rates: there was no IP packet".to_owned();
    };
    let Normal {
        of,
        normal_pps,
        flood_pps,
    } = highest;
    format!(
        "learned the normal rates of {} and {}; highest: {} {of}, where a flood is above {}",
        counted(*destinations as u64, "destination"),
        counted(*signatures as u64, "SYN signature"),
        si(*normal_pps, "pps"),
        si(*flood_pps, "pps")
    )
}

/// A line for users.
pub fn text(step: &Step, action: Action) -> String {
    match step {
        Step::Begins(rates) => format!("flood of {}: {}", rates.of, rate(rates)),
        Step::Over(rates) => format!("the flood of {} is over: {}", rates.of, rate(rates)),
        Step::Passes(rates) => {
            format!(
                "the flood of {} passes its rules: {}",
                rates.of,
                rate(rates)
            )
        }
        Step::Rule(found) => {
            let Found {
                of,
                spec,
                reason,
                sampled,
                matched,
                ..
            } = &**found;
            let did = match action {
                Action::Install => format!("installed \"{}\"", spec.name),
                Action::Propose => "proposed".to_owned(),
            };
            format!(
                "{did} against the flood of {of} ({matched} of {sampled} sampled packets; {}): {}",
                reason.text(),
                option(spec)
            )
        }
        Step::NoRule { of, why } => format!("no rule against the flood of {of}: {why}"),
        Step::Remove(name) => format!("removed \"{name}\""),
        Step::Learned(found) => learned(found),
    }
}

/// The option that has the effect of a rule.
fn option(spec: &RuleSpec) -> String {
    let expression = &spec.expression;
    match spec.verdict {
        Verdict::Challenge => format!("--challenge '{expression}'"),
        Verdict::Limit(limit) => format!("--limit '{}/s {expression}'", limit.rate_pps()),
        _ => format!("--drop '{expression}'"),
    }
}

/// The verdict of a rule of detection.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Challenge => "challenge",
        Verdict::Limit(_) => "limit",
        _ => "drop",
    }
}

/// A flood in progress, for programs.
pub fn in_progress(flood: &FloodTotals) -> Value {
    let rules = flood.rules.iter();
    let rules: Vec<Value> = rules
        .map(|(name, verdict)| json!({ "name": name, "verdict": word(*verdict) }))
        .collect();
    json!({
        "of": flood.of,
        "rate_pps": flood.rate_pps,
        "passed_pps": flood.passed_pps,
        "dropped_pps": flood.dropped_pps,
        "covered_percent": flood.covered_percent,
        "rules": rules,
    })
}

fn rate(rates: &Rates) -> String {
    let Rates {
        rate_pps,
        normal_pps,
        ..
    } = rates;
    format!(
        "{}, normally {}",
        si(*rate_pps, "pps"),
        si(*normal_pps, "pps")
    )
}

/// A JSON object for programs.
pub fn to_json(step: &Step, action: Action) -> Value {
    let rates = |event: &str, rates: &Rates| {
        json!({
            "type": "flood",
            "event": event,
            "of": rates.of,
            "rate_pps": rates.rate_pps,
            "normal_pps": rates.normal_pps,
        })
    };
    match step {
        Step::Begins(of) => rates("begins", of),
        Step::Over(of) => rates("over", of),
        Step::Passes(of) => rates("passes", of),
        Step::Rule(found) => json!({
            "type": "flood",
            "event": "rule",
            "of": found.of,
            "name": found.spec.name,
            "match": found.spec.expression,
            "verdict": word(found.spec.verdict),
            "rate_pps": match found.spec.verdict {
                Verdict::Limit(limit) => Some(limit.rate_pps()),
                _ => None,
            },
            "reason": found.reason.word(),
            "expires_s": found.spec.expires_after.map(|after| after.as_secs()),
            "installed": action == Action::Install,
            "sampled": found.sampled,
            "matched": found.matched,
        }),
        Step::NoRule { of, why } => json!({
            "type": "flood",
            "event": "no rule",
            "of": of,
            "why": why,
        }),
        Step::Remove(name) => json!({ "type": "flood", "event": "removed", "name": name }),
        Step::Learned(found) => json!({
            "type": "flood",
            "event": "learned",
            "destinations": found.destinations,
            "signatures": found.signatures,
            "highest": found.highest.as_ref().map(|highest| json!({
                "of": highest.of,
                "normal_pps": highest.normal_pps,
                "flood_pps": highest.flood_pps,
            })),
        }),
    }
}
