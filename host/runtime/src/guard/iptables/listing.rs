//! Reads the rules of a table as `iptables -v -S` lists them: one rule a line, with `-c PACKETS
//! BYTES`.

use ::guard::Counters;

/// The words of a line. Words with spaces are in double quotes, in which a backslash protects the
/// next character.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None;
    let (mut is_quoted, mut is_protected) = (false, false);
    for c in line.chars() {
        match c {
            _ if is_protected => {
                word.get_or_insert_with(String::new).push(c);
                is_protected = false;
            }
            '\\' if is_quoted => is_protected = true,
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_with(String::new);
            }
            ' ' if !is_quoted => words.extend(word.take()),
            c => word.get_or_insert_with(String::new).push(c),
        }
    }
    words.extend(word);
    words
}

/// The names of all chains that were added to the table.
pub(super) fn chains(listing: &str) -> Vec<String> {
    let lines = listing.lines().map(words);
    lines
        .filter(|words| words.first().is_some_and(|word| word == "-N"))
        .filter_map(|words| words.into_iter().nth(1))
        .collect()
}

/// A rule of the table.
pub(super) struct Line(Vec<String>);

impl Line {
    /// The chain that it is in.
    pub(super) fn chain(&self) -> &str {
        &self.0[1]
    }

    /// The value after an option.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == option)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// Whether it uses this match.
    pub(super) fn has_match(&self, name: &str) -> bool {
        let mut pairs = self.0.windows(2);
        pairs.any(|pair| pair[0] == "-m" && pair[1] == name)
    }

    /// The number at the beginning of its comment.
    pub(super) fn number(&self) -> Option<usize> {
        let comment = self.value("--comment")?;
        comment.split(' ').next()?.parse().ok()
    }

    /// Packets and bytes that it matched.
    pub(super) fn counters(&self) -> Counters {
        let at = self.0.iter().position(|word| word == "-c");
        let number = |by: usize| {
            let word = at.and_then(|at| self.0.get(at + by));
            word.and_then(|word| word.parse().ok()).unwrap_or_default()
        };
        Counters {
            packets: number(1),
            bytes: number(2),
            ..Counters::default()
        }
    }
}

/// All rules of the table.
pub(super) fn rules(listing: &str) -> impl Iterator<Item = Line> {
    let lines = listing.lines().map(words);
    lines
        .filter(|words| words.len() > 2 && words[0] == "-A")
        .map(Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"-P PREROUTING ACCEPT -c 12 34
-N bwguard-eth0
-A PREROUTING -i eth0 -c 7 70 -j bwguard-eth0
-A bwguard-eth0 -m bpf --bytecode "1,6 0 0 1" -m comment --comment "3 a \"b\" -c 9" -c 5 60 -j DROP
"#;

    #[test]
    fn rules_have_numbers_and_counters() {
        assert_eq!(chains(LISTING), ["bwguard-eth0"]);
        let rules: Vec<_> = rules(LISTING).collect();
        assert_eq!(rules.len(), 2);
        let jump = (rules[0].chain(), rules[0].value("-j"));
        assert_eq!(jump, ("PREROUTING", Some("bwguard-eth0")));
        assert_eq!((rules[0].counters().packets, rules[0].number()), (7, None));
        let counters = rules[1].counters();
        assert_eq!((counters.packets, counters.bytes), (5, 60));
        assert_eq!(rules[1].number(), Some(3));
        assert_eq!(rules[1].value("--comment"), Some("3 a \"b\" -c 9"));
        assert!(rules[1].has_match("bpf") && !rules[1].has_match("hashlimit"));
    }
}
