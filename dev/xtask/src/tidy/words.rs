//! Phrases that engineers do not use, each with the usual one. They were replaced everywhere, and
//! must not return to documentation, help and comments. The glossary is in STYLE.md.

use super::{File, Finding};

/// Refused phrases and their replacements, in lower case.
const PHRASES: &[(&str, &str)] = &[
    ("the books balance", "every packet is accounted for"),
    ("hang on a link", "are attached through a bpf_link"),
    ("a wire of two ports", "bump in the wire"),
    ("no second compiler", "no clang or LLVM needed"),
    ("become this user", "drop privileges to USER"),
    ("end after so many", "stop after COUNT"),
    ("go on in another file", "rotate the output file"),
    ("out of habit", "ignored"),
    ("fault of this program", "a bug in barewire"),
    ("who says when a packet", "timestamp source"),
    ("who stands behind", "enrichment: ASN, GeoIP, MAC vendor"),
    ("print the picture one", "print one snapshot"),
    ("programs become machine code", "BPF JIT enabled"),
    ("is no format", "unknown format"),
    ("told of", "reported"),
    ("tell of", "report"),
    ("tells of", "reports"),
    ("whence", "source"),
    ("rights are given up", "privileges are dropped"),
    ("giving up rights", "dropping privileges"),
    ("is no flag", "unknown key"),
    ("as it likes", "in any way"),
    ("stands beside", "is next to"),
    ("told apart", "distinguished"),
    ("are told", "are reported"),
    ("somebody else", "another process, or another user"),
    ("for want of", "for lack of"),
    ("who knows better", "--force overrides it"),
    ("believed", "trusted"),
    ("by whatever", "by any"),
    ("in whatever", "in any"),
    ("behind each other", "one after another"),
    ("one behind the other", "one after the other"),
    ("goes home", "is returned"),
    ("gives way", "is evicted"),
    (" rivals", "baselines"),
    (" goes on", "continues"),
    ("go on with", "continue with"),
    ("gives back", "returns"),
    ("given back", "returned"),
    ("lives on", "depends on"),
    (
        "cannot be had",
        "is missing, is in use, or is not supported",
    ),
    ("no network card", "not a network card"),
    ("over and over", "repeatedly"),
    ("for people", "for users"),
    ("tells why", "shows the reason"),
    ("tells apart", "distinguishes"),
    ("is told", "is reported"),
    ("was told", "was reported"),
    ("wanted back", "requested back"),
    ("what is behind", "what follows"),
    ("goes around", "bypasses"),
    ("leaves by", "uses"),
    ("routes to everywhere", "default routes"),
    ("are lies", "are false"),
    ("played by the test", "simulated"),
    ("what the caller hears", "events"),
    ("where a sink leads", "the address of a destination"),
    ("which way it went", "the direction"),
    (
        "nothing is measured by it",
        "a time limit, not a measurement",
    ),
    ("as far as they have come", "the progress"),
    ("how things stand", "the current state"),
    ("so manieth", "the index"),
    ("rate's sake", "to keep the rate"),
    ("where that can be had", "if possible"),
    ("in vain", "without success"),
    ("gone at its end", "deleted on drop"),
    ("gone at the end", "deleted on drop"),
    ("goes with its owner", "deleted on drop"),
    ("help of the code under test", "without the code under test"),
    ("what may be longer", "exceptions"),
    ("in the hands of", "bound to, or used by"),
    ("got so far", "received"),
    ("is played", "is simulated"),
    ("takes up what", "adds the results"),
    ("what became of", "the result of, or what happened to"),
    ("what becomes of", "the result of, or how it is handled"),
    ("what came of", "the result of"),
    ("what is made of", "the result of"),
    ("hears of", "is notified of"),
    ("lets go of", "releases"),
    ("whatever becomes", "any result"),
    ("what is said of", "the description of"),
    ("came by", "arrived through"),
    ("wants no more", "is finished"),
    ("loses all others", "drops all others"),
    ("takes back nothing", "undoes nothing"),
    ("against liars", "against false reports"),
    ("goes to the stack", "is passed to the network stack"),
    ("asked about by", "requested by"),
    ("what goes before", "the preceding bytes"),
    ("comes past", "gets past"),
];

/// Lines with such a phrase. Not checked: STYLE.md, which lists them, and the changelog, which is
/// history.
pub fn refused(file: &File) -> Vec<Finding> {
    let history = ["STYLE.md", "CHANGELOG.md", "dev/xtask/src/tidy/words.rs"];
    let is_checked = (file.has_extension("rs") || file.has_extension("md"))
        && !history.iter().any(|path| file.path.ends_with(path));
    let text = file.text.as_deref().filter(|_| is_checked);
    let mut findings = Vec::new();
    for (index, line) in text.unwrap_or_default().lines().enumerate() {
        let line = line.to_lowercase();
        for (phrase, plain) in PHRASES {
            if line.contains(phrase) {
                let what = format!("{phrase:?} is a riddle; write {plain:?}");
                findings.push(Finding::new(&file.path, index + 1, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.into(),
            len: text.len() as u64,
            text: Some(text.into()),
        }
    }

    #[test]
    fn refused_phrases_are_found_in_documents_and_sources() {
        let text = "# Title\n\nThe books balance.\n";
        for path in ["README.md", "face/cli/src/args.rs"] {
            let findings = refused(&file(path, text));
            assert_eq!(findings.len(), 1, "{path}");
            assert_eq!(findings[0].line, 3);
        }
        for path in ["STYLE.md", "CHANGELOG.md", "docs/picture.svg"] {
            assert!(refused(&file(path, text)).is_empty(), "{path}");
        }
    }

    #[test]
    fn phrases_are_in_lower_case() {
        for (phrase, plain) in PHRASES {
            assert_eq!(*phrase, phrase.to_lowercase(), "{plain}");
        }
    }
}
