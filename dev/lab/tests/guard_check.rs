//! `barewire guard check`: warnings with exit code 0, errors with 2, both in JSON.

use std::process::Command;
use std::time::Duration;

use lab::Finished;
use lab::oracle::TempFile;
use lab::process::{Process, barewire};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

fn check(text: &str, options: &[&str]) -> Finished {
    let file = TempFile::new(".toml");
    std::fs::write(file.path(), text).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command
        .args(["guard", "check"])
        .arg(file.path())
        .args(options);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

/// The output as JSON, with the exit code.
fn as_json(text: &str) -> (Option<i32>, Value) {
    let finished = check(text, &["--json"]);
    let value = serde_json::from_str(&finished.stdout);
    let value = value.unwrap_or_else(|error| panic!("{error}: {}", finished.stdout));
    (finished.code(), value)
}

fn rule(name: &str, expression: &str, verdict: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nmatch = \"{expression}\"\nverdict = \"{verdict}\"\n")
}

#[test]
fn valid_files_with_rules_of_no_effect_give_warnings() {
    let user = "[[user]]\nmatch = \"udp\"\nverdict = \"drop\"\n";
    for (text, kind, name, words) in [
        ("", "no rules", Value::Null, "the file has no rules"),
        (
            user,
            "not steered",
            Value::Null,
            "no [[rule]] with verdict = \"user\"",
        ),
        (
            &rule("a", "ip proto 300", "drop"),
            "impossible",
            json!("a"),
            "rule \"a\": no packet can match it",
        ),
        (
            &rule("a", "udp dst port 443", "challenge"),
            "never TCP",
            json!("a"),
            "rule \"a\": no TCP packet can match it",
        ),
        (
            &(rule("a", "udp", "limit\"\nrate = \"9/s") + &rule("b", "udp dst port 53", "drop")),
            "shadowed",
            json!("b"),
            "rule \"b\": no packet reaches it: \"a\" decides all packets that it matches",
        ),
        (
            &(rule("a", "ip", "pass") + &rule("b", "ip6", "pass") + &rule("c", "tcp", "drop")),
            "shadowed",
            json!("c"),
            "\"a\", \"b\" together decide",
        ),
    ] {
        let finished = check(text, &[]);
        assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
        assert!(
            finished.stdout.contains("all valid, 1 warning;"),
            "{}",
            finished.stdout
        );
        let (code, value) = as_json(text);
        assert_eq!(code, Some(0));
        let warnings = value["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), 1, "{value}");
        assert_eq!(
            (&warnings[0]["kind"], &warnings[0]["rule"]),
            (&json!(kind), &name),
            "{value}"
        );
        assert_eq!(value["errors"], json!([]));
    }
}

#[test]
fn files_without_such_rules_give_none() {
    let text = rule("a", "udp dst port 53", "drop")
        + &rule("b", "udp port 53", "count")
        + &rule("c", "udp", "challenge\"\nexpires = \"5m").replace("udp", "tcp")
        + &rule("d", "greater 0", "pass");
    let (code, value) = as_json(&text);
    assert_eq!(
        (code, &value["warnings"], &value["errors"]),
        (Some(0), &json!([]), &json!([]))
    );
    let finished = check(&text, &[]).checked().unwrap();
    assert_eq!(finished.stderr, "");
    assert!(
        finished.stdout.contains("4 rules, all valid; the program"),
        "{}",
        finished.stdout
    );
}

#[test]
fn errors_have_their_line_and_exit_code_2() {
    let behind = rule("a", "udp", "drop") + "allow = [\"192.0.2.1\"]\n";
    for (text, line, words) in [
        (behind.as_str(), 5, "move it before the first [[rule]]"),
        (
            "[[rule]]\nmatch = \"udp porz 5\"\nverdict = \"drop\"\n",
            2,
            "porz",
        ),
        ("[[rule]\n", 1, ""),
        (
            "\n[[rule]]\nmatch = \"tcp and udp\"\nverdict = \"drop\"\n",
            3,
            "rejects all packets",
        ),
    ] {
        let finished = check(text, &[]);
        assert_eq!(finished.code(), Some(2), "{text}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(&format!("line {line}: ")),
            "{}",
            finished.stderr
        );
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
        assert_eq!(finished.stdout, "");
        let (code, value) = as_json(text);
        assert_eq!(
            (code, &value["errors"][0]["line"]),
            (Some(2), &json!(line)),
            "{value}"
        );
        assert!(
            value["errors"][0]["text"].as_str().unwrap().contains(words),
            "{value}"
        );
    }
    // A file that cannot be read says nothing about its rules.
    let mut command = Command::new(barewire().unwrap());
    command.args(["guard", "check", "/nonexistent/rules.toml"]);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
}
