//! Options of rules that steer packets to user space, and of the way back.

use std::fmt::Write as _;

use ::guard::{Counters, Verdict};
use clap::ValueEnum;
use runtime::guard::steer::{self, SteerSetup, SteerTotals};
use runtime::guard::{RuleSpec, RuleTotals};
use serde_json::{Value, json};
use sys::Result;

use super::{Args, limit_rule, show};
use crate::report::counted;

/// Of more rules in user space, only those with packets are listed.
const RULES_MAX: usize = 800;

/// Options.
#[derive(Clone, Debug, clap::Args)]
pub struct SteerArgs {
    /// Steer packets that match to user space, to the rules of --user-... and [[user]]
    #[arg(long, value_name = "EXPR")]
    pub steer: Vec<String>,
    /// Return steered packets that match to the host; later rules are not checked
    #[arg(long, value_name = "EXPR")]
    user_pass: Vec<String>,
    /// Count steered packets that match, and continue with the next rule
    #[arg(long, value_name = "EXPR")]
    user_count: Vec<String>,
    /// Drop steered packets that match
    #[arg(long, value_name = "EXPR")]
    user_drop: Vec<String>,
    /// Return steered packets that match up to this rate, and drop the others: '1000/s EXPR'
    #[arg(long, value_name = "RATE EXPR")]
    user_limit: Vec<String>,
    /// How steered packets return to the host
    #[arg(long, value_enum, default_value = "auto", value_name = "WAY")]
    give_back: GiveBack,
    /// What happens to packets that match --steer when their worker has ended
    #[arg(long, value_enum, default_value = "pass", value_name = "VERDICT")]
    on_failure: OnFailure,
}

/// How packets return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GiveBack {
    /// live, or tap where that is not possible
    Auto,
    /// As received on the interface (live frames, Linux 5.18)
    Live,
    /// As received on a TAP interface of its own: bw-IFACE, or bw- and the index of a long name
    Tap,
}

/// What happens without a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnFailure {
    /// They pass to the host
    Pass,
    /// They are dropped, as long as the program is attached
    Drop,
}

impl SteerArgs {
    /// How packets are steered.
    pub fn setup(&self) -> SteerSetup {
        SteerSetup {
            give_back: match self.give_back {
                GiveBack::Auto => steer::GiveBack::Auto,
                GiveBack::Live => steer::GiveBack::Live,
                GiveBack::Tap => steer::GiveBack::Tap,
            },
            drops_on_failure: self.on_failure == OnFailure::Drop,
            workers: None,
        }
    }

    /// The rules in user space, in the order of matching.
    ///
    /// # Errors
    /// Those of a limit, and of verdicts that are only for the kernel.
    pub fn rules(&self) -> Result<Vec<RuleSpec>> {
        let plain = |expressions: &[String], verdict| -> Vec<RuleSpec> {
            let rule = |e: &String| RuleSpec::new(e, verdict);
            expressions.iter().map(rule).collect()
        };
        let mut rules = plain(&self.user_pass, Verdict::Pass);
        rules.extend(plain(&self.user_count, Verdict::Count));
        rules.extend(plain(&self.user_drop, Verdict::Drop));
        for text in &self.user_limit {
            rules.push(limit_rule("--user-limit", text)?);
        }
        for rule in &mut rules {
            rule.in_user_space = true;
            steer::check(rule)?;
        }
        Ok(rules)
    }
}

/// What to report when the worker of a queue has ended.
pub fn ended(args: &Args, queue: u32) -> String {
    let then = match args.steer.on_failure {
        OnFailure::Pass => "pass to the host",
        OnFailure::Drop => "are dropped",
    };
    format!("the worker of queue {queue} has ended, and its packets {then}")
}

/// How packets return, in one line.
pub fn way(steered: &SteerTotals) -> String {
    let workers = counted(steered.workers as u64, "worker");
    match &*steered.give_back {
        "live" => format!("steered packets return as received on the interface; {workers}"),
        tap => format!("steered packets return as received on {tap}; {workers}"),
    }
}

/// Rules to list.
fn listed(steered: &SteerTotals) -> impl Iterator<Item = &RuleTotals> {
    let all = steered.rules.len() <= RULES_MAX;
    let has_packets = move |rule: &&RuleTotals| all || rule.counters.packets != 0;
    steered.rules.iter().filter(has_packets)
}

/// The account of steered packets.
pub fn write(text: &mut String, steered: &SteerTotals) {
    let _ = writeln!(
        text,
        "  to user space: {}, {} returned, {} dropped, {} lost, {} failed",
        counted(steered.steered, "packet"),
        steered.given_back,
        steered.dropped,
        steered.lost,
        steered.failed,
    );
    for rule in listed(steered) {
        let _ = writeln!(
            text,
            "    {} \"{}\": {}, {} dropped",
            rule.spec.verdict,
            rule.spec.name,
            counted(rule.counters.packets, "packet"),
            rule.counters.dropped
        );
    }
    if steered.removed != Counters::default() {
        let removed = counted(steered.removed.packets, "packet");
        let dropped = steered.removed.dropped;
        let _ = writeln!(text, "    removed rules: {removed}, {dropped} dropped");
    }
    if steered.waiting != 0 {
        let _ = writeln!(text, "    {} waiting", counted(steered.waiting, "packet"));
    }
    match steered.imbalance() {
        0 => {}
        missing => {
            let _ = writeln!(text, "    {missing} not accounted for");
        }
    }
}

/// The same for JSON.
pub fn to_json(steered: &SteerTotals) -> Value {
    json!({
        "give_back": steered.give_back,
        "workers": steered.workers,
        "steered": steered.steered,
        "given_back": steered.given_back,
        "dropped": steered.dropped,
        "lost": steered.lost,
        "failed": steered.failed,
        "waiting": steered.waiting,
        "imbalance": steered.imbalance(),
        "removed": show::counters(&steered.removed),
        "rules": listed(steered).map(show::rule).collect::<Vec<_>>(),
    })
}
