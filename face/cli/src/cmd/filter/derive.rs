//! `barewire filter derive`: derives the expression and p0f signatures that cover a flood and match
//! no good packet.

use filter::derive::{Derived, Group, Test};
use runtime::filter::derive::{self, Count, Files, Found, SAMPLE_MAX};
use serde_json::{Value, json};
use sys::{Error, ErrorKind, Result};

use crate::out::{say, warning};
use crate::report::counted;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Capture file of the flood, up to one in five of its packets good; - is standard input
    #[arg(value_name = "FLOOD")]
    flood: String,
    /// Capture file of good packets, none of which may match; can be repeated
    #[arg(long, value_name = "GOOD")]
    except: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the derived filters.
pub fn run(args: &Args) -> Result<()> {
    let flood = super::test::file_port(&args.flood);
    let good: Vec<String> = args
        .except
        .iter()
        .map(|f| super::test::file_port(f))
        .collect();
    let files = Files {
        flood: &flood,
        good: &good,
    };
    let found = derive::derive(&files, SAMPLE_MAX)?;
    let (derived, has_good) = (&found.derived, !good.is_empty());
    match args.json {
        true => super::print(&format!("{}\n", to_json(&found, has_good)))?,
        false => super::print(&to_text(derived, has_good))?,
    }
    for (what, count) in [("flood", &found.flood), ("good packets", &found.good)] {
        if count.sampled < count.packets {
            let all = counted(count.packets, "packet");
            say!("{what}: a sample of {} of {all}", count.sampled);
        }
    }
    if derived.expression().is_some() {
        say!("{}", summary(&found, has_good));
    }
    if has_good && found.good.matched != Some(0) {
        warning!("good packets outside the sample match, or were not tried");
    }
    match derived.groups.is_empty() && derived.signatures.is_empty() {
        true => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("derive a filter from {}", args.flood),
            match has_good {
                true => "nothing in it separates its packets from the good ones",
                false => "there are no IP packets in it",
            },
        )),
        false => Ok(()),
    }
}

/// A summary of what the expression matches.
fn summary(found: &Found, has_good: bool) -> String {
    let part = |count: &Count, of: &str| match count.matched {
        Some(matched) => format!("{matched} of {} {of}", count.packets),
        None => format!("an unknown part of {} {of}", count.packets),
    };
    let share = found
        .flood
        .share()
        .map(|share| format!(" ({:.2} %)", share * 100.0));
    let mut text = format!(
        "the expression matches {}{}",
        part(&found.flood, "packets of the flood"),
        share.unwrap_or_default(),
    );
    if has_good {
        text += &format!(" and {}", part(&found.good, "good packets"));
    }
    text
}

fn to_text(derived: &Derived, has_good: bool) -> String {
    let mut text = String::new();
    if let Some(expression) = derived.expression() {
        text += &format!("expression\n  {expression}\n");
    }
    if let Some(short) = derived.short_expression().filter(|_| has_good) {
        text += &format!("shortest expression that no good packet matches\n  {short}\n");
    }
    if !derived.groups.is_empty() {
        text += "packets, and the expression for them alone\n";
    }
    for group in &derived.groups {
        let remark = match group.is_fragile {
            true => "  # fragile: tests what may change from run to run",
            false => "",
        };
        let expression = group.expression();
        text += &format!("{:>8}  {expression}{remark}\n", group.packet_count);
    }
    if !derived.signatures.is_empty() {
        text += "SYNs, and their p0f signature\n";
    }
    for one in &derived.signatures {
        let remark = match one.can_compile {
            true => "",
            false => "  # cannot be compiled",
        };
        text += &format!("{:>8}  {}{remark}\n", one.packet_count, one.signature);
    }
    if !derived.uncertain.is_empty() {
        text +=
            "packets that may be good ones among the flood's: the expression does not match them\n";
    }
    for one in &derived.uncertain {
        text += &format!("{:>8}  {}\n", one.packet_count, one.expression());
    }
    if !derived.inseparable.is_empty() {
        text += "packets that cannot be separated, the good ones like them, and what they share\n";
    }
    for one in &derived.inseparable {
        let (count, good) = (one.packet_count, one.good_count);
        text += &format!("{count:>8} {good:>8}  {}\n", one.expression());
    }
    if !derived.inseparable_signatures.is_empty() {
        text += "SYNs that cannot be separated, the good ones like them, and their signature\n";
    }
    for one in &derived.inseparable_signatures {
        let (count, good) = (one.packet_count, one.good_count);
        text += &format!("{count:>8} {good:>8}  {}\n", one.signature);
    }
    if derived.other_count > 0 {
        let count = counted(derived.other_count as u64, "packet");
        text += &format!("not covered: {count}, not IP or too few of a kind\n");
    }
    text
}

fn to_json(found: &Found, has_good: bool) -> Value {
    let derived = &found.derived;
    let count = |count: &Count| {
        json!({
            "packets": count.packets,
            "sampled": count.sampled,
            "matched": count.matched,
            "share": count.share(),
        })
    };
    let fields = |tests: &[Test]| tests.iter().map(Test::field).collect::<Vec<_>>();
    let groups = |groups: &[Group]| {
        let group = |group: &Group| {
            json!({
                "packets": group.packet_count,
                "expression": group.expression(),
                "fields": fields(&group.tests),
                "telling_fields": fields(&group.telling),
                "fragile": group.is_fragile,
                "nearest_good": group.nearest_good,
            })
        };
        groups.iter().map(group).collect::<Vec<_>>()
    };
    let inseparable = derived.inseparable.iter().map(|one| {
        json!({
            "packets": one.packet_count,
            "good_packets": one.good_count,
            "expression": one.expression(),
        })
    });
    let signatures = derived.signatures.iter().map(|one| {
        json!({
            "syns": one.packet_count,
            "signature": one.signature.to_string(),
            "compiles": one.can_compile,
        })
    });
    let inseparable_signatures = derived.inseparable_signatures.iter().map(|one| {
        json!({
            "syns": one.packet_count,
            "good_syns": one.good_count,
            "signature": one.signature.to_string(),
        })
    });
    json!({
        "type": "derived",
        "expression": derived.expression(),
        "short_expression": derived.short_expression().filter(|_| has_good),
        "flood": count(&found.flood),
        "good": has_good.then(|| count(&found.good)),
        "groups": groups(&derived.groups),
        "uncertain": groups(&derived.uncertain),
        "inseparable": inseparable.collect::<Vec<_>>(),
        "other": derived.other_count,
        "syns": derived.syn_count,
        "signatures": signatures.collect::<Vec<_>>(),
        "inseparable_signatures": inseparable_signatures.collect::<Vec<_>>(),
    })
}
