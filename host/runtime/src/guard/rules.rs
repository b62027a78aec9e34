//! The rule file: TOML, one `[[rule]]` per rule.
//!
//! ```toml
//! [[rule]]
//! name = "SYN flood on the web server"
//! match = "tcp dst port 80 and tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn"
//! verdict = "limit"     # pass, drop, count, limit, challenge or user
//! rate = "1000/s"       # with limit: packets a second that pass
//! burst = 100           # with limit: packets that pass at once; a tenth of the rate, or 10
//! source_rate = "50/s per /24"   # with limit: of each source prefix; with rate or instead of it
//! source_burst = 10     # with source_rate; if absent as burst
//! priority = 10         # lower numbers are asked first; 0 if absent
//! expires = "10m"       # the rule ends so long after it was loaded; never if absent
//!
//! [[rule]]
//! name = "hping3"
//! match = "p0f:4:64:0:0:*,0::ack+:0"   # a p0f signature of a SYN
//! verdict = "drop"
//!
//! [[rule]]
//! sources = "drop.txt"                  # a file with a prefix a line, beside the rule file
//! destinations = ["192.0.2.0/24"]       # or the prefixes
//! verdict = "drop"                      # match may be absent then
//!
//! [[rule]]
//! names = "names.txt"                   # DNS queries for the names in a file, or ["*.a.test"]
//! qtype = ["A", "ANY"]                  # only of these types; all if absent
//! verdict = "drop"
//! ```
//!
//! `[[user]]` is a rule in user space, for the packets of rules with the verdict `user`: it has the
//! same keys, without `expires` and limits per source, and the verdict pass, drop, count or limit.
//!
//! `allow = "friends.txt"`, or `allow = ["192.0.2.0/24"]`, before the first rule is a list of
//! sources whose packets pass before any rule is checked.

mod rates;

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use ::guard::{BURST_MAX, Limit, Name, NameTest, QueryType, RULES_MAX, Rule, SourceLimit, Verdict};
use port::FilterTarget;
use sys::{Error, ErrorKind, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ListSpec;
use super::lists::{Item, ListFiles};
use super::steer::{self, USER_RULES_MAX};
use crate::filter::select::Select;
use crate::filter::{Compiler, Expression};
use crate::text::read_text;
pub(super) use rates::parse_time;
pub use rates::{parse_rate, parse_source_rate};

/// Prefix of a p0f signature in place of an expression.
pub(super) const P0F: &str = "p0f:";

/// Maximum size of a rule file, in bytes.
const LEN_MAX: u64 = 4 << 20;
/// Maximum length of a name, in bytes: it is printed every second.
const NAME_LEN_MAX: usize = 100;

/// A rule as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Name for users.
    pub name: String,
    /// What it matches: a pcap expression for Ethernet, or `p0f:` and a SYN signature. Empty
    /// matches every packet; this needs a prefix list.
    pub expression: String,
    /// Compiler of the expression.
    pub compiler: Compiler,
    /// List that must also contain the IP source.
    pub sources: Option<ListSpec>,
    /// List that must also contain the IP destination.
    pub destinations: Option<ListSpec>,
    /// List that must also contain the name that a DNS query asks for.
    pub names: Option<ListSpec<Name>>,
    /// With names: the types of queries; all if empty.
    pub types: Vec<QueryType>,
    /// What happens to matching packets.
    pub verdict: Verdict,
    /// Rules with a lower number are matched first.
    pub priority: i32,
    /// How long after loading the rule expires.
    pub expires_after: Option<Duration>,
    /// Whether it is matched in user space, among packets that another rule steers there.
    pub in_user_space: bool,
}

impl RuleSpec {
    /// Creates a rule from a pcap expression, which is also its name.
    pub fn new(expression: &str, verdict: Verdict) -> Self {
        Self {
            name: expression.trim().to_owned(),
            expression: expression.to_owned(),
            compiler: Compiler::default(),
            sources: None,
            destinations: None,
            names: None,
            types: Vec::new(),
            verdict,
            priority: 0,
            expires_after: None,
            in_user_space: false,
        }
    }

    /// Creates a rule from a list of sources.
    pub fn of_sources(name: &str, sources: ListSpec, verdict: Verdict) -> Self {
        Self {
            sources: Some(sources),
            ..Self::new("", verdict)
        }
        .named(name)
    }

    /// Creates a rule from a list of DNS names, for queries of all types.
    pub fn of_names(name: &str, names: ListSpec<Name>, verdict: Verdict) -> Self {
        Self {
            names: Some(names),
            ..Self::new("", verdict)
        }
        .named(name)
    }

    /// Creates the allow list: packets of these sources pass before any other rule is matched.
    pub fn allow(sources: ListSpec) -> Self {
        Self {
            priority: i32::MIN,
            ..Self::of_sources(&format!("allow {}", sources.name()), sources, Verdict::Pass)
        }
    }

    /// Whether the prefixes in its lists are the same: files may have changed.
    pub(super) fn has_same_lists(&self, other: &Self) -> bool {
        let same = |ours: &Option<ListSpec>, theirs: &Option<ListSpec>| {
            ours.as_ref().map(ListSpec::list) == theirs.as_ref().map(ListSpec::list)
        };
        same(&self.sources, &other.sources) && same(&self.destinations, &other.destinations)
    }

    fn named(mut self, name: &str) -> Self {
        let mut end = name.len().min(NAME_LEN_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        self.name = name[..end].to_owned();
        self
    }

    /// Compiles the filter.
    ///
    /// # Errors
    /// The error of the expression, with the rule's name.
    pub fn compile(&self) -> Result<Rule> {
        let what = || format!("compile the rule \"{}\"", self.name);
        let matcher = match self.expression.trim().strip_prefix(P0F) {
            Some(signature) => Select::p0f(signature.trim())
                .and_then(|select| select.compile(1))
                .map(Some),
            None => Expression::new(&self.expression)
                .by(self.compiler)
                .compile(FilterTarget {
                    link_type: 1,
                    tap: None,
                }),
        };
        let matcher = matcher.map_err(|e| {
            let error = Error::new(e.kind(), what(), e.to_string());
            match e.hint() {
                Some(hint) => error.with_hint(hint.to_owned()),
                None => error,
            }
        })?;
        let mut rule = Rule {
            matcher,
            priority: self.priority,
            ..Rule::new(&self.name, self.verdict)
        };
        self.fill_lists(&mut rule);
        if rule.matcher.is_none() && !rule.has_lists() {
            let why = "its expression is empty and would match every packet";
            return Err(Error::new(ErrorKind::InvalidInput, what(), why)
                .with_hint("\"greater 0\" matches every packet"));
        }
        Ok(rule)
    }

    /// Sets the lists of a rule to those of this one.
    pub(super) fn fill_lists(&self, rule: &mut Rule) {
        let list = |list: &Option<ListSpec>| list.as_ref().map(|list| list.list().clone());
        rule.sources = list(&self.sources);
        rule.destinations = list(&self.destinations);
        rule.names = self.names.as_ref().map(|names| NameTest {
            list: names.list().clone(),
            types: self.types.clone(),
        });
    }
}

/// Reads a rule file and compiles every filter in it.
///
/// # Errors
/// The error with file name and line.
pub fn read(path: &Path, compiler: Compiler) -> Result<Vec<RuleSpec>> {
    let what = || format!("read the rules in {}", path.display());
    let text = read_text(path, LEN_MAX, what)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parse(&text, folder, compiler).map_err(|why| {
        Error::new(ErrorKind::InvalidInput, what(), why)
            .with_hint("`barewire guard --help` shows a rule; docs/guides/guard.md has all keys")
    })
}

/// Parses the text of a rule file, compiles every filter and reads every list in it. List names are
/// relative to `folder`.
///
/// # Errors
/// The error with its line.
pub fn parse(
    text: &str,
    folder: &Path,
    compiler: Compiler,
) -> std::result::Result<Vec<RuleSpec>, String> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().unwrap_or(0..0);
        on_line(text, &at, error.message())
    })?;
    let files = Files {
        prefixes: ListFiles::in_folder(folder),
        names: ListFiles::in_folder(folder),
    };
    let mut rules: Vec<RuleSpec> = Vec::new();
    let mut names = HashSet::new();
    let mut counts = [0_usize; 2];
    for (key, value) in table.get_ref() {
        if key.get_ref() == "allow" {
            let sources = list(value, "allow", &files.prefixes);
            let sources = sources.map_err(|(at, why)| on_line(text, &at, &why))?;
            let allow = RuleSpec::allow(sources);
            names.insert(allow.name.clone());
            rules.push(allow);
            continue;
        }
        let in_user_space = key.get_ref() == "user";
        if key.get_ref() != "rule" && !in_user_space {
            let key_name = key.get_ref();
            let why = format!("unknown key \"{key_name}\": expected [[rule]] or [[user]]");
            return Err(on_line(text, &key.span(), &why));
        }
        let Some(array) = value.get_ref().as_array() else {
            let why = format!("expected [[{}]], with two brackets", key.get_ref());
            return Err(on_line(text, &key.span(), &why));
        };
        for entry in array.iter() {
            let Some(table) = entry.get_ref().as_table() else {
                return Err(on_line(text, &entry.span(), "expected a table"));
            };
            let mut spec = rule(table, &files, compiler, &entry.span(), rules.len() + 1)
                .map_err(|(at, why)| on_line(text, &at, &why))?;
            if in_user_space {
                spec.in_user_space = true;
                steer::check(&spec).map_err(|e| on_line(text, &entry.span(), &e.to_string()))?;
            }
            if !names.insert(spec.name.clone()) {
                let why = format!("another rule has the name \"{}\"", spec.name);
                return Err(on_line(text, &entry.span(), &why));
            }
            rules.push(spec);
            let (count, rules_max) = match in_user_space {
                true => (&mut counts[1], USER_RULES_MAX),
                false => (&mut counts[0], RULES_MAX),
            };
            *count += 1;
            if *count > rules_max {
                let why = format!("more than {rules_max} rules");
                return Err(on_line(text, &entry.span(), &why));
            }
        }
    }
    Ok(rules)
}

/// The files that rules refer to.
struct Files<'a> {
    prefixes: ListFiles<'a>,
    names: ListFiles<'a, Name>,
}

/// An error and its position.
type Wrong = (Range<usize>, String);

fn on_line(text: &str, at: &Range<usize>, why: &str) -> String {
    let before = text.get(..at.start).unwrap_or(text);
    format!("line {}: {why}", before.matches('\n').count() + 1)
}

/// The keys of a rule as written.
#[derive(Default)]
struct Keys {
    name: Option<String>,
    expression: Option<(Range<usize>, String)>,
    verdict: Option<(Range<usize>, String)>,
    rate: Option<(Range<usize>, u32)>,
    burst: Option<(Range<usize>, u32)>,
    source_rate: Option<(Range<usize>, SourceLimit)>,
    source_burst: Option<(Range<usize>, u32)>,
    priority: i32,
    expires_after: Option<Duration>,
    sources: Option<ListSpec>,
    destinations: Option<ListSpec>,
    names: Option<ListSpec<Name>>,
    types: Option<(Range<usize>, Vec<QueryType>)>,
}

fn rule(
    table: &DeTable<'_>,
    files: &Files<'_>,
    compiler: Compiler,
    at: &Range<usize>,
    number: usize,
) -> std::result::Result<RuleSpec, Wrong> {
    let keys = keys(table, files)?;
    let wrong = |why: &str| (at.clone(), why.to_owned());
    let limit = limit(&keys);
    let has_list = keys.sources.is_some() || keys.destinations.is_some() || keys.names.is_some();
    if let (None, Some((at, _))) = (&keys.names, &keys.types) {
        return Err((at.clone(), "qtype belongs to names".to_owned()));
    }
    let (expression_at, expression) = match keys.expression {
        Some(expression) => expression,
        None if has_list => (at.clone(), String::new()),
        None => {
            return Err(wrong(
                "the rule has no match and no list of prefixes or names",
            ));
        }
    };
    let (verdict_at, verdict) = keys
        .verdict
        .ok_or_else(|| wrong("the rule has no verdict"))?;
    let limit_keys = [
        keys.rate.as_ref().map(|k| &k.0),
        keys.burst.as_ref().map(|k| &k.0),
        keys.source_rate.as_ref().map(|k| &k.0),
        keys.source_burst.as_ref().map(|k| &k.0),
    ];
    if verdict != "limit"
        && let Some(at) = limit_keys.into_iter().flatten().next()
    {
        let why = "rates and bursts are for verdict = \"limit\"";
        return Err((at.clone(), why.to_owned()));
    }
    let verdict = match verdict.as_str() {
        "limit" => limit.map_err(wrong)?,
        other => plain_verdict(other).map_err(|why| (verdict_at, why))?,
    };
    let spec = RuleSpec {
        name: keys.name.unwrap_or_else(|| format!("rule {number}")),
        expression,
        compiler,
        sources: keys.sources,
        destinations: keys.destinations,
        names: keys.names,
        types: keys.types.map(|types| types.1).unwrap_or_default(),
        verdict,
        priority: keys.priority,
        expires_after: keys.expires_after,
        in_user_space: false,
    };
    spec.compile().map_err(|e| match e.hint() {
        Some(hint) => (expression_at, format!("{e}\n  {hint}")),
        None => (expression_at, e.to_string()),
    })?;
    Ok(spec)
}

/// Parses a verdict without parameters.
fn plain_verdict(word: &str) -> std::result::Result<Verdict, String> {
    Ok(match word {
        "pass" => Verdict::Pass,
        "drop" => Verdict::Drop,
        "count" => Verdict::Count,
        "challenge" => Verdict::Challenge,
        "user" => Verdict::User,
        other => {
            return Err(format!(
                "unknown verdict \"{other}\": expected pass, drop, count, limit, challenge or user"
            ));
        }
    })
}

/// Parses the verdict of a limit.
fn limit(keys: &Keys) -> std::result::Result<Verdict, &'static str> {
    let out_of_range = "rate or burst out of range";
    if keys.rate.is_none() && keys.burst.is_some() {
        return Err("burst belongs to rate; a limit per source has source_burst");
    }
    if keys.source_rate.is_none() && keys.source_burst.is_some() {
        return Err("source_burst belongs to source_rate");
    }
    let all = match &keys.rate {
        Some((_, rate)) => {
            let burst = keys.burst.as_ref().map_or(Limit::burst_of(*rate), |k| k.1);
            Some(Limit::new(*rate, burst).ok_or(out_of_range)?)
        }
        None => None,
    };
    let source = match &keys.source_rate {
        Some((_, source)) => {
            let burst = keys.source_burst.as_ref().map(|k| k.1);
            let burst = burst.unwrap_or(source.limit.burst());
            let limit = Limit::new(source.limit.rate_pps(), burst).ok_or(out_of_range)?;
            let mut source = *source;
            source.limit = limit;
            Some(source)
        }
        None => None,
    };
    match (source, all) {
        (Some(source), all) => Ok(Verdict::LimitSources(source, all)),
        (None, Some(all)) => Ok(Verdict::Limit(all)),
        (None, None) => Err("the limit has no rate and no source_rate"),
    }
}

fn keys(table: &DeTable<'_>, files: &Files<'_>) -> std::result::Result<Keys, Wrong> {
    let mut keys = Keys::default();
    for (key, value) in table {
        let at = value.span();
        let wrong = |why: String| (at.clone(), why);
        let name = key.get_ref().as_ref();
        match name {
            "name" => {
                let name = text(value, name)?;
                if name.trim().is_empty() || name.len() > NAME_LEN_MAX {
                    let why = format!("a name has 1 to {NAME_LEN_MAX} bytes");
                    return Err(wrong(why));
                }
                if name.chars().any(char::is_control) {
                    return Err(wrong("a name must not contain control characters".into()));
                }
                keys.name = Some(name);
            }
            "match" => keys.expression = Some((at.clone(), text(value, name)?)),
            "sources" => keys.sources = Some(list(value, name, &files.prefixes)?),
            "destinations" => keys.destinations = Some(list(value, name, &files.prefixes)?),
            "names" => keys.names = Some(list(value, name, &files.names)?),
            "qtype" => keys.types = Some((at.clone(), types(value)?)),
            "verdict" => keys.verdict = Some((at.clone(), text(value, name)?)),
            "rate" => {
                let rate = parse_rate(&text(value, name)?).map_err(wrong)?;
                keys.rate = Some((at.clone(), rate));
            }
            "source_rate" => {
                let rate = parse_source_rate(&text(value, name)?).map_err(wrong)?;
                keys.source_rate = Some((at.clone(), rate));
            }
            "burst" | "source_burst" => {
                let burst = u32::try_from(integer(value, name)?).unwrap_or(0);
                if !(1..=BURST_MAX).contains(&burst) {
                    return Err(wrong(format!("{name} is between 1 and {BURST_MAX}")));
                }
                let slot = match name {
                    "burst" => &mut keys.burst,
                    _ => &mut keys.source_burst,
                };
                *slot = Some((at.clone(), burst));
            }
            "priority" => {
                keys.priority = i32::try_from(integer(value, name)?)
                    .map_err(|_| wrong("priority is too large".into()))?;
            }
            "expires" => {
                let time = parse_time(&text(value, name)?).map_err(wrong)?;
                keys.expires_after = Some(time);
            }
            "allow" => {
                let why = "allow belongs to the file and not to a rule: move it before the first \
                           [[rule]]";
                return Err((key.span(), why.to_owned()));
            }
            other => {
                let why = format!(
                    "unknown key \"{other}\": expected name, match, sources, destinations, \
                     names, qtype, verdict, rate, burst, source_rate, source_burst, priority or \
                     expires"
                );
                return Err((key.span(), why));
            }
        }
    }
    Ok(keys)
}

/// Reads a list: inline, or the name of another file.
fn list<T: Item + Clone>(
    value: &Spanned<DeValue<'_>>,
    key: &str,
    files: &ListFiles<'_, T>,
) -> std::result::Result<ListSpec<T>, Wrong> {
    let at = value.span();
    let wrong = |why: String| (at.clone(), why);
    match value.get_ref() {
        DeValue::String(file) => files.list(file).map_err(|e| wrong(e.to_string())),
        DeValue::Array(array) => {
            let texts: std::result::Result<Vec<String>, Wrong> =
                array.iter().map(|entry| text(entry, key)).collect();
            for entry in array.iter() {
                // At the line of the entry itself.
                T::parse(&text(entry, key)?).map_err(|why| (entry.span(), why))?;
            }
            ListSpec::inline(texts?).map_err(wrong)
        }
        _ => Err(wrong(format!(
            "{key} must be a file name in quotes, or an array of {}",
            T::PLURAL
        ))),
    }
}

/// Reads types of queries: one, or an array.
fn types(value: &Spanned<DeValue<'_>>) -> std::result::Result<Vec<QueryType>, Wrong> {
    let one = |value: &Spanned<DeValue<'_>>| {
        let text = text(value, "qtype")?;
        QueryType::parse(&text).map_err(|e| (value.span(), format!("{}; {}", e.what, e.expected)))
    };
    match value.get_ref() {
        DeValue::Array(array) => array.iter().map(one).collect(),
        _ => Ok(vec![one(value)?]),
    }
}

fn text(value: &Spanned<DeValue<'_>>, key: &str) -> std::result::Result<String, Wrong> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        _ => Err((value.span(), format!("{key} must be text in quotes"))),
    }
}

fn integer(value: &Spanned<DeValue<'_>>, key: &str) -> std::result::Result<i64, Wrong> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    };
    number.ok_or_else(|| (value.span(), format!("{key} must be a whole number")))
}

#[cfg(test)]
mod tests;
