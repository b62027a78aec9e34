//! `libpcap.so`: `pcap_compile` refuses what the original refuses, with its texts.

use std::collections::BTreeMap;

use lab::dropin::Dropin;
use lab::{Veth, require, skip};

use crate::pcap_dropin_calls::{START, original, run};

/// Wrong expressions, and right ones like them; `# N` begins those for link type N.
const EXPRESSIONS: &str = include_str!("pcap_dropin_texts/wrong.txt");

/// Expressions whose text or result differs, and how: barewire, the original.
const DIFFERENT: &[(&str, &str, &str)] = &[
    (
        "1\tdecnet host foo",
        "unknown host 'foo'",
        "decnet name support not included, 'foo' cannot be translated",
    ),
    ("1\tisis proto 5", "'isis proto' is bogus", "compiled"),
    ("1\tisis proto 300", "'isis proto' is bogus", "compiled"),
    (
        "1\twlan ra 1",
        "'ra' is only supported on 802.11 with 802.11 headers",
        "illegal link layer address",
    ),
    ("105\twlan host 1:2", SYNTAX, "illegal link layer address"),
    (
        "1\tradio host 1.2.3.4",
        SYNTAX,
        "'radio' modifier applied to host",
    ),
    ("1\toamf4s", "'oamf4s' supported only on raw ATM", SYNTAX),
    (
        "165\tip",
        "BACnet MS/TP link-layer type filtering not implemented",
        "compiled",
    ),
    (
        "1\tlane[0] = 1",
        "unsupported index operation",
        "'lane' supported only on raw ATM",
    ),
];
const SYNTAX: &str = "can't parse filter expression: syntax error";

const COMPILE: &str = r##"
names = []
program = Program()
for line in EXPRESSIONS.splitlines():
    if line.startswith("# "):
        dlt = int(line[2:]); p = V(lib.pcap_open_dead(dlt, 262144)); continue
    code = lib.pcap_compile(p, ctypes.byref(program), line.encode(), 1, 0)
    text = error(p).strip() if code else "compiled"
    print(dlt, line, text, sep="\t")
    if code == 0: lib.pcap_freecode(ctypes.byref(program))
    again = lib.pcap_compile_nopcap(262144, dlt, ctypes.byref(program), line.encode(), 1, 0)
    assert again == code, (line, again, code)
"##;

#[test]
fn errors_in_expressions_have_the_texts_of_the_original() {
    require!(skip::lab(), skip::program("python3", "python3"));
    let original = match original() {
        Ok(library) => library,
        Err(missing) => lab::skip!(missing),
    };
    let dropin = Dropin::new().unwrap();
    let pair = Veth::new().create().unwrap();
    let expressions = format!("EXPRESSIONS = r\"\"\"{EXPRESSIONS}\"\"\"\n");
    let script = [START, &expressions, COMPILE].concat();
    let theirs = run(&pair, &original, &script, &[]);
    let ours = run(&pair, &dropin.library(), &script, &[]);
    assert!(theirs.lines().count() > 400, "{theirs}");
    let different: BTreeMap<&str, (&str, &str)> = DIFFERENT
        .iter()
        .map(|(expression, ours, theirs)| (*expression, (*ours, *theirs)))
        .collect();
    assert_eq!(ours.lines().count(), theirs.lines().count());
    let mut wrong = Vec::new();
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        let (expression, ours_text) = ours.rsplit_once('\t').unwrap();
        let (_, theirs_text) = theirs.rsplit_once('\t').unwrap();
        let expected = match different.get(expression) {
            Some(known) => *known,
            None => (theirs_text, theirs_text),
        };
        if expected != (ours_text, theirs_text) {
            wrong.push(format!("{expression}\n  {ours_text}\n  {theirs_text}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
