//! What is valid in a rule file and has no effect: rules that no packet can match or reach, and
//! rules in user space that get no packets.

use ::guard::{FindingKind, Rule, Verdict};
use sys::Result;

use super::RuleSpec;

/// Something valid that is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Name of the kind: `no rules`, `not steered`, `impossible`, `never TCP`, `shadowed`.
    pub kind: &'static str,
    /// The rule, unless it is about the whole file.
    pub rule: Option<String>,
    /// The rules before it that decide all its packets.
    pub by: Vec<String>,
    /// What is wrong, in a sentence.
    pub text: String,
}

impl Warning {
    fn of_file(kind: &'static str, text: &str) -> Self {
        Warning {
            kind,
            rule: None,
            by: Vec::new(),
            text: text.to_owned(),
        }
    }
}

/// The warnings about the rules of a file. They are certain: what cannot be decided gives none.
///
/// # Errors
/// As [`super::check`].
pub fn warnings(specs: &[RuleSpec]) -> Result<Vec<Warning>> {
    let mut warnings = Vec::new();
    if specs.is_empty() {
        let text = "the file has no rules: every packet passes";
        warnings.push(Warning::of_file("no rules", text));
    }
    let steers = |spec: &RuleSpec| !spec.in_user_space && spec.verdict == Verdict::User;
    if specs.iter().any(|spec| spec.in_user_space) && !specs.iter().any(steers) {
        let text = "no [[rule]] with verdict = \"user\" steers packets to the [[user]] rules: \
                    without --steer, the guard does not start";
        warnings.push(Warning::of_file("not steered", text));
    }
    for in_user_space in [false, true] {
        let mut some: Vec<&RuleSpec> = specs
            .iter()
            .filter(|spec| spec.in_user_space == in_user_space)
            .collect();
        some.sort_by_key(|spec| spec.priority);
        let rules: Vec<Rule> = some
            .iter()
            .map(|spec| spec.compile())
            .collect::<Result<_>>()?;
        // Both are loaded at the same time.
        let outlives = |one: usize, other: usize| match some[one].expires_after {
            None => true,
            Some(after) => some[other].expires_after.is_some_and(|own| own <= after),
        };
        for finding in ::guard::check(&rules, outlives) {
            warnings.push(of_rule(&some, finding.rule, finding.kind));
        }
    }
    Ok(warnings)
}

fn of_rule(specs: &[&RuleSpec], rule: usize, kind: FindingKind) -> Warning {
    let (kind, by, text) = match kind {
        FindingKind::Impossible => (
            "impossible",
            Vec::new(),
            "no packet can match it".to_owned(),
        ),
        FindingKind::NeverTcp => {
            let text = "no TCP packet can match it: a challenge passes all others";
            ("never TCP", Vec::new(), text.to_owned())
        }
        FindingKind::Shadowed(by) => {
            let by: Vec<String> = by.iter().map(|&at| specs[at].name.clone()).collect();
            let quoted: Vec<String> = by.iter().map(|name| format!("\"{name}\"")).collect();
            let text = match &quoted[..] {
                [one] => format!("no packet reaches it: {one} decides all packets that it matches"),
                many => format!(
                    "no packet reaches it: {} together decide all packets that it matches",
                    many.join(", ")
                ),
            };
            ("shadowed", by, text)
        }
    };
    Warning {
        kind,
        rule: Some(specs[rule].name.clone()),
        by,
        text,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::filter::Compiler;

    /// The kinds of warnings about a file, each with the rule and those before it.
    fn kinds(text: &str) -> Vec<(&'static str, Option<String>, Vec<String>)> {
        let specs = super::super::parse(text, Path::new(""), Compiler::default()).unwrap();
        let found = warnings(&specs).unwrap();
        found.into_iter().map(|w| (w.kind, w.rule, w.by)).collect()
    }

    fn rule(name: &str, rest: &str) -> String {
        format!("[[rule]]\nname = \"{name}\"\nverdict = \"drop\"\n{rest}\n")
    }

    #[test]
    fn what_concerns_the_whole_file_has_no_rule() {
        assert_eq!(kinds(""), [("no rules", None, vec![])]);
        assert_eq!(kinds("# only a comment\n"), [("no rules", None, vec![])]);
        let user = "[[user]]\nmatch = \"udp\"\nverdict = \"drop\"\n";
        assert_eq!(kinds(user), [("not steered", None, vec![])]);
        let steer = "[[rule]]\nmatch = \"udp\"\nverdict = \"user\"\n";
        assert_eq!(kinds(&format!("{steer}{user}")), []);
        assert_eq!(kinds("allow = [\"192.0.2.1\"]\n"), []);
    }

    #[test]
    fn shadows_follow_the_order_of_matching_and_expiry() {
        let udp = |keys: &str| rule("udp", &format!("match = \"udp\"\n{keys}"));
        let dns = |keys: &str| rule("dns", &format!("match = \"udp port 53\"\n{keys}"));
        let shadowed = vec![("shadowed", Some("dns".to_owned()), vec!["udp".to_owned()])];
        for (text, is_shadowed) in [
            (udp("") + &dns(""), true),
            (dns("") + &udp(""), false),
            (dns("priority = 5") + &udp(""), true),
            (udp("priority = 5") + &dns(""), false),
            (udp("expires = \"10m\"") + &dns(""), false),
            (udp("expires = \"10m\"") + &dns("expires = \"5m\""), true),
            (udp("expires = \"10m\"") + &dns("expires = \"20m\""), false),
            (udp("").replace("drop", "count") + &dns(""), false),
            // Rules in user space are apart.
            (
                udp("").replace("drop", "user") + &dns("").replace("[[rule]]", "[[user]]"),
                false,
            ),
        ] {
            let expected = if is_shadowed {
                shadowed.clone()
            } else {
                vec![]
            };
            assert_eq!(kinds(&text), expected, "{text}");
        }
        let user = (udp("") + &dns("")).replace("[[rule]]", "[[user]]");
        let steer = "[[rule]]\nmatch = \"ip\"\nverdict = \"user\"\n";
        assert_eq!(kinds(&format!("{steer}{user}")), shadowed);
        let allow = "allow = [\"10.0.0.0/8\"]\n";
        let own = rule("own", "sources = [\"10.1.0.0/16\"]");
        let by = vec!["allow 10.0.0.0/8".to_owned()];
        let expected = [("shadowed", Some("own".to_owned()), by)];
        assert_eq!(kinds(&format!("{allow}{own}")), expected);
    }

    #[test]
    fn impossible_rules_and_challenges_are_named() {
        let none = rule("none", "match = \"ip proto 300\"");
        assert_eq!(
            kinds(&none),
            [("impossible", Some("none".to_owned()), vec![])]
        );
        let cookies = |text: &str| {
            rule("cookies", &format!("match = \"{text}\"")).replace("drop", "challenge")
        };
        let expected = [("never TCP", Some("cookies".to_owned()), vec![])];
        assert_eq!(kinds(&cookies("udp dst port 443")), expected);
        assert_eq!(kinds(&cookies("dst port 443")), []);
    }
}
