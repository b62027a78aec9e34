//! Events of flood detection, as text and JSON.

use runtime::guard::{Action, Found, Rates, Step};
use serde_json::{Value, json};

use crate::report::si;

/// A line for users.
pub fn text(step: &Step, action: Action) -> String {
    match step {
        Step::Begins(rates) => format!("flood of {}: {}", rates.of, rate(rates)),
        Step::Over(rates) => format!("the flood of {} is over: {}", rates.of, rate(rates)),
        Step::Rule(found) => {
            let Found {
                of,
                spec,
                sampled,
                matched,
            } = &**found;
            let did = match action {
                Action::Install => format!("installed \"{}\"", spec.name),
                Action::Propose => "proposed".to_owned(),
            };
            format!(
                "{did} against the flood of {of} ({matched} of {sampled} sampled packets): --drop \
                 '{}'",
                spec.expression
            )
        }
        Step::NoRule { of, why } => format!("no rule against the flood of {of}: {why}"),
        Step::Remove(name) => format!("removed \"{name}\""),
    }
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
        Step::Rule(found) => json!({
            "type": "flood",
            "event": "rule",
            "of": found.of,
            "name": found.spec.name,
            "match": found.spec.expression,
            "verdict": "drop",
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
    }
}
