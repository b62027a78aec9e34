//! The options of nmap(1) and masscan(8), and what each means here: every option of both manuals is
//! in one of these tables, or has the same name in `barewire scan`.

use super::meaning::Meaning::{self, Hint, Ignored, Is, Nothing, Takes};
use super::ping::PING;

/// Options of one dash by name, except `-o` and `-s`.
pub(super) const OPTIONS: &[(&str, Meaning)] = &[
    ("-iL", Takes("--target-file")),
    ("-iR", Takes("--random-targets")),
    ("-Pn", Nothing),
    ("-P0", Nothing),
    ("-PN", Nothing),
    ("-PD", Nothing),
    ("-n", Nothing),
    (
        "-6",
        Hint("give IPv6 addresses; a name stands for its IPv4 addresses if it has any"),
    ),
    (
        "-r",
        Hint("the order of probes is always random, by --seed"),
    ),
    ("-R", NAMES),
    ("-f", FRAGMENTS),
    ("-ff", FRAGMENTS),
    ("-D", SPOOF),
    ("-F", Is("--top-ports=100")),
    ("-PE", Is("--probe=echo")),
    ("-PI", Is("--probe=echo")),
    ("-PP", Is("--probe=timestamp")),
    ("-PR", Is("--probe=arp")),
    (
        "-PM",
        Hint("there is no address mask request; --probe echo or timestamp finds hosts"),
    ),
    ("-S", Takes("--source-ip")),
    (
        "-A",
        Hint("--banners reads what services send; there are no scripts and no OS detection"),
    ),
    ("-O", SYSTEMS),
    ("-b", Hint("there is no FTP bounce scan")),
    (
        "-oN",
        Hint("redirect standard output to a file; it is text"),
    ),
    ("-oM", Hint("-oG FILE is grepable")),
    (
        "-oB",
        Hint("-oD FILE writes all fields, one JSON object per line"),
    ),
    ("-oU", Hint("-oL FILE writes one line per result")),
    ("-V", VERSION),
];

/// Whether the rest of an argument is a value of the option before it.
type IsValue = fn(&str) -> bool;

/// Options whose value may follow without a blank.
pub(super) const PREFIXES: &[(&str, Meaning, IsValue)] = &[
    ("-g", Takes("--source-port"), is_number_or_absent),
    ("-T", RATE, is_any),
    ("-v", Nothing, is_level),
    ("-d", Nothing, is_level),
    ("-PS", DISCOVERY, is_any),
    ("-PA", DISCOVERY, is_any),
    ("-PU", DISCOVERY, is_any),
    ("-PY", DISCOVERY, is_any),
    ("-PO", DISCOVERY, is_any),
    ("-PT", DISCOVERY, is_any),
    ("-PB", DISCOVERY, is_any),
];

fn is_any(_: &str) -> bool {
    true
}

fn is_number_or_absent(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `-v`, `-vv`, `-v3`.
fn is_level(text: &str) -> bool {
    is_number_or_absent(text) || text.bytes().all(|byte| b"vd".contains(&byte))
}

/// Long options by name, with their value after `=` or in the next argument.
pub(super) const LONG: &[(&str, Meaning)] = &[
    // nmap: targets, discovery, ports.
    ("--resolve-all", Nothing),
    ("--unique", Nothing),
    ("--system-dns", Nothing),
    ("--dns-servers", NAMES),
    ("--disable-arp-ping", Nothing),
    ("--discovery-ignore-rst", Nothing),
    ("--traceroute", Hint("there is no traceroute")),
    ("--randomize-hosts", Nothing),
    (
        "--scanflags",
        Hint("--probe syn, ack, fin, xmas and null are the sets of flags"),
    ),
    (
        "--port-ratio",
        Hint("--top-ports N scans the most common ports"),
    ),
    ("--allports", Nothing),
    // nmap: services, operating systems, scripts.
    ("--version-intensity", INTENSITY),
    ("--version-light", INTENSITY),
    ("--version-all", INTENSITY),
    ("--version-trace", INTENSITY),
    ("--osscan-limit", SYSTEMS),
    ("--osscan-guess", SYSTEMS),
    ("--fuzzy", SYSTEMS),
    ("--max-os-tries", SYSTEMS),
    ("--script", SCRIPTS),
    ("--script-args", SCRIPTS),
    ("--script-args-file", SCRIPTS),
    ("--script-help", SCRIPTS),
    ("--script-trace", SCRIPTS),
    ("--script-updatedb", SCRIPTS),
    ("--script-timeout", SCRIPTS),
    // nmap: timing.
    ("--min-hostgroup", GROUPS),
    ("--max-hostgroup", GROUPS),
    ("--min-parallelism", GROUPS),
    ("--max-parallelism", GROUPS),
    ("--min-rtt-timeout", TIMES),
    ("--max-rtt-timeout", TIMES),
    ("--initial-rtt-timeout", TIMES),
    ("--host-timeout", TIMES),
    ("--scan-delay", TIMES),
    ("--max-scan-delay", TIMES),
    ("--max-retries", Takes("--retries")),
    ("--defeat-rst-ratelimit", Nothing),
    ("--defeat-icmp-ratelimit", Nothing),
    ("--nsock-engine", Ignored),
    // nmap: evasion.
    ("--mtu", FRAGMENTS),
    ("--data", PAYLOAD),
    ("--data-string", PAYLOAD),
    ("--data-length", PAYLOAD),
    ("--ip-options", Hint("probes carry no IP options")),
    ("--spoof-mac", SPOOF),
    (
        "--proxies",
        Hint("probes are raw packets, which no proxy relays"),
    ),
    ("--badsum", Hint("all checksums of probes are right")),
    (
        "--adler32",
        Hint("SCTP probes carry CRC32C, as RFC 9260 says"),
    ),
    // nmap: output, and the rest.
    ("--reason", Nothing),
    ("--stats-every", STATUS),
    (
        "--packet-trace",
        Hint("--pcap FILE writes all packets; --dry-run shows the first ones"),
    ),
    ("--iflist", Hint("`barewire devices` lists interfaces")),
    ("--noninteractive", Nothing),
    ("--no-stylesheet", Nothing),
    ("--stylesheet", STYLESHEET),
    ("--webxml", STYLESHEET),
    ("--datadir", DATA),
    (
        "--servicedb",
        Hint("names of services are those of /etc/services"),
    ),
    ("--versiondb", DATA),
    ("--send-eth", Nothing),
    ("--version", VERSION),
    (
        "--send-ip",
        Hint("probes are sent as packets with a link header, or as IP packets on a tunnel"),
    ),
    ("--privileged", Nothing),
    (
        "--unprivileged",
        Hint("probes are raw packets, which need CAP_NET_RAW"),
    ),
    ("--release-memory", Nothing),
    // masscan.
    ("--range", Takes("")),
    ("--ranges", Takes("")),
    ("--includefile", Takes("--target-file")),
    ("--echo", Is("--dry-run")),
    ("--echo-all", Is("--dry-run")),
    (
        "--offline",
        Hint("--dry-run shows what would be sent, and sends nothing"),
    ),
    ("--ping", Is(PING)),
    ("--ping-sweep", Is(PING)),
    ("--arp", Is("--probe=arp")),
    ("--arpscan", Is("--probe=arp")),
    ("--shards", Takes("--shard")),
    ("--open-only", Is("--open")),
    ("--gateway-mac", Takes("--router-mac")),
    ("--router-mac-ipv4", Takes("--router-mac")),
    ("--router-mac-ipv6", Takes("--router-mac")),
    ("--connection-timeout", Takes("--banner-timeout")),
    ("--tcp-timeout", Takes("--banner-timeout")),
    ("--nobanners", Nothing),
    ("--noreset", Nothing),
    ("--interactive", Nothing),
    ("--nointeractive", Nothing),
    ("--nmap", Nothing),
    ("--status", Nothing),
    ("--nostatus", Nothing),
    ("--capture", Ignored),
    ("--nocapture", Ignored),
    ("--no-capture", Ignored),
    ("--blackrock-rounds", Ignored),
    ("--min-packet", Ignored),
    ("--max-packet", Ignored),
    (
        "--show",
        Hint("all responses are shown, and --open leaves out all but open ports"),
    ),
    ("--noshow", Hint("--open leaves out all but open ports")),
    (
        "--readscan",
        Hint("results are text, JSON, Parquet or SQLite: there is no binary format"),
    ),
    ("--adapter-mac", SPOOF),
    ("--source-mac", SPOOF),
    (
        "--adapter-vlan",
        Hint("-e eth0.5 scans through the VLAN interface (ip link add type vlan)"),
    ),
    ("--pfring", Hint("-e afxdp:IFACE is a fast port")),
    ("--http-header", HTTP),
    ("--http-method", HTTP),
    ("--http-url", HTTP),
    ("--http-version", HTTP),
    ("--http-host", HTTP),
    ("--http-cookie", HTTP),
    ("--http-payload", HTTP),
    ("--hello-file", HELLO),
    ("--hello-string", HELLO),
    (
        "--hello-timeout",
        Hint("--banner-timeout closes a connection"),
    ),
    ("--tcp-mss", OPTIONS_OF_TCP),
    ("--tcp-wscale", OPTIONS_OF_TCP),
    ("--tcp-tsecho", OPTIONS_OF_TCP),
    ("--tcp-sackok", OPTIONS_OF_TCP),
    ("--heartbleed", VULNERABILITIES),
    ("--ticketbleed", VULNERABILITIES),
    ("--poodle", VULNERABILITIES),
    ("--vuln", VULNERABILITIES),
    (
        "--infinite",
        Hint("a shell loop with another --seed each time repeats a scan"),
    ),
    (
        "--resume-index",
        Hint("--state FILE saves and resumes a scan"),
    ),
    ("--resume-count", Hint("--shard 1/10 scans a part")),
    ("--rotate-size", Takes("--rotate")),
    (
        "--rotate-dir",
        Hint("--rotate numbers the files beside the first one"),
    ),
    (
        "--rotate-offset",
        Hint("--rotate TIME counts from the start of the scan"),
    ),
    ("--regress", SELF_TEST),
    ("--selftest", SELF_TEST),
    ("--benchmark", SELF_TEST),
];

const VERSION: Meaning = Hint("`barewire --version` prints the version");
const SPOOF: Meaning = Hint("probes are sent from addresses of this host only");
const FRAGMENTS: Meaning = Hint("probes are not fragmented");
const NAMES: Meaning = Hint("addresses are not resolved to names");
const SCRIPTS: Meaning = Hint("--banners reads what services send; there are no scripts");
const SYSTEMS: Meaning =
    Hint("there is no OS detection in scan; `barewire filter p0f` reads signatures of SYNs");
const INTENSITY: Meaning =
    Hint("--banners sends a request of the port's usual service; there are no intensities");
const DISCOVERY: Meaning = Hint(
    "there is no host discovery: each target is probed at all ports; --probe echo, timestamp and \
     arp find hosts",
);
const GROUPS: Meaning = Hint("there are no groups of hosts: --rate sets the rate of all probes");
const TIMES: Meaning =
    Hint("no host is waited for: --rate sets the rate, --wait the time after the last probe");
const RATE: Meaning = Hint("--rate 10kpps sets the rate; there are no timing templates");
const PAYLOAD: Meaning = Hint("--payload PORTS=FILE sends bytes of yours to UDP ports");
const STATUS: Meaning = Hint(
    "progress is shown each second on a terminal; --json has the totals, --metrics serves them",
);
const STYLESHEET: Meaning = Hint("-oX FILE has no stylesheet; xsltproc applies one");
const DATA: Meaning = Hint("requests and ports are built in; --payload-file adds payloads");
const HTTP: Meaning = Hint("--user-agent and --contact are sent in HTTP requests");
const HELLO: Meaning = Hint("--hello PORTS=FILE sends bytes of yours after connecting");
const OPTIONS_OF_TCP: Meaning = Hint("--tcp-options linux, windows or bsd selects a set");
const VULNERABILITIES: Meaning = Hint("services are asked for their banners, not attacked");
const SELF_TEST: Meaning = Hint("`barewire doctor` checks this host");

/// Scan types by letter: `U` in `-sU`.
pub(super) const SCANS: &[(char, Meaning)] = &[
    ('S', Is("--probe=syn")),
    ('U', Is("--probe=udp")),
    ('n', Is("--probe=echo")),
    ('P', Is("--probe=echo")),
    ('A', Is("--probe=ack")),
    ('F', Is("--probe=fin")),
    ('X', Is("--probe=xmas")),
    ('N', Is("--probe=null")),
    ('Y', Is("--probe=sctp-init")),
    ('O', Is("--probe=protocol")),
    ('V', Is("--banners")),
    (
        'T',
        Hint("the default, --probe syn, finds the same ports; --banners connects to them"),
    ),
    ('C', SCRIPTS),
    ('L', Hint("--dry-run shows what would be sent")),
    (
        'W',
        Hint("there is no window scan; --probe ack finds filtered ports"),
    ),
    (
        'M',
        Hint("there is no Maimon scan; --probe fin is close to it"),
    ),
    (
        'Z',
        Hint("there is no COOKIE ECHO scan; --probe sctp-init finds SCTP ports"),
    ),
    ('I', SPOOF),
    ('R', Is("--banners")),
];
