//! `cargo xtask setup`: installs the programs that demo, tests and benchmarks run, from Debian.
//!
//! Checks first and installs only what is missing, so a machine that has everything needs neither
//! network nor root. Some programs are unpacked below `target` instead ([`unpacked`]).

mod unpacked;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::run::{is_root, no_more, take_flag, visibly, which};

/// What a program is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// `cargo xtask demo`.
    Demo,
    /// `cargo xtask test`.
    Test,
    /// `cargo xtask bench`.
    Bench,
    /// `cargo xtask fixture`.
    Fixture,
}

/// Names of the sets on the command line.
const SETS: &[(&str, Set)] = &[
    ("demo", Set::Demo),
    ("test", Set::Test),
    ("bench", Set::Bench),
    ("fixture", Set::Fixture),
];

/// How to check that something is installed.
enum Probe {
    /// A program in `PATH` or a system directory.
    Program(&'static str),
    /// A shared library, by its soname.
    Library(&'static str),
    /// A module of the system's Python.
    Module(&'static str),
}

use Probe::{Library, Module, Program};

/// Requirements, with the Debian package of each, and the sets that need it.
const NEEDS: &[(Probe, &str, &[Set])] = &[
    (
        Program("ip"),
        "iproute2",
        &[Set::Demo, Set::Test, Set::Bench, Set::Fixture],
    ),
    (Program("tc"), "iproute2", &[Set::Test]),
    (Program("prlimit"), "util-linux", &[Set::Test]),
    (Program("unshare"), "util-linux", &[Set::Test]),
    (Program("cc"), "gcc", &[Set::Test]),
    (Program("mkfifo"), "coreutils", &[Set::Test]),
    (
        Program("ethtool"),
        "ethtool",
        &[Set::Demo, Set::Test, Set::Bench, Set::Fixture],
    ),
    (
        Library("libpcap.so.0.8"),
        "libpcap0.8",
        &[Set::Demo, Set::Test, Set::Bench],
    ),
    (Program("pcap-config"), "libpcap-dev", &[Set::Bench]),
    (Program("ping"), "iputils-ping", &[Set::Test, Set::Fixture]),
    (
        Program("tcpdump"),
        "tcpdump",
        &[Set::Test, Set::Bench, Set::Fixture],
    ),
    (Program("p0f"), "p0f", &[Set::Test]),
    (Program("tshark"), "tshark", &[Set::Test]),
    (Program("capinfos"), "wireshark-common", &[Set::Test]),
    (Program("mergecap"), "wireshark-common", &[Set::Test]),
    (Program("mmdbresolve"), "wireshark-common", &[Set::Test]),
    (Program("zstd"), "zstd", &[Set::Test]),
    (Program("gzip"), "gzip", &[Set::Test]),
    (Program("bash"), "bash", &[Set::Test]),
    (Program("hping3"), "hping3", &[Set::Test]),
    (Program("ndiff"), "ndiff", &[Set::Test]),
    (Program("nmap"), "nmap", &[Set::Test]),
    (Program("masscan"), "masscan", &[Set::Test, Set::Bench]),
    (Program("zmap"), "zmap", &[Set::Test, Set::Bench]),
    (Program("iptables"), "iptables", &[Set::Test, Set::Bench]),
    (Program("nft"), "nftables", &[Set::Test, Set::Bench]),
    (Program("xdp-filter"), "xdp-tools", &[Set::Bench]),
    (Program("script"), "bsdutils", &[Set::Test]),
    (Program("tmux"), "tmux", &[Set::Test]),
    (Program("man"), "man-db", &[Set::Test]),
    (Program("col"), "bsdextrautils", &[Set::Test]),
    (Program("zsh"), "zsh", &[Set::Test]),
    (Program("fish"), "fish", &[Set::Test]),
    (Program("systemd-analyze"), "systemd", &[Set::Test]),
    (Program("setpriv"), "util-linux", &[Set::Test]),
    (Program("setsid"), "util-linux", &[Set::Test]),
    (Program("dpkg"), "dpkg", &[Set::Test]),
    (Program("readelf"), "binutils", &[Set::Test]),
    (Program("nm"), "binutils", &[Set::Test]),
    (Program("ngrep"), "ngrep", &[Set::Test]),
    (Program("tcpslice"), "tcpslice", &[Set::Test]),
    (Program("bittwist"), "bittwist", &[Set::Test]),
    (Program("tcpprep"), "tcpreplay", &[Set::Test]),
    (Program("tcprewrite"), "tcpreplay", &[Set::Test]),
    (Program("dumpcap"), "wireshark-common", &[Set::Test]),
    (Program("nping"), "nmap", &[Set::Test]),
    (Program("scapy"), "python3-scapy", &[Set::Test]),
    (Program("ra"), "argus-client", &[Set::Test]),
    (Program("getcap"), "libcap2-bin", &[Set::Test]),
    (Program("lintian"), "lintian", &[Set::Test]),
    (Program("skopeo"), "skopeo", &[Set::Test]),
    (Program("umoci"), "umoci", &[Set::Test]),
    (Program("capsh"), "libcap2-bin", &[Set::Test]),
    (Program("nfcapd"), "nfdump", &[Set::Test]),
    (Program("promtool"), "prometheus", &[Set::Test]),
    (Program("nfacctd"), "pmacct", &[Set::Test, Set::Bench]),
    (Program("ipfixDump"), "libfixbuf-tools", &[Set::Test]),
    (
        Program("chromium-headless-shell"),
        "chromium-headless-shell",
        &[Set::Test],
    ),
    (Program("python3"), "python3", &[Set::Test, Set::Fixture]),
    (Module("ensurepip"), "python3-venv", &[Set::Test]),
    (Library("librdkafka.so.1"), "librdkafka1", &[Set::Test]),
    (Program("kcat"), "kcat", &[Set::Test]),
    (Library("libndpi.so.4.2"), "libndpi4.2", &[Set::Test]),
    (Program("ndpiReader"), "libndpi-bin", &[Set::Test]),
    (Program("java"), "default-jre-headless", &[Set::Test]),
    (Program("mvn"), "maven", &[Set::Test]),
    (Program("curl"), "curl", &[Set::Test, Set::Fixture]),
    (Program("ndpiReader"), "libndpi-bin", &[Set::Bench]),
    (Program("trafgen"), "netsniff-ng", &[Set::Bench]),
    (
        Program("tcpreplay"),
        "tcpreplay",
        &[Set::Test, Set::Bench, Set::Fixture],
    ),
    (Program("valgrind"), "valgrind", &[Set::Test, Set::Bench]),
    (Program("softflowd"), "softflowd", &[Set::Test, Set::Bench]),
    (Program("nfpcapd"), "nfdump", &[Set::Bench]),
    (Program("argus"), "argus-server", &[Set::Test, Set::Bench]),
    (Program("taskset"), "util-linux", &[Set::Bench]),
    (Program("dig"), "bind9-dnsutils", &[Set::Fixture]),
    (
        Program("dnsmasq"),
        "dnsmasq-base",
        &[Set::Fixture, Set::Test],
    ),
    (Program("openssl"), "openssl", &[Set::Test, Set::Fixture]),
    (Program("sqlite3"), "sqlite3", &[Set::Test]),
    (Program("snmpd"), "snmpd", &[Set::Test]),
    (Program("pppd"), "ppp", &[Set::Test]),
    (Program("memcached"), "memcached", &[Set::Test]),
    (Program("telnetd"), "inetutils-telnetd", &[Set::Test]),
    (Program("Xvnc"), "tigervnc-standalone-server", &[Set::Test]),
    (
        Program("impacket-netview"),
        "python3-impacket",
        &[Set::Test],
    ),
    (Program("editcap"), "wireshark-common", &[Set::Fixture]),
    (Program("tcprewrite"), "tcpreplay", &[Set::Fixture]),
    (Program("traceroute"), "traceroute", &[Set::Fixture]),
];

/// Python modules that tests use, in their own environment below `target`: Debian does not package
/// them.
const MODULES: &[&str] = &["duckdb", "pyarrow", "fastavro", "mmdb_writer"];

/// The broker for Kafka tests, by its Maven coordinates.
const BROKER: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>barewire</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>3.9.1</version>
  </dependency></dependencies>
</project>
"#;

/// A collector for export tests, from the Go module proxy.
const GOFLOW2: &str = "github.com/netsampler/goflow2/v2/cmd/goflow2@v2.2.6";

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let check = take_flag(&mut args, "--check");
    let mut sets = Vec::new();
    args.retain(|arg| match SETS.iter().find(|(name, _)| name == arg) {
        Some((_, set)) => {
            sets.push(*set);
            false
        }
        None => true,
    });
    no_more(&args)?;
    if sets.is_empty() {
        sets = SETS.iter().map(|(_, set)| *set).collect();
    }
    let mut missing = missing(&sets);
    if check {
        missing.extend(
            missing_modules(&sets)
                .into_iter()
                .map(|name| (name, "of Python")),
        );
        if is_broker_missing(&sets) {
            missing.push(("Apache Kafka", "of Maven"));
        }
        if is_goflow2_missing(&sets) {
            missing.push(("goflow2", "of Go"));
        }
        missing.extend(unpacked::missing(&sets));
        for (what, package) in &missing {
            println!("missing: {what} (package {package})");
        }
        if missing.is_empty() {
            println!("nothing is missing");
        }
        return Ok(if missing.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    install(&missing)?;
    install_modules(&sets);
    install_broker(&sets);
    install_goflow2(&sets);
    unpacked::unpack(&sets);
    Ok(ExitCode::SUCCESS)
}

/// Installs what the sets need and is missing.
///
/// # Errors
/// If something is missing and cannot be installed; the error has the command to run.
pub fn ensure(sets: &[Set]) -> Result<()> {
    install(&missing(sets))?;
    install_modules(sets);
    install_broker(sets);
    install_goflow2(sets);
    unpacked::unpack(sets);
    Ok(())
}

/// As [`ensure`], for sets with Debian packages only; each program is run by `run`, which may
/// handle its output differently.
///
/// # Errors
/// As [`ensure`].
pub fn ensure_with(sets: &[Set], run: impl FnMut(&mut Command) -> Result<()>) -> Result<()> {
    install_with(&missing(sets), run)
}

fn broker() -> PathBuf {
    crate::run::root().join("target/kafka")
}

fn is_broker_missing(sets: &[Set]) -> bool {
    sets.contains(&Set::Test) && !broker().join("libs/kafka_2.13-3.9.1.jar").is_file()
}

/// Fetches the broker's libraries with Maven; without them its tests are skipped.
fn install_broker(sets: &[Set]) {
    if !is_broker_missing(sets) {
        return;
    }
    eprintln!("missing: Apache Kafka");
    let written = std::fs::create_dir_all(broker())
        .and_then(|()| std::fs::write(broker().join("pom.xml"), BROKER));
    let mut command = Command::new("mvn");
    command.args([
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DoutputDirectory=libs",
    ]);
    let fetched = written
        .context("the project of the broker")
        .and_then(|()| visibly(command.current_dir(broker())));
    if let Err(error) = fetched {
        eprintln!("warning: {error:#}\nwarning: tests that need it will be skipped");
    }
}

fn goflow2() -> PathBuf {
    crate::run::root().join("target/goflow2")
}

fn is_goflow2_missing(sets: &[Set]) -> bool {
    sets.contains(&Set::Test) && !goflow2().join("goflow2").is_file()
}

/// Builds goflow2 where Go is installed; without it its tests are skipped.
fn install_goflow2(sets: &[Set]) {
    if !is_goflow2_missing(sets) {
        return;
    }
    eprintln!("missing: goflow2");
    let mut command = Command::new("go");
    command.args(["install", GOFLOW2]).env("GOBIN", goflow2());
    if let Err(error) = visibly(&mut command) {
        eprintln!("warning: {error:#}\nwarning: tests that need it will be skipped");
    }
}

/// The Python interpreter of tests.
fn python() -> PathBuf {
    crate::run::root().join("target/python/bin/python3")
}

fn missing_modules(sets: &[Set]) -> Vec<&'static str> {
    let wanted = MODULES
        .iter()
        .copied()
        .filter(|_| sets.contains(&Set::Test));
    wanted
        .filter(|name| !has_module(Command::new(python()), name))
        .collect()
}

fn has_module(mut python: Command, name: &str) -> bool {
    let import = format!("import {name}");
    let output = python.args(["-c", &import]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Installs missing modules. Without them tests are skipped by name: a machine without access to a
/// package index can run all others.
fn install_modules(sets: &[Set]) {
    let missing = missing_modules(sets);
    if missing.is_empty() {
        return;
    }
    eprintln!("missing: Python's {}", missing.join(", "));
    let folder = crate::run::root().join("target/python");
    let made = visibly(Command::new("python3").args(["-m", "venv"]).arg(folder));
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let installed = made.and_then(|()| visibly(Command::new(python()).args(pip).args(&missing)));
    if let Err(error) = installed {
        eprintln!("warning: {error:#}\nwarning: tests that need them will be skipped");
    }
}

/// What is missing, with its package.
fn missing(sets: &[Set]) -> Vec<(&'static str, &'static str)> {
    let wanted = NEEDS
        .iter()
        .filter(|(_, _, of)| of.iter().any(|set| sets.contains(set)));
    wanted
        .filter_map(|(probe, package, _)| probe.absent().map(|what| (what, *package)))
        .collect()
}

impl Probe {
    /// Its name, if it is not installed.
    fn absent(&self) -> Option<&'static str> {
        match *self {
            Program(name) => which(name).is_none().then_some(name),
            Library(soname) => {
                // Known to the loader's cache, wherever the architecture's directory is.
                let cache = Command::new("/sbin/ldconfig").arg("-p").output();
                let known = cache.is_ok_and(|output| {
                    String::from_utf8_lossy(&output.stdout)
                        .lines()
                        .any(|line| line.split_whitespace().next() == Some(soname))
                });
                (!known).then_some(soname)
            }
            Module(name) => (!has_module(Command::new("python3"), name)).then_some(name),
        }
    }
}

fn install(missing: &[(&str, &str)]) -> Result<()> {
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|(what, _)| *what).collect();
        eprintln!("missing: {}", names.join(", "));
    }
    install_with(missing, visibly)
}

fn install_with(
    missing: &[(&str, &str)],
    mut run: impl FnMut(&mut Command) -> Result<()>,
) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(what, _)| *what).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    let by_hand = format!(
        "apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    if which("apt-get").is_none() {
        bail!(
            "this is not a Debian, so nothing was installed\n\
             hint: install the packages that your system has for: {}",
            names.join(", ")
        );
    }
    if !is_root() {
        bail!("installing needs root\nhint: sudo {by_hand}");
    }
    // The lists of a fresh machine or container are empty or old; updating is quick compared with
    // the failure that an old list causes.
    run(&mut apt(&["update", "-qq"]))
        .and_then(|()| {
            let options = ["install", "-y", "-qq", "--no-install-recommends"];
            run(&mut apt(&[&options[..], &packages].concat()))
        })
        .with_context(|| format!("could not install; by hand: {by_hand}"))
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // Questions (wireshark asks one) get their default answer.
    command.env("DEBIAN_FRONTEND", "noninteractive").args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requirements_are_found() {
        assert_eq!(Program("sh").absent(), None);
        assert_eq!(Program("no-such-program").absent(), Some("no-such-program"));
        assert_eq!(Library("libc.so.6").absent(), None);
        assert_eq!(Library("libnot.so.1").absent(), Some("libnot.so.1"));
    }

    #[test]
    fn every_set_has_a_name_and_a_need() {
        for (name, set) in SETS {
            assert!(NEEDS.iter().any(|(_, _, of)| of.contains(set)), "{name}");
        }
    }

    /// Every `skip::program("NAME", "PACKAGE")` of the lab has its row, so that `cargo xtask test`
    /// installs what tests would otherwise skip for.
    #[test]
    fn every_program_that_tests_require_has_a_row() {
        let list = ["ls-files", "-z", "dev/lab"];
        let root = crate::run::root();
        let files = crate::run::quietly(Command::new("git").current_dir(&root).args(list));
        let Ok(files) = files else {
            skip::skip!("needs git");
        };
        let (mut found, mut absent) = (0, Vec::new());
        for file in files
            .split_terminator('\0')
            .filter(|file| file.ends_with(".rs"))
        {
            let Ok(text) = std::fs::read_to_string(root.join(file)) else {
                continue;
            };
            for call in text.split("skip::program(").skip(1) {
                let literals: Vec<_> = call.split('"').take(4).collect();
                let [_, name, _, package] = literals[..] else {
                    continue;
                };
                let needed = NEEDS.iter().any(|(probe, of, sets)| {
                    let same = matches!(probe, Program(program) if *program == name);
                    same && *of == package && sets.contains(&Set::Test)
                });
                found += 1;
                if !needed {
                    absent.push(format!("{file}: {name} ({package})"));
                }
            }
        }
        assert!(absent.is_empty(), "not in NEEDS for tests: {absent:#?}");
        assert!(
            found > 0,
            "no test requires a program any more: has the macro another name?"
        );
    }

    #[test]
    fn without_missing_requirements_root_is_not_needed() {
        install(&[]).unwrap();
    }
}
