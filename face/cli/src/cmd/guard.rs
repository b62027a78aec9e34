//! `barewire guard`: drops packets in the driver according to rules.

mod check;
mod flood;
mod iptables;
mod metrics;
mod show;
mod steer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::guard::{Limit, Verdict};
use clap::ValueEnum;
use export::prometheus::Endpoint;
use runtime::guard::{
    self, Action, DetectSetup, GuardHook, ListSpec, Notice, RuleSpec, SampleSetup, Setup, Totals,
};
use runtime::{Reload, Stop, TotalsRequest};
use sys::privileges::{self, Capability, User};
use sys::{Error, ErrorKind, Result};

use crate::args::{Attach, FilterCompiler, parse_duration};
use crate::confine::{ConfineArgs, Files, Needs};
use crate::interface;
use crate::out::{say, warning};
use crate::report::counted;

/// Arguments.
#[derive(clap::Args)]
#[command(
    after_help = HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Interface to guard: its received packets are checked
    #[arg(value_name = "IFACE", required = true)]
    interface: Option<String>,
    /// Pass packets from these sources before any rule is checked: a file with one IP prefix per
    /// line, or prefixes separated by commas
    #[arg(long, value_name = "LIST")]
    allow: Vec<String>,
    /// Drop packets from these sources: a list as with --allow
    #[arg(long, value_name = "LIST")]
    deny: Vec<String>,
    /// Drop DNS queries for the names in a file, separated by white space or commas;
    /// *.example.com is every name with exactly one more label
    #[arg(long, value_name = "FILE")]
    deny_names: Vec<PathBuf>,
    /// Pass packets that match this expression (man pcap-filter); later rules are not checked
    #[arg(long, value_name = "EXPR")]
    pass: Vec<String>,
    /// Count packets that match, and continue with the next rule
    #[arg(long, value_name = "EXPR")]
    count: Vec<String>,
    /// Drop packets that match
    #[arg(long, value_name = "EXPR")]
    drop: Vec<String>,
    /// Answer SYNs that match with SYN cookies, and pass clients that return the cookie; for
    /// services on this host
    #[arg(long, value_name = "EXPR")]
    challenge: Vec<String>,
    /// Pass packets that match up to this rate, from all sources together, and drop the others:
    /// '1000/s EXPR'; '50/s per /24 EXPR' limits each source prefix, '1000/s and 50/s per /24,/48
    /// EXPR' both (/48: of IPv6)
    #[arg(long, value_name = "RATE EXPR")]
    limit: Vec<String>,
    #[command(flatten)]
    steer: steer::SteerArgs,
    /// Compiler of filter expressions
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "barewire",
        value_name = "COMPILER"
    )]
    filter_compiler: FilterCompiler,
    /// Read rules from a TOML file; SIGHUP reloads it
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Count what the rules would drop, and drop nothing
    #[arg(long)]
    dry_run: bool,
    /// Where packets are dropped: in an XDP program, in a tc program (after the packet has a socket
    /// buffer, and after GRO; Linux 6.6), or by rules of iptables, which are removed at the end
    #[arg(long, value_enum, default_value = "xdp")]
    hook: Hook,
    /// With --hook iptables: print the rules as iptables and ip6tables commands, and change
    /// nothing
    #[arg(long, conflicts_with_all = [
        "json", "metrics", "duration", "user", "detect", "sample_drops",
    ])]
    print: bool,
    /// Learn normal rates for a minute (warm-up) and report floods of an address, a network (/24,
    /// /64) or all addresses; propose a rule against each, or install it until the flood is over,
    /// and another one when the flood changes. The rule drops what no good packet looks like;
    /// connections, large streams and scans are limited, SYNs like those of clients challenged if
    /// this host can answer them. Half-open connections and impossible TCP flags are recognized
    /// from the start
    #[arg(long, value_enum, value_name = "ACTION")]
    detect: Option<Detect>,
    /// Write the first 256 bytes of dropped packets to a pcapng file, with the name of their rule
    /// as a comment: one packet in N of --sample, up to 1000/s for each rule
    #[arg(long, value_name = "FILE")]
    sample_drops: Option<PathBuf>,
    /// Keep the program attached if barewire is killed: the rules stay in force, and steered
    /// packets are handled as --on-failure says. The next start or --undo detaches it
    #[arg(long, conflicts_with_all = ["print", "user"])]
    keep: bool,
    /// Detach the program of --keep that a killed barewire has left, and exit; with --hook
    /// iptables, remove the rules that one has left
    #[arg(long, conflicts_with_all = ["print", "rules", "keep"])]
    undo: bool,
    /// With --detect and --sample-drops: sample one packet in N
    #[arg(long, value_name = "1/N", value_parser = parse_sample, default_value = "1/16")]
    sample: u32,
    /// With --detect: least=1000/s (lower rates are never a flood), most=RATE (higher rates always
    /// are), factor=4 and deviations=6 (above the normal rate), learn=10m, warm-up=60s, begin=3s,
    /// end=30s, expires=10m (of installed rules)
    #[arg(long, value_name = "KEY=VALUE,...", requires = "detect")]
    detect_settings: Option<String>,
    /// Where the XDP program is attached; auto is native, or generic where the driver does not
    /// support that, and on a veth with rules that answer SYNs
    #[arg(long, value_enum, default_value = "auto")]
    mode: Attach,
    /// Stop after TIME (90s, 5m; without a unit: seconds)
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
    /// Print the counters every second, and the account at the end, as one JSON object per line
    #[arg(long)]
    json: bool,
    /// Serve the counters as Prometheus metrics at http://ADDRESS/metrics, for example
    /// 127.0.0.1:14740
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Accept rules that drop packets of the SSH session this runs in
    #[arg(long)]
    force: bool,
    /// Drop privileges to this user once the program is attached
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    confine: ConfineArgs,
}

/// Where packets are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Hook {
    /// XDP program in the driver
    Xdp,
    /// tc program at the ingress
    Tc,
    /// Rules in the raw table of iptables and ip6tables
    Iptables,
}

/// The response to a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Detect {
    /// Print a rule
    Propose,
    /// Install a rule until the flood is over
    Install,
}

/// Subcommands.
#[derive(clap::Subcommand)]
enum Other {
    /// Check a rule file: print its rules in order, with warnings about those that have no effect
    /// (exit code 0), or the first error with its line (exit code 2)
    Check {
        /// The rule file
        file: PathBuf,
        /// Print the rules and the warnings, or the error, as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove the rules of --hook iptables when standard input is closed. The name is longer than
    /// that of any interface
    #[command(hide = true)]
    UndoWhenClosed {
        /// Interface
        interface: String,
    },
}

const HELP: &str = "\
An XDP program in the driver drops the packets, before they reach the host's network stack. The \
first matching rule decides; packets that match no rule pass. Rules on the command line are \
checked in this order: --allow, --pass, --count, --deny, --deny-names, --drop, --challenge, \
--limit, --steer, then those in the file with the same priority. Steered packets are checked by \
the rules in user space, in the order --user-pass, --user-count, --user-drop, --user-limit, then \
[[user]] in the file; those that no rule drops return to the host.

When barewire ends, even by kill -9, the kernel detaches the program (except with --keep). Rules \
of --hook iptables are removed at the end, after kill -9 by a helper process; if that was killed \
too, by the next start or --hook iptables --undo. Rules see received packets only; segments that \
the card has merged (hardware GRO) count as one packet.

A rule file:
  [[rule]]
  name = \"SYN flood\"
  match = \"tcp dst port 80 and tcp[tcpflags] & tcp-syn != 0\"
  verdict = \"limit\"    # pass, drop, count, limit, challenge or user
  rate = \"1000/s\"      # with limit
  burst = 100          # with limit; if absent: a tenth of the rate, at least 10
  priority = 10        # lower numbers first; 0 if absent
  expires = \"10m\"      # never if absent

Examples:
  barewire guard eth0 --dry-run --drop 'udp src port 53 and greater 600'
  barewire guard eth0 --pass 'src net 192.0.2.0/24' --limit '1000/s udp dst port 53'
  barewire guard eth0 --deny-names names.txt
  barewire guard eth0 --rules flood.toml --json
  barewire guard eth0 --detect install --allow 192.0.2.7
  barewire guard eth0 --hook iptables --drop 'udp src port 53'
  barewire guard check flood.toml";

/// Runs the guard, or checks a rule file.
pub fn run(args: &Args) -> Result<()> {
    match &args.other {
        Some(Other::Check { file, json }) => {
            return check::run(file, args.filter_compiler.into(), *json);
        }
        Some(Other::UndoWhenClosed { interface }) => return guard::undo_when_closed(interface),
        None => {}
    }
    if args.undo && args.hook != Hook::Iptables {
        let interface = args.interface.as_deref().unwrap_or_default();
        return undo(interface);
    }
    if !args.undo && !args.print {
        // Its program needs none of what a tap needs.
        interface::warn_down(args.interface.as_deref().unwrap_or_default());
    }
    if args.print || args.hook == Hook::Iptables {
        return iptables::run(args);
    }
    if args.hook == Hook::Tc && !matches!(args.mode, Attach::Auto) {
        let what = "use --mode with --hook tc";
        let why = "only XDP has modes";
        return Err(Error::new(ErrorKind::InvalidInput, what, why));
    }
    run_program(args)
}

/// Detaches the program that a killed process has left.
fn undo(interface: &str) -> Result<()> {
    let (was_there, foreign) = guard::kept::remove(interface)?;
    if let Some(error) = foreign {
        warning!("warning: {error}");
    }
    match was_there {
        true => say!("detached the program on {interface}"),
        false => say!("no program was left on {interface}"),
    }
    Ok(())
}

/// Runs the guard's program, in XDP or at tc ingress.
fn run_program(args: &Args) -> Result<()> {
    let stop = Stop::on_signals()?;
    let reload = match args.rules {
        Some(_) => Some(Reload::on_hangup()?),
        None => None,
    };
    let request = TotalsRequest::on_signal()?;
    let user = args.user.as_deref().map(User::find).transpose()?;
    let opened = guard::open(args.setup()?)?;
    let mut endpoint = args.metrics.map(Endpoint::bind).transpose()?;
    let mut files = args.files(&opened.totals()?);
    if args.keep {
        for folder in guard::kept::folders() {
            files.delete(&folder.join("file"));
        }
    }
    let needs = Needs::files(files, true);
    args.confine
        .drop_privileges(user.as_ref(), &to_keep(args), &needs)?;
    check_readable(args);
    let page = |totals: &Totals| {
        let interface = args.interface.as_deref().unwrap_or_default();
        metrics::page(interface, args.dry_run, totals)
    };
    if let Some(endpoint) = &mut endpoint {
        endpoint.show(page(&opened.totals()?));
        endpoint.start()?;
        say!("metrics at http://{}/metrics", endpoint.address());
    }
    let mut show = start_show(&opened, args.json)?;
    let outcome = opened.run(
        args.duration,
        &stop,
        reload.as_ref(),
        |notice| match notice {
            Notice::Progress(totals) => {
                if request.take() {
                    show.so_far(totals);
                }
                show.progress(totals);
                if let Some(endpoint) = &endpoint {
                    endpoint.show(page(totals));
                }
            }
            Notice::Reloaded(count) => {
                show.clear();
                say!("reloaded: {}", counted(count as u64, "rule"));
            }
            Notice::Kept(error) => {
                warn(&mut show, args, "the old rules stay in force", error);
            }
            Notice::Flood(step) => show.flood(step),
            Notice::DetectionEnded(error) => warn(&mut show, args, "detection ended", error),
            Notice::SamplesEnded(error) => warn(&mut show, args, "sampling ended", error),
            Notice::WorkerEnded(queue, error) => {
                let end = steer::ended(args, queue);
                warn(&mut show, args, &end, error);
            }
            Notice::Expired(name) => {
                show.clear();
                say!("rule \"{name}\" has expired");
            }
        },
    );
    let reported = show.end(&outcome);
    outcome.error.map_or(Ok(()), Err).and(reported)
}

/// Starts the output, with warnings about the start.
fn start_show(opened: &guard::Guard, json: bool) -> Result<show::Show> {
    if opened.had_leftover {
        warning!("warning: detached the program that an earlier run had left");
    }
    if let Some(error) = &opened.foreign_name {
        warning!("warning: {error}");
    }
    let about = show::About::of(opened);
    if let Some(why) = &opened.fallback {
        warning!("warning: {} mode, which is slower: {why}", about.mode);
    }
    if let Some(why) = &opened.unanswered {
        warning!("warning: {why}; without, use --mode generic");
    }
    if opened.loses_tags() {
        let interface = opened.interface();
        say!(
            "{interface} removes VLAN tags (rx-vlan-offload): tagged packets that are steered \
             return without; `ethtool -K {interface} rxvlan off` keeps the tags"
        );
    }
    show::Show::start(about, opened.totals()?, json)
}

fn warn(show: &mut show::Show, args: &Args, what: &str, error: Error) {
    show.clear();
    let error = args.confine.explain(error);
    warning!("warning: {what}: {error}");
    if let Some(hint) = error.hint() {
        say!("hint: {hint}");
    }
}

impl Args {
    fn setup(&self) -> Result<Setup> {
        Ok(Setup {
            interface: self.interface.clone().unwrap_or_default(),
            rules: inline_rules(self)?,
            file: self.rules.clone(),
            hook: match self.hook {
                Hook::Tc => GuardHook::Tc,
                Hook::Xdp | Hook::Iptables => GuardHook::Xdp,
            },
            mode: match self.mode {
                Attach::Auto => None,
                Attach::Native => Some(xdp::AttachMode::Native),
                Attach::Generic => Some(xdp::AttachMode::Generic),
            },
            dry_run: self.dry_run,
            compiler: self.filter_compiler.into(),
            may_cut_session: self.force,
            detect: self.detect_setup()?,
            samples: self.sample_drops.clone().map(|path| SampleSetup {
                path,
                one_in: self.sample,
            }),
            steer: self.steer.setup(),
            keep: self.keep,
        })
    }

    fn detect_setup(&self) -> Result<Option<DetectSetup>> {
        let action = match self.detect {
            None => return Ok(None),
            Some(Detect::Propose) => Action::Propose,
            Some(Detect::Install) => Action::Install,
        };
        let mut setup = DetectSetup::new(action);
        setup.sample = self.sample;
        if let Some(text) = &self.detect_settings {
            setup.set(text).map_err(|why| {
                let what = format!("use --detect-settings {text}");
                Error::new(ErrorKind::InvalidInput, what, why)
            })?;
        }
        Ok(Some(setup))
    }

    /// Files read whenever rules are read: the rule file and its lists.
    fn files(&self, totals: &guard::Totals) -> Files {
        let mut files = Files::default();
        let Some(file) = &self.rules else {
            return files;
        };
        files.read_beside(file);
        let user = totals.steer.iter().flat_map(|steer| &steer.rules);
        for rule in totals.rules.iter().chain(user) {
            let lists = [&rule.spec.sources, &rule.spec.destinations];
            let prefixes = lists.into_iter().flatten().filter_map(ListSpec::path);
            let names = rule.spec.names.as_ref().and_then(ListSpec::path);
            for path in prefixes.chain(names) {
                files.read_beside(path);
            }
        }
        files
    }
}

/// Capabilities to keep: new programs are loaded only when a rule file is reloaded or a rule of one
/// expires, and for rules against detected floods. Live frames, which are runs of a program, need
/// what reading a map needs.
fn to_keep(args: &Args) -> Vec<Capability> {
    match args.rules.is_some() || args.detect == Some(Detect::Install) {
        true => vec![Capability::Bpf, Capability::Perfmon, Capability::NetAdmin],
        false => privileges::to_read_maps().into_iter().collect(),
    }
}

/// Warns if the user of --user may not read the rule files and so cannot reload them.
fn check_readable(args: &Args) {
    if let (Some(user), Some(file)) = (&args.user, &args.rules)
        && let Err(error) = guard::read(file, args.filter_compiler.into())
    {
        warning!("warning: SIGHUP will not reload the rules as user {user}: {error}");
    }
}

/// From `1/16`.
fn parse_sample(text: &str) -> std::result::Result<u32, String> {
    let number = text.strip_prefix("1/").unwrap_or_default().parse();
    match number {
        Ok(number @ 1..=1_000_000) => Ok(number),
        _ => Err("expected 1/N, up to 1/1000000".into()),
    }
}

fn inline_rules(args: &Args) -> Result<Vec<RuleSpec>> {
    let mut rules = Vec::new();
    for text in &args.allow {
        rules.push(RuleSpec::allow(ListSpec::argument(text)?));
    }
    let plain = |expressions: &[String], verdict| -> Vec<RuleSpec> {
        let rule = |e: &String| RuleSpec::new(e, verdict);
        expressions.iter().map(rule).collect()
    };
    rules.extend(plain(&args.pass, Verdict::Pass));
    rules.extend(plain(&args.count, Verdict::Count));
    for text in &args.deny {
        let sources = ListSpec::argument(text)?;
        let name = format!("deny {}", sources.name());
        rules.push(RuleSpec::of_sources(&name, sources, Verdict::Drop));
    }
    for path in &args.deny_names {
        let name = format!("deny {}", path.display());
        rules.push(RuleSpec::of_names(
            &name,
            ListSpec::file(path)?,
            Verdict::Drop,
        ));
    }
    rules.extend(plain(&args.drop, Verdict::Drop));
    rules.extend(plain(&args.challenge, Verdict::Challenge));
    for text in &args.limit {
        rules.push(limit_rule("--limit", text)?);
    }
    rules.extend(plain(&args.steer.steer, Verdict::User));
    rules.extend(args.steer.rules()?);
    for rule in &mut rules {
        rule.compiler = args.filter_compiler.into();
    }
    Ok(rules)
}

/// Parses `1000/s EXPR`.
fn limit_rule(option: &str, text: &str) -> Result<RuleSpec> {
    let refused = |why: String| {
        let what = format!("use {option} '{text}'");
        let hint = format!("{option} '1000/s udp dst port 53'");
        Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint)
    };
    let (verdict, expression) = limit_verdict(text.trim()).map_err(refused)?;
    Ok(RuleSpec::new(expression, verdict))
}

/// Parses `RATE EXPR`, `RATE per LENGTHS EXPR` or `RATE and RATE per LENGTHS EXPR`.
fn limit_verdict(text: &str) -> std::result::Result<(Verdict, &str), String> {
    let next = |text: &mut &str| -> std::result::Result<String, String> {
        let len = text.find(char::is_whitespace);
        let len = len.ok_or("expected a rate and an expression")?;
        let found = text[..len].to_owned();
        *text = text[len..].trim_start();
        Ok(found)
    };
    let limit = |rate: &str| {
        let rate = guard::parse_rate(rate)?;
        Limit::new(rate, Limit::burst_of(rate)).ok_or("the rate is out of range".to_owned())
    };
    let mut rest = text;
    let mut rate = next(&mut rest)?;
    let mut all = None;
    if rest.starts_with("and ") {
        all = Some(limit(&rate)?);
        next(&mut rest)?;
        rate = next(&mut rest)?;
        if !rest.starts_with("per ") {
            return Err("expected \"per\" and a prefix length after the second rate".into());
        }
    }
    if !rest.starts_with("per ") {
        return Ok((Verdict::Limit(limit(&rate)?), rest));
    }
    next(&mut rest)?;
    let lens = next(&mut rest)?;
    let source = guard::parse_source_rate(&format!("{rate} per {lens}"))?;
    Ok((Verdict::LimitSources(source, all), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_up_to_the_expression() {
        let read = |text| {
            let (verdict, expression) = limit_verdict(text)?;
            Ok::<_, String>((verdict.to_string(), expression.to_owned()))
        };
        for (text, verdict) in [
            ("1000/s udp port 53", "limit 1000/s"),
            ("50/s per /24 udp port 53", "limit 50/s per /24,/64"),
            (
                "1k/s and 50/s  per /24,/48 udp port 53",
                "limit 1000/s and 50/s per /24,/48",
            ),
        ] {
            assert_eq!(read(text).unwrap(), (verdict.into(), "udp port 53".into()));
        }
        for (text, why) in [
            ("1000/s", "expected a rate"),
            ("50/s per /33 udp", "expected prefix lengths"),
            ("1k/s and 50/s udp port 53", "expected \"per\""),
            ("many udp", "not a rate"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
