//! Rules as iptables and ip6tables commands, in a chain of the raw table: for hosts on which no XDP
//! program can be attached.
//!
//! An expression becomes `-m bpf` bytecode, a prefix list `-s` and `-d`, a limit a chain with
//! `-m hashlimit`. The jump to the chain is added last, when the chain is complete.

mod installed;
mod listing;
pub(super) mod pinned;

use std::fmt::Write as _;

use ::filter::print::{IPTABLES_MAX, bytecode};
use ::guard::{Limit, List, SOURCES_MAX, Verdict};
use bpf::cbpf::Program;
use sys::{Error, ErrorKind, Result};

use super::rules::P0F;
use super::{RuleSpec, Setup, steer};
use crate::filter::Expression;
use crate::filter::select::{Select, check_iptables};
pub use installed::{Installed, undo, undo_when_closed};

/// Maximum number of prefixes of a rule: each pair of source and destination is a separate rule.
const PREFIXES_MAX: usize = 256;
/// Maximum rate in packets per second, and maximum burst, of `-m hashlimit`.
const LIMIT_MAX: u32 = 1_000_000;
/// Minimum lifetime of a hashlimit entry.
const EXPIRE_LEAST_MS: u64 = 10_000;
/// Opcodes of `ld len` and `ldx len`.
const LOADS_LEN: [u16; 2] = [0x80, 0x81];
/// Maximum length of a comment; the kernel accepts 255 bytes.
const COMMENT_MAX: usize = 200;

/// How commands differ between those that a user runs and those that barewire runs.
#[derive(Clone, Copy)]
struct Style {
    /// Options of every command.
    options: &'static str,
    /// Start of the names of chains, without `-`; and of hashlimit's tables.
    chain: &'static str,
    limit: &'static str,
    /// Comments begin with the number of the rule, and a rule 0 counts all packets.
    is_numbered: bool,
}

impl Style {
    /// The chain of an interface.
    fn chain(&self, interface: &str) -> String {
        format!("{}-{interface}", self.chain)
    }

    /// The own chain of the rule of this number. The number comes first, because interfaces may be
    /// named `eth0` and `eth0-1`.
    fn rule_chain(&self, number: usize, interface: &str) -> String {
        format!("{}{number}-{interface}", self.chain)
    }
}

/// For users.
const PRINTED: Style = Style {
    options: "",
    chain: "barewire",
    limit: "bw",
    is_numbered: false,
};

const COMMANDS: [(&str, bool); 2] = [("iptables", false), ("ip6tables", true)];

/// Shell commands that install the rules. Comments list the commands that undo them, and the
/// differences from XDP.
///
/// # Errors
/// Errors of the rules; `Unsupported` for a rule that iptables cannot express.
pub fn iptables(setup: &Setup) -> Result<String> {
    let mut specs = setup.specs()?;
    specs.sort_by_key(|spec| spec.priority);
    let refuse = |command: &str, _: usize, program: &Program| {
        check_iptables(command, program).map(|()| String::new())
    };
    commands(setup, &specs, PRINTED, &refuse)
}

/// The commands for rules in this order.
fn commands(setup: &Setup, specs: &[RuleSpec], style: Style, pin: Pin<'_>) -> Result<String> {
    let mut text = String::new();
    let mut undo = String::new();
    for (command, is_ipv6) in COMMANDS {
        let table = Table {
            command,
            style,
            pin,
            is_ipv6,
            interface: &setup.interface,
            dry_run: setup.dry_run,
        };
        let chain = table.chain();
        let call = format!("{command}{}", style.options);
        let mut chains = vec![chain.clone()];
        let mut rules = String::new();
        if style.is_numbered {
            let all = "-m comment --comment 0";
            let _ = writeln!(rules, "{call} -t raw -A {chain} {all}");
        }
        if let Some(spec) = specs.iter().find(|spec| spec.in_user_space) {
            return Err(steer::not_here(&spec.name));
        }
        for (number, spec) in specs.iter().enumerate() {
            if let Some(own) = table.rule(&mut rules, number + 1, spec)? {
                chains.push(own);
            }
        }
        for chain in &chains {
            let _ = writeln!(text, "{call} -t raw -N {chain}");
        }
        let hook = format!("PREROUTING -i {} -j {chain}", quoted(&setup.interface));
        let _ = writeln!(text, "{rules}{call} -t raw -I {hook}");
        let _ = writeln!(undo, "# {command} -t raw -D {hook}");
        for verb in ["-F", "-X"] {
            for chain in &chains {
                let _ = writeln!(undo, "# {command} -t raw {verb} {chain}");
            }
        }
    }
    let notes: String = specs.iter().flat_map(notes).collect();
    Ok(format!("{notes}{text}# To undo it:\n{undo}"))
}

/// Differences between a rule in iptables and in XDP, as comments.
fn notes(spec: &RuleSpec) -> Vec<String> {
    let name = one_line(&spec.name);
    let note = |what: &str| format!("# \"{name}\": {what}\n");
    let mut notes = Vec::new();
    if spec.expires_after.is_some() {
        notes.push(note("does not expire"));
    }
    if matches!(
        spec.verdict,
        Verdict::Limit(_) | Verdict::LimitSources(_, Some(_))
    ) {
        notes.push(note("IPv4 and IPv6 are limited separately"));
    }
    let program = select(spec).and_then(|select| select.map(|s| s.iptables_programs()).transpose());
    let reads_len = |programs: &[(&str, Program)]| {
        let insns = programs.iter().flat_map(|row| row.1.insns());
        insns.into_iter().any(|insn| LOADS_LEN.contains(&insn.code))
    };
    if program.ok().flatten().is_some_and(|p| reads_len(&p)) {
        notes.push(note("lengths do not include the Ethernet header"));
    }
    notes
}

/// The compiled expression of a rule; `None` if it has none.
fn select(spec: &RuleSpec) -> Result<Option<Select>> {
    let text = spec.expression.trim();
    Ok(match text.strip_prefix(P0F) {
        _ if text.is_empty() => None,
        Some(signature) => Some(Select::p0f(signature.trim())?),
        None => Some(Select::Expression(
            Expression::new(&spec.expression).by(spec.compiler),
        )),
    })
}

/// Pins a program that is too long for bytecode, of a command and the rule of this number; returns
/// the path.
type Pin<'a> = &'a dyn Fn(&str, usize, &Program) -> Result<String>;

/// The raw table of one IP version.
struct Table<'a> {
    command: &'static str,
    style: Style,
    pin: Pin<'a>,
    is_ipv6: bool,
    interface: &'a str,
    dry_run: bool,
}

impl Table<'_> {
    fn chain(&self) -> String {
        quoted(&self.style.chain(self.interface))
    }

    /// Appends the commands of a rule; returns its own chain, if it has one.
    fn rule(&self, text: &mut String, number: usize, spec: &RuleSpec) -> Result<Option<String>> {
        let refused = |why: String| {
            let what = format!("print the rule \"{}\" for iptables", spec.name);
            Error::new(ErrorKind::Unsupported, what, why)
                .with_hint("without --hook iptables, an XDP program has all rules")
        };
        if spec.names.is_some() {
            return Err(refused("iptables has no lists of DNS names".into()));
        }
        let own = quoted(&self.style.rule_chain(number, self.interface));
        let drop = if self.dry_run { "RETURN" } else { "DROP" };
        let limits = self.limits(spec, number, drop).map_err(refused)?;
        let (target, chain) = match spec.verdict {
            Verdict::Count => (String::new(), None),
            Verdict::Pass => (" -j RETURN".to_owned(), None),
            Verdict::Drop => (format!(" -j {drop}"), None),
            // RETURN in a chain entered by -g also leaves the calling chain.
            Verdict::Limit(_) | Verdict::LimitSources(..) => {
                (format!(" -g {own}"), Some(own.clone()))
            }
            Verdict::User => return Err(steer::not_here(&spec.name)),
            Verdict::Challenge => {
                return Err(refused("iptables does not answer SYNs with cookies".into()));
            }
        };
        let matcher = match self.program(number, spec)? {
            Of::All => String::new(),
            Of::Some(text) => text,
            Of::None => return Ok(None),
        };
        let Some(addresses) = self.addresses(spec).map_err(refused)? else {
            return Ok(None);
        };
        let start = format!("{}{} -t raw -A", self.command, self.style.options);
        let name = match self.style.is_numbered {
            true => format!("{number} {}", one_line(&spec.name)),
            false => one_line(&spec.name),
        };
        for line in limits {
            let _ = writeln!(text, "{start} {own} {line}");
        }
        let _ = writeln!(
            text,
            "{start} {}{addresses}{matcher} -m comment --comment {}{target}",
            self.chain(),
            quoted(cut(&name))
        );
        Ok(chain)
    }

    /// The match of a rule's expression for this IP version.
    fn program(&self, number: usize, spec: &RuleSpec) -> Result<Of> {
        let Some(select) = select(spec)? else {
            return Ok(Of::All);
        };
        let renamed = |error: Error| {
            let what = format!("compile the rule \"{}\" for iptables", spec.name);
            let renamed = Error::new(error.kind(), what, error.why());
            match error.hint() {
                Some(hint) => renamed.with_hint(hint),
                None => renamed,
            }
        };
        let programs = select.iptables_programs().map_err(renamed)?;
        // An expression has one program for both versions, a signature may be for one only.
        let is_of_both = matches!(select, Select::Expression(_));
        let mut programs = programs.iter();
        let ours = programs.find(|row| is_of_both || row.0 == self.command);
        let Some((_, program)) = ours else {
            return Ok(Of::None);
        };
        if program.insns().len() <= IPTABLES_MAX {
            let code = bytecode(program.insns());
            return Ok(Of::Some(format!(" -m bpf --bytecode '{code}'")));
        }
        let path = (self.pin)(self.command, number, program).map_err(renamed)?;
        Ok(Of::Some(format!(
            " -m bpf --object-pinned {}",
            quoted(&path)
        )))
    }

    /// The options for prefix lists; `None` if a list has no prefix of this IP version.
    fn addresses(&self, spec: &RuleSpec) -> std::result::Result<Option<String>, String> {
        let mut text = String::new();
        let mut count = 1;
        for (option, list) in [("-s", &spec.sources), ("-d", &spec.destinations)] {
            let Some(list) = list else {
                continue;
            };
            let prefixes = self.prefixes(list.list());
            count *= prefixes.len();
            let _ = write!(text, " {option} {}", prefixes.join(","));
        }
        match count {
            0 => Ok(None),
            1..=PREFIXES_MAX => Ok(Some(text)),
            _ => Err(format!(
                "{count} prefixes, or pairs of them, are as many rules; the limit is {PREFIXES_MAX}"
            )),
        }
    }

    fn prefixes(&self, list: &List) -> Vec<String> {
        let texts = list.iter().map(ToString::to_string);
        texts
            .filter(|text| text.contains(':') == self.is_ipv6)
            .collect()
    }

    /// The rules in a limit's own chain, without `iptables -A CHAIN`.
    fn limits(
        &self,
        spec: &RuleSpec,
        number: usize,
        drop: &str,
    ) -> std::result::Result<Vec<String>, String> {
        let (source, all) = match spec.verdict {
            Verdict::Limit(all) => (None, Some(all)),
            Verdict::LimitSources(source, all) => (Some(source), all),
            _ => return Ok(Vec::new()),
        };
        let name = |of: &str| {
            quoted(&format!(
                "{}-{}-{number}{of}",
                self.style.limit, self.interface
            ))
        };
        let mut lines = Vec::new();
        if let Some(source) = source {
            let (ipv4, ipv6) = source.prefix_lens();
            let len = if self.is_ipv6 { ipv6 } else { ipv4 };
            lines.push(format!(
                "{} --hashlimit-name {} --hashlimit-mode srcip --hashlimit-srcmask {len} \
                 --hashlimit-htable-size {} --hashlimit-htable-max {SOURCES_MAX} -j {drop}",
                hashlimit(source.limit)?,
                name("s"),
                SOURCES_MAX / 4
            ));
        }
        if let Some(all) = all {
            let limit = hashlimit(all)?;
            lines.push(format!("{limit} --hashlimit-name {} -j {drop}", name("")));
        }
        lines.push("-j RETURN".to_owned());
        Ok(lines)
    }
}

/// The packets of one IP version that a rule matches.
enum Of {
    All,
    /// With this match.
    Some(String),
    None,
}

/// The match for packets above a limit; an error where hashlimit would differ from XDP.
fn hashlimit(limit: Limit) -> std::result::Result<String, String> {
    let (rate, burst) = (limit.rate_pps(), limit.burst());
    if rate > LIMIT_MAX || burst > LIMIT_MAX {
        return Err(format!(
            "a rate of {rate}/s with a burst of {burst}; the limit of hashlimit is {LIMIT_MAX}"
        ));
    }
    // The interval between packets is in whole microseconds (user2credits in xt_hashlimit.c).
    let effective = LIMIT_MAX / (LIMIT_MAX / rate);
    if effective - rate > rate / 100 {
        return Err(format!(
            "hashlimit would pass {effective}/s instead of {rate}/s: use a rate that a million is \
             a multiple of"
        ));
    }
    // Credit is added once per jiffy, 100 to 1000 times a second.
    let least = rate.div_ceil(100);
    if burst < least {
        return Err(format!(
            "hashlimit needs a burst of {least} packets for a rate of {rate}/s"
        ));
    }
    // An entry may expire only once its credit is full.
    let fill_ms = u64::from(burst) * 1000 / u64::from(rate) + 1;
    let expire_ms = fill_ms.max(EXPIRE_LEAST_MS);
    Ok(format!(
        "-m hashlimit --hashlimit-above {rate}/sec --hashlimit-burst {burst} \
         --hashlimit-htable-expire {expire_ms}"
    ))
}

/// A name without line breaks and other control characters.
fn one_line(name: &str) -> String {
    name.replace(char::is_control, " ")
}

/// A name cut to the length of a comment.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(COMMENT_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// A word quoted for the shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use ::guard::SourceLimit;

    use super::super::ListSpec;
    use super::*;

    fn printed(rules: Vec<RuleSpec>) -> Result<String> {
        iptables(&Setup {
            interface: "eth0".to_owned(),
            rules,
            ..Setup::default()
        })
    }

    #[test]
    fn rules_are_lines_in_their_order_and_the_hook_comes_last() {
        let mut first = RuleSpec::new("tcp", Verdict::Pass);
        first.priority = -1;
        first.name = "it's\nrm".into();
        let text = printed(vec![RuleSpec::new("udp", Verdict::Drop), first]).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("iptables")).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[0], "iptables -t raw -N barewire-eth0");
        assert!(
            lines[1].ends_with(r"--comment 'it'\''s rm' -j RETURN"),
            "{text}"
        );
        assert!(lines[2].ends_with("--comment udp -j DROP"), "{text}");
        assert_eq!(
            lines[3],
            "iptables -t raw -I PREROUTING -i eth0 -j barewire-eth0"
        );
        assert!(text.contains("# ip6tables -t raw -X barewire-eth0\n"));
    }

    #[test]
    fn limits_have_chains_that_are_gone_to() {
        let source = SourceLimit::new(Limit::new(50, 1000).unwrap(), 24, 48).unwrap();
        let both = Verdict::LimitSources(source, Limit::new(1_000, 100));
        let text = printed(vec![RuleSpec::new("udp and greater 600", both)]).unwrap();
        for part in [
            "ip6tables -t raw -N barewire1-eth0\n",
            "iptables -t raw -A barewire1-eth0 -m hashlimit --hashlimit-above 50/sec \
             --hashlimit-burst 1000 --hashlimit-htable-expire 20001 --hashlimit-name bw-eth0-1s \
             --hashlimit-mode srcip --hashlimit-srcmask 24 ",
            "--hashlimit-srcmask 48 ",
            "--hashlimit-above 1000/sec --hashlimit-burst 100 --hashlimit-htable-expire 10000 \
             --hashlimit-name bw-eth0-1 -j DROP\n",
            "--comment 'udp and greater 600' -g barewire1-eth0\n",
            "# \"udp and greater 600\": lengths do not include the Ethernet header",
            "# \"udp and greater 600\": IPv4 and IPv6 are limited separately",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn what_iptables_has_nothing_for_is_refused_with_the_rule() {
        let limited = |rate, burst| {
            let limit = Verdict::Limit(Limit::new(rate, burst).unwrap());
            RuleSpec::new("udp", limit)
        };
        let many: Vec<_> = (1..20).map(|port| format!("port {}", 2 * port)).collect();
        let list = (0..=PREFIXES_MAX).map(|i| format!("10.{}.{}.0/24", i / 256, i % 256));
        let list = ListSpec::inline(list.collect()).unwrap();
        for (rule, why) in [
            (
                RuleSpec::new("ether host 2:0:0:0:0:1", Verdict::Drop),
                "ether host",
            ),
            (RuleSpec::new("vlan 5", Verdict::Drop), "vlan 5"),
            (RuleSpec::new("tcp", Verdict::Challenge), "cookies"),
            (
                RuleSpec::of_names(
                    "names",
                    ListSpec::inline(vec!["a.test".into()]).unwrap(),
                    Verdict::Drop,
                ),
                "lists of DNS names",
            ),
            (
                RuleSpec::new(&many.join(" or "), Verdict::Drop),
                "-m bpf accepts 64",
            ),
            (
                RuleSpec::of_sources("list", list, Verdict::Drop),
                "257 prefixes",
            ),
            (limited(2_000_000, 1), "limit of hashlimit"),
            (limited(300_000, 30_000), "would pass 333333/s"),
            (limited(100_000, 10), "needs a burst of 1000"),
        ] {
            let error = printed(vec![rule]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_rule_for_one_version_of_ip_is_absent_from_the_other() {
        let list = ListSpec::inline(vec!["2001:db8::/32".into()]).unwrap();
        let text = printed(vec![
            RuleSpec::new("p0f:4:64:0:0:*,0::ack+:0", Verdict::Drop),
            RuleSpec::of_sources("six", list, Verdict::Drop),
        ]);
        let text = text.unwrap();
        let rules = |command: &str| {
            let start = format!("{command} -t raw -A barewire-eth0 ");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let [four, six] = [rules("iptables"), rules("ip6tables")];
        assert_eq!((four.len(), six.len()), (1, 1), "{text}");
        assert!(four[0].contains("--bytecode"), "{text}");
        assert_eq!(six[0], "-s 2001:db8::/32 -m comment --comment six -j DROP");
    }
}
