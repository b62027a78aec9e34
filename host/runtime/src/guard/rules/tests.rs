//! Rule files, and their errors.

use super::*;

fn refused(text: &str) -> String {
    parse(text, Path::new(""), Compiler::default()).unwrap_err()
}

#[test]
fn list_errors_give_the_line_in_the_rules_and_in_the_list() {
    let folder = std::env::temp_dir().join(format!("barewire-rules-{}", std::process::id()));
    // Fails if it exists: another user may have created it.
    std::fs::create_dir(&folder).unwrap();
    let name = "lists.txt";
    let path = folder.join(name);
    std::fs::write(&path, "10.0.0.0/8\n2001:db8::/32 # ours\n").unwrap();
    let text =
        format!("allow = [\"192.0.2.1\"]\n[[rule]]\nsources = \"{name}\"\nverdict = \"drop\"\n");
    let rules = parse(&text, &folder, Compiler::default()).unwrap();
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0].priority, i32::MIN);
    assert_eq!(rules[1].compile().unwrap().sources.unwrap().len(), 2);
    std::fs::write(&path, "10.0.0.0/8\n10.0.0.0/64\n").unwrap();
    let error = parse(&text, &folder, Compiler::default()).unwrap_err();
    assert!(error.starts_with("line 3: "), "{error}");
    assert!(error.contains("line 2: \"10.0.0.0/64\""), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = parse(&text, &folder, Compiler::default()).unwrap_err();
    assert!(error.contains(name), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_invalid_inline_prefix_is_reported_with_its_own_line() {
    let error = refused("[[rule]]\nsources = [\n\"10.0.0.0/8\",\n\"10.0.0.1/8\"]\n");
    assert!(error.starts_with("line 4: "), "{error}");
    let error = refused("[[rule]]\nmatch = \"udp and\"\nverdict = \"drop\"\n");
    assert!(error.starts_with("line 2: "), "{error}");
    assert!(
        error.ends_with("\"port\""),
        "the hint of the expression: {error}"
    );
    let error = refused("[[rule]]\nverdict = \"drop\"\n");
    assert!(error.contains("no match and no list"), "{error}");
}

/// In TOML, a key after the head of a table belongs to that table.
#[test]
fn an_allow_list_behind_a_rule_is_refused_with_its_place() {
    for head in ["rule", "user"] {
        let text =
            format!("[[{head}]]\nmatch = \"udp\"\nverdict = \"drop\"\n\nallow = \"a.txt\"\n");
        let error = refused(&text);
        assert!(
            error.starts_with("line 5: allow belongs to the file"),
            "{error}"
        );
        assert!(
            error.ends_with("move it before the first [[rule]]"),
            "{error}"
        );
    }
}

#[test]
fn limits_per_source_are_read() {
    let verdict = |keys: &str| {
        let text = format!("[[rule]]\nmatch = \"udp\"\nverdict = \"limit\"\n{keys}\n");
        parse(&text, Path::new(""), Compiler::default()).map(|rules| rules[0].verdict.to_string())
    };
    let own = "source_rate = \"50/s per /24,/48\"\nsource_burst = 7";
    assert_eq!(verdict(own).unwrap(), "limit 50/s per /24,/48");
    let both = format!("{own}\nrate = \"1k/s\"");
    assert_eq!(verdict(&both).unwrap(), "limit 1000/s and 50/s per /24,/48");
    for (keys, why) in [
        ("", "no rate and no source_rate"),
        (
            "rate = \"9/s\"\nsource_burst = 1",
            "source_burst belongs to",
        ),
        ("source_rate = \"9/s\"\nburst = 1", "burst belongs to rate"),
        (
            "source_rate = \"9/s per 24\"",
            "line 4: \"9/s per 24\": expected",
        ),
    ] {
        let error = verdict(keys).unwrap_err();
        assert!(error.contains(why), "{keys}: {error}");
    }
}

#[test]
fn names_are_read_with_their_types() {
    let text = "[[rule]]\nnames = [\"example.com\", \"*.example.org\"]\nqtype = \"any\"\n\
        verdict = \"drop\"\n";
    let rules = parse(text, Path::new(""), Compiler::default()).unwrap();
    let names = rules[0].compile().unwrap().names.unwrap();
    assert_eq!(
        (names.list.len(), &names.types[..]),
        (2, &[QueryType(255)][..])
    );
    for (keys, why) in [
        ("names = [\"a..b\"]", "line 2: empty label"),
        (
            "names = [\"a\"]\nqtype = [\"A\", \"X\"]",
            "line 3: unknown query type",
        ),
        (
            "match = \"udp\"\nqtype = \"A\"",
            "line 3: qtype belongs to names",
        ),
        ("names = 7", "an array of names"),
    ] {
        let error = refused(&format!("[[rule]]\n{keys}\nverdict = \"drop\"\n"));
        assert!(error.contains(why), "{keys}: {error}");
    }
}
