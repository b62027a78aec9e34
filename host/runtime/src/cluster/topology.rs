//! The topology file: TOML, one `[[application]]` per application.
//!
//! ```toml
//! name = "ids"                        # programs open ring:ids
//! inputs = ["eth0", "afxdp:eth1?queues=4"]
//! filter = "not port 22"              # all packets if absent
//! ring = 4096                         # packets in each queue
//! merge = 20                          # in order of time: packets wait 20 ms for earlier ones
//! allow = ["suricata"]                # users whose programs may attach
//!
//! [[application]]
//! name = "ids"
//! queues = 4
//! balance = "inner"                   # flow, inner, addresses, vlan or round-robin
//! filter = "tcp or udp"
//! when_full = "block=20"              # drop, block, block=MS or spill
//! when_gone = "rehash"                # wait or rehash
//! shunt = "64k,encrypted"            # bytes or packets of each flow, and not the encrypted rest
//! deduplicate = 10                    # leave out copies of packets 10 ms old
//! detunnel = "tunnels"                # or tags: hand over the packet inside
//!
//! [[application]]
//! name = "services"
//! queues = ["udp port 53", "tcp port 443", ""]   # a filter for each queue
//!
//! [[application]]
//! name = "sites"
//! queues = 2
//! table = "sites.txt"                 # a prefix and a queue on each line
//!
//! [[application]]
//! name = "log"
//! source = "ids"                      # what readers of ids send, not what the inputs receive
//! port = "vm:log"                     # its reader: this port, in the process of the cluster
//!
//! [[return]]                          # what readers send
//! port = "eth1"                       # goes out by eth1
//! from = "eth0"                       # if it came from eth0
//! application = "services"            # and readers of services sent it
//! ```

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flow::cleanup::ShuntLimits;
use sys::{Error, ErrorKind, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::application::{self, Application, WhenFull, WhenGone};
use super::balance::Balance;
use super::cleanup::{Detunnel, parse_deduplicate};
use super::merge;
use super::returns::Return;
use super::table::Table;
use crate::filter::{Compiler, Expression};
use crate::text::read_text;

/// Maximum size of a topology file, in bytes.
const LEN_MAX: u64 = 1 << 20;

/// A topology as configured.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Name of the cluster.
    pub name: String,
    /// Names of the input ports.
    pub inputs: Vec<String>,
    /// Packets to hand over.
    pub filter: Expression,
    /// Length of each queue in packets.
    pub ring_len: Option<u32>,
    /// How long packets wait for earlier ones of other inputs.
    pub merge: Option<Duration>,
    /// Users whose processes may attach.
    pub allow: Vec<String>,
    /// The applications.
    pub applications: Vec<Application>,
    /// The ports that send what readers send.
    pub returns: Vec<Return>,
}

/// An error and its position.
type Wrong = (Range<usize>, String);

type Parsed<T> = std::result::Result<T, Wrong>;

type Value<'a> = Spanned<DeValue<'a>>;

/// Reads a topology file.
///
/// # Errors
/// The error with file name and line.
pub fn read(path: &Path, compiler: Compiler) -> Result<Topology> {
    let what = || format!("read the topology in {}", path.display());
    let text = read_text(path, LEN_MAX, what)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parse(&text, folder, compiler).map_err(|why| {
        Error::new(ErrorKind::InvalidInput, what(), why).with_hint(
            "`barewire cluster run --help` shows a topology; docs/cluster.md has all keys",
        )
    })
}

/// Parses the text of a topology file; names of tables are relative to `folder`.
///
/// # Errors
/// The error with its line.
pub(super) fn parse(
    text: &str,
    folder: &Path,
    compiler: Compiler,
) -> std::result::Result<Topology, String> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().unwrap_or(0..0);
        on_line(text, &at, error.message())
    })?;
    let reader = Reader { folder, compiler };
    reader
        .topology(table.get_ref())
        .map_err(|(at, why)| on_line(text, &at, &why))
}

fn on_line(text: &str, at: &Range<usize>, why: &str) -> String {
    let before = text.get(..at.start).unwrap_or(text);
    format!("line {}: {why}", before.matches('\n').count() + 1)
}

fn string(value: &Value<'_>, expected: &str) -> Parsed<String> {
    let text = value.get_ref().as_str().map(str::to_owned);
    text.ok_or_else(|| (value.span(), format!("expected {expected}")))
}

fn number(value: &Value<'_>, expected: &str) -> Parsed<u32> {
    let integer = value.get_ref().as_integer();
    let number = integer.and_then(|it| u32::from_str_radix(it.as_str(), it.radix()).ok());
    number.ok_or_else(|| (value.span(), format!("expected {expected}")))
}

/// A merge window in milliseconds.
fn window(value: &Value<'_>) -> Parsed<Duration> {
    let ms = number(value, "a number of milliseconds")?;
    merge::parse(&ms.to_string()).map_err(|why| (value.span(), why))
}

fn strings(value: &Value<'_>, expected: &str) -> Parsed<Vec<String>> {
    let wrong = || (value.span(), format!("expected {expected}"));
    let array = value.get_ref().as_array().ok_or_else(wrong)?;
    array.iter().map(|entry| string(entry, expected)).collect()
}

/// The ports of the return path.
fn returns(value: &Value<'_>) -> Parsed<Vec<Return>> {
    let expected = || (value.span(), "expected [[return]]".to_owned());
    let array = value.get_ref().as_array().ok_or_else(expected)?;
    let mut returns = Vec::new();
    for entry in array.iter() {
        let table = entry.get_ref().as_table().ok_or_else(expected)?;
        let mut it = Return::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "port" => it.port = string(value, "the name of a port")?,
                "from" => it.from = Some(string(value, "the name of an input")?),
                "application" => {
                    it.application = Some(string(value, "the name of an application")?);
                }
                other => {
                    let why =
                        format!("unknown key \"{other}\": expected port, from or application");
                    return Err((key.span(), why));
                }
            }
        }
        if it.port.is_empty() {
            return Err((entry.span(), "the return path has no port".into()));
        }
        returns.push(it);
    }
    Ok(returns)
}

struct Reader<'a> {
    folder: &'a Path,
    compiler: Compiler,
}

impl Reader<'_> {
    /// An expression, which is compiled for Ethernet: its errors have a line then. Those of another
    /// link type show when the ports are open.
    fn expression(&self, value: &Value<'_>, expected: &str) -> Parsed<Expression> {
        let expression = Expression::new(string(value, expected)?).by(self.compiler);
        match expression.check() {
            Ok(()) => Ok(expression),
            Err(error) => Err((value.span(), error.to_string())),
        }
    }

    fn topology(&self, table: &DeTable<'_>) -> Parsed<Topology> {
        let mut topology = Topology {
            name: String::new(),
            inputs: Vec::new(),
            filter: Expression::new("").by(self.compiler),
            ring_len: None,
            merge: None,
            allow: Vec::new(),
            applications: Vec::new(),
            returns: Vec::new(),
        };
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "name" => topology.name = string(value, "a name")?,
                "inputs" => topology.inputs = strings(value, "names of ports: [\"eth0\"]")?,
                "filter" => topology.filter = self.expression(value, "an expression")?,
                "ring" => topology.ring_len = Some(number(value, "a number of packets")?),
                "merge" => topology.merge = Some(window(value)?),
                "allow" => topology.allow = strings(value, "names of users: [\"ids\"]")?,
                "application" => topology.applications = self.applications(value)?,
                "return" => topology.returns = returns(value)?,
                other => {
                    let why = format!(
                        "unknown key \"{other}\": expected name, inputs, filter, ring, merge, \
                         allow, [[application]] or [[return]]"
                    );
                    return Err((key.span(), why));
                }
            }
        }
        let missing = [
            (topology.name.is_empty(), "name"),
            (topology.inputs.is_empty(), "inputs"),
            (topology.applications.is_empty(), "[[application]]"),
        ];
        if let Some((_, key)) = missing.iter().find(|(is_missing, _)| *is_missing) {
            return Err((0..0, format!("the topology has no {key}")));
        }
        Ok(topology)
    }

    fn applications(&self, value: &Value<'_>) -> Parsed<Vec<Application>> {
        let expected = || (value.span(), "expected [[application]]".to_owned());
        let array = value.get_ref().as_array().ok_or_else(expected)?;
        let mut applications = Vec::new();
        for entry in array.iter() {
            let table = entry.get_ref().as_table().ok_or_else(expected)?;
            applications.push(self.application(table, &entry.span())?);
            application::check(&applications).map_err(|why| (entry.span(), why))?;
        }
        Ok(applications)
    }

    /// The filters of an application's queues.
    fn filters(&self, value: &Value<'_>) -> Parsed<Vec<Expression>> {
        let expected = "expressions: [\"udp port 53\", \"\"]";
        let array = value.get_ref().as_array();
        let filters = array.into_iter().flat_map(|it| it.iter());
        filters.map(|it| self.expression(it, expected)).collect()
    }

    /// The table of an application's queues.
    fn table(&self, value: &Value<'_>) -> Parsed<Balance> {
        let name = string(value, "the name of a file")?;
        let table = Table::file(&self.folder.join(name));
        let table = table.map_err(|error| (value.span(), error.to_string()))?;
        Ok(Balance::Table(Arc::new(table)))
    }

    fn application(&self, table: &DeTable<'_>, at: &Range<usize>) -> Parsed<Application> {
        let mut application = Application::new("", 1);
        // The key that decides how packets are distributed, if there is one.
        let mut chosen: Option<&'static str> = None;
        let mut choose = |key: &'static str, at: Range<usize>| match chosen.replace(key) {
            Some(other) => Err((at, format!("{other} and {key} exclude each other"))),
            None => Ok(()),
        };
        for (key, value) in table {
            let at = || value.span();
            match key.get_ref().as_ref() {
                "name" => application.name = string(value, "a name")?,
                "queues" if value.get_ref().as_array().is_some() => {
                    choose("a list of queues", at())?;
                    let filters = self.filters(value)?;
                    application.queue_count = filters.len() as u32;
                    application.balance = Balance::Filters(filters);
                }
                "queues" => {
                    let expected = "a number of queues, or a list of expressions";
                    application.queue_count = number(value, expected)?;
                }
                "balance" => {
                    choose("balance", at())?;
                    let name = string(value, "a word")?;
                    application.balance = Balance::parse(&name).map_err(|why| (at(), why))?;
                }
                "table" => {
                    choose("table", at())?;
                    application.balance = self.table(value)?;
                }
                "filter" => application.filter = self.expression(value, "an expression")?,
                "when_full" => {
                    let when = WhenFull::parse(&string(value, "a word")?);
                    application.when_full = Some(when.map_err(|why| (at(), why))?);
                }
                "source" => {
                    application.source = Some(string(value, "the name of an application")?);
                }
                "port" => application.port = Some(string(value, "the name of a port")?),
                "when_gone" => {
                    let when = WhenGone::parse(&string(value, "a word")?);
                    application.when_gone = when.map_err(|why| (at(), why))?;
                }
                "shunt" => {
                    let limits = ShuntLimits::parse(&string(value, "a text: \"64k\"")?);
                    application.cleanup.shunt = Some(limits.map_err(|why| (at(), why))?);
                }
                "deduplicate" => {
                    let ms = number(value, "a number of milliseconds")?;
                    let window = parse_deduplicate(&ms.to_string());
                    application.cleanup.deduplicate = Some(window.map_err(|why| (at(), why))?);
                }
                "detunnel" => {
                    let kind = Detunnel::parse(&string(value, "a word")?);
                    application.cleanup.detunnel = Some(kind.map_err(|why| (at(), why))?);
                }
                other => {
                    let why = format!(
                        "unknown key \"{other}\": expected name, queues, balance, table, filter, \
                         source, port, when_full, when_gone, shunt, deduplicate or detunnel"
                    );
                    return Err((key.span(), why));
                }
            }
        }
        match application.name.is_empty() {
            true => Err((at.clone(), "the application has no name".into())),
            false => Ok(application),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<Topology, String> {
        parse(text, Path::new("/nowhere"), Compiler::Barewire)
    }

    const GOOD: &str = "name = \"ids\"\ninputs = [\"eth0\", \"eth1\"]\nfilter = \"not port 22\"\n\
                        ring = 512\nmerge = 20\nallow = [\"nobody\"]\n\
                        [[application]]\nname = \"a\"\nqueues = 4\nbalance = \"inner\"\n\
                        filter = \"tcp\"\nwhen_full = \"spill\"\n\
                        when_gone = \"rehash\"\n[[application]]\nname = \"b\"\n\
                        queues = [\"udp\", \"\"]\nwhen_full = \"block=7\"\n";

    #[test]
    fn a_topology_has_what_its_file_says() {
        let topology = read(GOOD).unwrap();
        assert_eq!(
            (
                topology.name.as_str(),
                topology.inputs.len(),
                topology.ring_len
            ),
            ("ids", 2, Some(512))
        );
        assert_eq!(topology.merge, Some(Duration::from_millis(20)));
        assert_eq!(
            (topology.filter.text.as_str(), topology.allow.len()),
            ("not port 22", 1)
        );
        let [a, b] = topology.applications.as_slice() else {
            panic!("two applications");
        };
        assert_eq!(
            (a.name.as_str(), a.queue_count, a.balance.name()),
            ("a", 4, "inner")
        );
        assert_eq!(
            (a.when_full, a.when_gone),
            (Some(WhenFull::Spill), WhenGone::Rehash)
        );
        assert_eq!((a.filter.text.as_str(), b.queue_count), ("tcp", 2));
        assert_eq!(b.when_full.unwrap().name(), "block=7");
        assert!(matches!(&b.balance, Balance::Filters(f) if f[0].text == "udp"));
    }

    #[test]
    fn applications_are_cleaned_up_as_their_keys_say() {
        let keys = "shunt = \"20,64k\"\ndeduplicate = 7\ndetunnel = \"tags\"";
        let topology = read(&format!("{GOOD}{keys}")).unwrap();
        let cleanup = topology.applications[1].cleanup.clone();
        assert_eq!(cleanup.shunt.unwrap().to_string(), "20,64k");
        assert_eq!(cleanup.deduplicate, Some(Duration::from_millis(7)));
        assert_eq!(cleanup.detunnel, Some(Detunnel::Tags));
        assert!(topology.applications[0].cleanup.is_none());
        for (text, expected) in [
            ("shunt = 64", "line 18: expected a text"),
            ("shunt = \"x\"", "line 18: expected bytes"),
            ("deduplicate = 0", "line 18: expected milliseconds"),
            ("detunnel = true", "line 18: expected a word"),
            ("detunnel = \"gre\"", "line 18: use tunnels"),
        ] {
            let why = read(&format!("{GOOD}{text}")).unwrap_err();
            assert!(why.starts_with(expected), "{text}: {why}");
        }
    }

    #[test]
    fn pipelines_and_ports_that_send_are_read() {
        let more = "[[application]]\nname = \"c\"\nsource = \"a\"\nport = \"vm:c\"\n\
                    [[return]]\nport = \"eth1\"\nfrom = \"eth0\"\napplication = \"b\"\n\
                    [[return]]\nport = \"eth0\"\n";
        let topology = read(&format!("{GOOD}{more}")).unwrap();
        let c = &topology.applications[2];
        let (source, port) = (c.source.as_deref(), c.port.as_deref());
        assert_eq!((source, port), (Some("a"), Some("vm:c")));
        let [back, rest] = topology.returns.as_slice() else {
            panic!("two ports");
        };
        let (from, application) = (back.from.as_deref(), back.application.as_deref());
        assert_eq!((from, application), (Some("eth0"), Some("b")));
        assert_eq!((back.port.as_str(), rest.port.as_str()), ("eth1", "eth0"));
        assert_eq!((&rest.from, &rest.application), (&None, &None));
    }

    #[test]
    fn errors_name_their_line() {
        let lines = |extra: &str| format!("{GOOD}[[application]]\nname = \"c\"\n{extra}");
        for (text, expected) in [
            (String::new(), "line 1: the topology has no name"),
            (
                "name = \"x\"\ncolour = 1".into(),
                "line 2: unknown key \"colour\"",
            ),
            ("name = ".into(), "line 1: "),
            (
                "name = \"x\"\nmerge = 0".into(),
                "line 2: expected milliseconds",
            ),
            ("merge = 10001".into(), "line 1: expected milliseconds"),
            (lines("queues = 0"), "line 18: application c has no queue"),
            (lines("queues = 60"), "line 18: 66 queues"),
            (lines("queues = \"x\""), "line 20: expected a number"),
            (lines("balance = \"luck\""), "line 20: "),
            (lines("queues = [\"\"]\nbalance = \"flow\""), "line "),
            (lines("table = \"none.txt\""), "line 20: "),
            (lines("filter = \"tcp prot 80\""), "line 20: "),
            (lines("queues = [\"tcp prot 80\"]"), "line 20: "),
            (lines("when_full = \"wait\""), "line 20: use drop, block"),
            (lines("when_gone = \"drop\""), "line 20: use wait or rehash"),
            (
                lines("queues = [\"\"]\nwhen_gone = \"rehash\""),
                "line 18: ",
            ),
            (lines("name2 = 1"), "line 20: unknown key"),
            (lines("port = 1"), "line 20: expected the name of a port"),
            (
                lines("[[return]]\nfrom = \"eth0\""),
                "line 20: the return path has no port",
            ),
            (lines("[[return]]\nto = \"eth0\""), "line 21: unknown key"),
            (
                lines("port = \"vm:x\"\nqueues = 2"),
                "line 18: application c is read by a port",
            ),
            (
                format!("{GOOD}[[application]]\nqueues = 1"),
                "line 18: the application has no name",
            ),
            (
                format!("{GOOD}[[application]]\nname = \"a\""),
                "line 18: two applications",
            ),
        ] {
            let why = read(&text).unwrap_err();
            assert!(why.starts_with(expected), "{text}: {why}");
        }
    }
}
