//! No output of a command destroys one of its inputs: every output is tried with every input, by
//! its own name, through a symbolic link and through a hard link.
//!
//! The tables are checked against the help of each command: an option that may name a file and is
//! in none of them fails the test.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::export::{Folder, flood};
use lab::oracle::write_pcap;
use lab::process::{Process, barewire};
use lab::{Finished, Pair, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// The contents of an input.
#[derive(Clone, Copy)]
enum Contents {
    Capture,
    Text(&'static str),
    /// The name of the capture that is not the input under test.
    NamesOther,
}

use Contents::{Capture, NamesOther, Text};

/// The words of a command line: `IN` is the input under test, `OTHER` another capture, `LIST` a
/// file that contains the name of the input, `IFACE` an interface.
type Words = &'static [&'static str];

struct Row {
    command: Words,
    /// Argument, contents, words.
    inputs: &'static [(&'static str, Contents, Words)],
    /// Argument, words; `OUT` is the output.
    outputs: &'static [(&'static str, Words)],
}

const TABLE: &[Row] = &[
    Row {
        command: &["capture"],
        inputs: &[
            ("-r", Capture, &["-r", "IN"]),
            ("PORT FILTER", Capture, &["IN"]),
            ("PORT FILTER", Capture, &["OTHER", "IN"]),
            ("-V", NamesOther, &["-V", "IN"]),
            ("-V", Capture, &["-V", "LIST"]),
            ("-F", Text("udp"), &["-r", "OTHER", "-F", "IN"]),
            ("standard input", Capture, &["-"]),
        ],
        outputs: &[
            ("-w", &["-w", "OUT"]),
            ("-w", &["--print", "--format", "pcap", "-w", "OUT"]),
            ("-w", &["-C", "1k", "-W", "1", "-w", "OUT"]),
        ],
    },
    Row {
        command: &["flows"],
        inputs: &[
            ("PORT", Capture, &["IN"]),
            ("PORT", Capture, &["OTHER", "IN"]),
            (
                "--config",
                Text("plain = true\n"),
                &["OTHER", "--config", "IN"],
            ),
            ("--asn", Text("192.0.2.0/24,9\n"), &["OTHER", "--asn", "IN"]),
            (
                "--geo",
                Text("192.0.2.0/25,Berlin\n"),
                &["OTHER", "--geo", "IN"],
            ),
            (
                "--mac-vendors",
                Text("00:00:00\tXerox\tXerox Corporation\n"),
                &["OTHER", "--key", "mac", "--mac-vendors", "IN"],
            ),
            ("standard input", Capture, &["-"]),
        ],
        outputs: &[
            ("--export", &["--export", "csv:OUT"]),
            ("--export", &["--export", "json:file://OUT"]),
            ("--export", &["--export", "ipfix:OUT?domain=7"]),
            ("--export", &["--export", "eve:OUT"]),
            ("--report", &["--report", "OUT"]),
        ],
    },
    // From one port only.
    Row {
        command: &["flows"],
        inputs: &[("PORT", Capture, &["IN"])],
        outputs: &[("--egress", &["--egress", "OUT"])],
    },
    Row {
        command: &["guard", "IFACE", "--duration", "1"],
        inputs: &[
            (
                "--rules",
                Text("[[rule]]\nmatch = \"udp\"\nverdict = \"drop\"\n"),
                &["--rules", "IN"],
            ),
            ("--allow", Text("192.0.2.0/24\n"), &["--allow", "IN"]),
            ("--deny", Text("192.0.2.0/24\n"), &["--deny", "IN"]),
            ("--deny-names", Text("a.test\n"), &["--deny-names", "IN"]),
            // A list that the rules name.
            ("--rules", Text("192.0.2.0/24\n"), &["--rules", "RULES"]),
        ],
        outputs: &[("--sample-drops", &["--sample-drops", "OUT"])],
    },
    Row {
        command: &["scan", "-e", "IFACE", "--rate", "1kpps", "--wait", "0"],
        inputs: &[
            (
                "--target-file",
                Text("10.77.0.2\n"),
                &["-p", "9", "--target-file", "IN"],
            ),
            (
                "--exclude-file",
                Text("10.77.0.9\n"),
                &["10.77.0.2", "-p", "9", "--exclude-file", "IN"],
            ),
            (
                "--opt-out",
                Text("10.77.0.9\n"),
                &["10.77.0.2", "-p", "9", "--opt-out", "IN"],
            ),
            (
                "--conf",
                Text("ports = 9\n"),
                &["10.77.0.2", "--conf", "IN"],
            ),
            (
                "--payload",
                Text("x"),
                &["10.77.0.2", "-p", "U:9", "--payload", "9=IN"],
            ),
            (
                "--payload-file",
                Text("udp 9 \"x\"\n"),
                &["10.77.0.2", "-p", "U:9", "--payload-file", "IN"],
            ),
            (
                "--mac-vendors",
                Text("00:00:00\tXerox\tXerox Corporation\n"),
                &["10.77.0.2", "--probe", "arp", "--mac-vendors", "IN"],
            ),
            (
                "--hello",
                Text("x"),
                &["10.77.0.2", "-p", "9", "--banners", "--hello", "9=IN"],
            ),
            (
                "--rate-file",
                Text("1kpps\n"),
                &["10.77.0.2", "-p", "9", "--rate-file", "IN"],
            ),
        ],
        outputs: &[
            ("--output", &["--output", "xml:OUT"]),
            ("--output", &["-oX", "OUT"]),
            ("--output", &["-oG", "OUT"]),
            ("--output", &["--output", "list:OUT", "--append-output"]),
            ("--output", &["--output", "json:OUT"]),
            ("--output", &["--output", "ndjson:OUT"]),
            ("--output", &["--output", "parquet:OUT"]),
            ("--output", &["--output", "sqlite:OUT"]),
            ("--pcap", &["--pcap", "OUT"]),
        ],
    },
    Row {
        command: &["filter", "compile", "--to", "xdp"],
        inputs: &[("--dns-file", Text("a.test\n"), &["--dns-file", "IN"])],
        outputs: &[("--object", &["--object", "OUT"])],
    },
    Row {
        command: &["forward"],
        inputs: &[("PORT-A", Capture, &["IN"])],
        outputs: &[("PORT-B", &["OUT"])],
    },
    Row {
        command: &["send"],
        inputs: &[("FILE PORT", Capture, &["IN"])],
        outputs: &[("FILE PORT", &["OUT"])],
    },
    Row {
        command: &["cluster", "run", "--name", "keep", "--duration", "1"],
        inputs: &[("INPUT", Capture, &["IN"])],
        outputs: &[
            ("--app", &["--app", "a=file:OUT"]),
            ("--return", &["--return", "OUT"]),
        ],
    },
];

/// Arguments that may name a file, of commands without outputs, or that are neither input nor
/// output; and outputs of commands without inputs.
const OTHERS: &[(&str, &[&str])] = &[
    ("capture", &["-i", "--fields", "--cpus", "-z"]),
    ("send", &[]),
    ("forward", &["--cpus"]),
    ("cluster show", &["--svg"]),
    ("guard check", &["FILE"]),
    (
        "scan",
        &["-p", "--exclude-ports", "--source-port", "-e", "--state"],
    ),
    ("scan merge", &["FILE"]),
    ("filter explain", &["--dns-file"]),
    ("filter test", &["FILE", "--dns-file"]),
    ("filter p0f", &["FILE|PORT", "--database", "--cpus"]),
    ("filter derive", &["FLOOD", "--except"]),
    ("flows", &["PORT FILTER", "--cpus"]),
    ("flows query", &["PLACE", "--engine"]),
    ("man", &["FOLDER"]),
];

/// Placeholders of values that are never files.
const NO_FILES: &[&str] = &[
    "[APP=]LIMITS",
    "[APP=]MS",
    "[APP=]tunnels|tags",
    "1/N",
    "ACTION",
    "ADDRESS",
    "ADDRESS[/PREFIX]",
    "ATTACH",
    "BALANCE",
    "BIND",
    "BYTES",
    "CHAR",
    "CMD",
    "COMMAND",
    "COMPILER",
    "COUNT",
    "CPU",
    "DIALECT",
    "EXPR",
    "FIELDS",
    "FILTER",
    "FLAGS",
    "FORMAT",
    "FROM=TO",
    "HOOK",
    "HOW",
    "HOW MUCH",
    "I/N",
    "IDLE",
    "IFACE",
    "INTERFACE",
    "KEY=VALUE,...",
    "KIB",
    "LEVEL",
    "LINK",
    "MAC",
    "MODE",
    "MS",
    "N",
    "NAME",
    "NAMES",
    "OCTETS",
    "OWNER",
    "PACKETS",
    "PARTS",
    "PCI-ADDRESS",
    "PRECISION",
    "PROBES",
    "RANGE",
    "RATE",
    "RATE EXPR",
    "SECONDS",
    "SEED",
    "SHELL",
    "SIG",
    "SIZE",
    "SIZE|TIME",
    "SIZES",
    "SQL",
    "TAGS",
    "TARGET",
    "TARGETS",
    "TCP_OPTIONS",
    "TEXT",
    "TIME",
    "TIMESTAMP",
    "TO",
    "TYPE",
    "TYPES",
    "USER",
    "VERDICT",
    "WAY",
    "WHAT",
    "WHO",
    "X",
    "drop|block[=MS]|spill",
    "wait|rehash",
];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A folder with an input, and the names under which it is tried as an output.
struct Scene {
    folder: Folder,
    input: PathBuf,
    before: Vec<u8>,
}

impl Scene {
    fn new(contents: Contents) -> Scene {
        let folder = Folder::new("keep");
        let other = folder.0.join("other.pcap");
        std::fs::write(&other, flood(20)).unwrap();
        let input = folder.0.join("input.pcap");
        let before = match contents {
            Capture => flood(10),
            Text(text) => text.into(),
            NamesOther => text(&other).into(),
        };
        std::fs::write(&input, &before).unwrap();
        std::fs::write(folder.0.join("list"), text(&input)).unwrap();
        let rules = format!("[[rule]]\nsources = {input:?}\nverdict = \"drop\"\n");
        std::fs::write(folder.0.join("rules.toml"), rules).unwrap();
        symlink("input.pcap", folder.0.join("symbolic")).unwrap();
        std::fs::hard_link(&input, folder.0.join("hard")).unwrap();
        Scene {
            folder,
            input,
            before,
        }
    }

    /// A word of a command line with its names filled in.
    fn word(&self, word: &str, output: &str, interface: &str) -> String {
        let at = |name: &str| self.folder.file(name);
        word.replace("OUT", &at(output))
            .replace("OTHER", &at("other.pcap"))
            .replace("LIST", &at("list"))
            .replace("RULES", &at("rules.toml"))
            .replace("IFACE", interface)
            .replace("IN", text(&self.input))
    }

    fn is_unchanged(&self) -> bool {
        std::fs::read(&self.input).unwrap() == self.before
    }
}

fn run(pair: &Pair, args: &[String], stdin: Option<&Path>) -> Finished {
    let mut command = pair.left.ns.command(barewire().unwrap());
    let stdin = stdin.map(|path| File::open(path).unwrap());
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    let process = Process::spawn_with_stdin(command.args(args));
    process.unwrap().wait(LIMIT).unwrap()
}

#[test]
fn no_output_overwrites_an_input() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let names = ["input.pcap", "symbolic", "hard"];
    let mut count = 0;
    for row in TABLE {
        for (input, contents, read) in row.inputs {
            for (output, write) in row.outputs {
                let scene = Scene::new(*contents);
                let name = names[count % names.len()];
                count += 1;
                let words = row.command.iter().chain(*read).chain(*write);
                let word = |word: &&str| scene.word(word, name, &pair.left.ifname);
                let args: Vec<String> = words.map(word).collect();
                let stdin = (*input == "standard input").then_some(scene.input.as_path());
                let done = run(&pair, &args, stdin);
                let what = format!("{input} and {output} as {name}: {args:?}:\n{}", done.stderr);
                assert!(scene.is_unchanged(), "{what}");
                assert_ne!(done.code(), Some(0), "{what}");
                let mut reasons = ["would be overwritten", "either read or written"].iter();
                assert!(reasons.any(|why| done.stderr.contains(why)), "{what}");
                assert!(done.stderr.contains("hint: "), "{what}");
            }
        }
    }
    assert!(count > 120, "{count} pairs");
}

/// The file of a set that has the name of the input, and a later one.
#[test]
fn a_rotated_name_is_no_way_to_overwrite_an_input() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    for (name, base, more) in [
        ("x1.pcap", "x.pcap", &["-C", "1k"][..]),
        ("x0.pcap", "x.pcap", &["-C", "1k", "-W", "2"]),
        ("x1.pcap", "x.pcap", &["-C", "1k", "-G", "1", "-W", "2"]),
        ("x1.pcap", "x.pcap", &["-G", "1"]),
        ("x-1700000001.pcap", "x-%s.pcap", &["-G", "1"]),
    ] {
        let folder = Folder::new("rotated");
        let (input, output) = (folder.file(name), folder.file(base));
        let before = flood(500);
        std::fs::write(&input, &before).unwrap();
        let args = [&["capture", "-r", &input, "-w", &output], more].concat();
        let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
        let done = run(&pair, &args, None);
        assert!(std::fs::read(&input).unwrap() == before, "{args:?}");
        let refused = done.stderr.contains("it is also an input file");
        assert!(
            refused && done.code() == Some(1),
            "{args:?}: {}",
            done.stderr
        );
    }
    // Exports and directories of files add a number instead, or are refused.
    for export in ["csv:IN?size=1k", "csv:IN.csv?rotate=1h", "parquet:IN"] {
        let folder = Folder::new("rotated");
        let input = folder.file("input.pcap");
        std::fs::write(&input, flood(50)).unwrap();
        let args = ["flows", &input, "--export", &export.replace("IN", &input)];
        run(&pair, &args.map(str::to_owned), None);
        assert!(std::fs::read(&input).unwrap() == flood(50), "{export}");
    }
}

#[test]
fn standard_output_is_no_input() {
    require!(skip::lab());
    let folder = Folder::new("appended");
    let input = folder.file("input.pcap");
    for args in [
        "capture -r IN -w -",
        "flows IN --json",
        "capture - -w - < IN",
    ] {
        std::fs::write(&input, flood(20)).unwrap();
        let script = format!("exec \"$0\" {args} >> IN").replace("IN", &input);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(barewire().unwrap());
        let done = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert_eq!(done.code(), Some(1), "{args}: {}", done.stderr);
        assert!(std::fs::read(&input).unwrap() == flood(20), "{args}");
    }
}

#[test]
fn swapped_arguments_of_send_and_forward_are_explained() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("swapped");
    let (first, second) = (folder.file("first.pcap"), folder.file("second.pcap"));
    let interface = &pair.left.ifname;
    for path in [&first, &second] {
        std::fs::write(path, flood(20)).unwrap();
    }
    let example = format!("hint: the file comes first: barewire send {first} {interface}");
    for (args, hint) in [
        (&["send", interface, &first][..], example.as_str()),
        (&["send", &first, &second], "hint: the input comes first"),
        (
            &["send", "--udp", "--dst", "10.77.0.2", &second],
            "hint: the input comes first",
        ),
        (
            &["send", interface, interface],
            "hint: to send what a port receives: barewire forward",
        ),
        (
            &["forward", interface, &first],
            "hint: the input comes first",
        ),
        (&["forward", &second, &first], "hint: the input comes first"),
    ] {
        let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
        let done = run(&pair, &args, None);
        assert_eq!(done.code(), Some(1), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(hint), "{args:?}: {}", done.stderr);
        for path in [&first, &second] {
            assert!(std::fs::read(path).unwrap() == flood(20), "{args:?}");
        }
    }
    // A new file is written, and an empty one filled.
    let new = folder.file("new.pcap");
    let ethernet = write_pcap(&vec![[7; 100]; 20]).unwrap();
    for is_empty in [false, true] {
        if is_empty {
            File::create(&new).unwrap();
        }
        let args = ["forward", text(ethernet.path()), &new].map(str::to_owned);
        run(&pair, &args, None).checked().unwrap();
        assert!(std::fs::metadata(&new).unwrap().len() > 100);
    }
}

/// The placeholders of a help text: option and value.
fn arguments(help: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in help.lines() {
        let words = line.trim_start();
        // Descriptions are indented deeper.
        let is_argument = words.starts_with(['-', '<', '[']) && !words.starts_with("[[");
        if line.len() - words.len() > 8 || !is_argument {
            continue;
        }
        let Some((option, value)) = words.split_once('<').or_else(|| words.split_once('[')) else {
            continue;
        };
        let end = value
            .rfind('>')
            .or_else(|| value.find(']'))
            .unwrap_or(value.len());
        let value = value[..end].trim_start_matches('=').trim_start_matches('<');
        let option = option.trim_end_matches(['=', '[', ' ']);
        let name = option.rsplit(", ").next().unwrap_or_default();
        found.push((name.trim().to_owned(), value.to_owned()));
    }
    found
}

fn help(command: &[String]) -> String {
    let mut process = Command::new(barewire().unwrap());
    let process = Process::spawn(process.args(command).arg("--help"));
    process
        .unwrap()
        .wait(LIMIT)
        .unwrap()
        .checked()
        .unwrap()
        .stdout
}

/// All commands, nested ones included, with their help.
fn commands(of: &[String], found: &mut Vec<(String, String)>) {
    let text = help(of);
    let list = text.split("\nCommands:\n").nth(1).unwrap_or_default();
    for line in list.lines().take_while(|line| line.starts_with("  ")) {
        let name = line.split_whitespace().next().unwrap_or_default();
        let is_name = line.starts_with("  ") && !line.starts_with("   ") && name != "help";
        if is_name {
            commands(&[of, &[name.to_owned()]].concat(), found);
        }
    }
    found.push((of.join(" "), text));
}

#[test]
fn every_argument_that_may_name_a_file_is_in_the_table() {
    let mut known = BTreeSet::new();
    for row in TABLE {
        let name: Vec<&str> = row
            .command
            .iter()
            .copied()
            .take_while(|word| word.chars().all(|letter| letter.is_ascii_lowercase()))
            .collect();
        let name = name.join(" ");
        let inputs = row.inputs.iter().map(|row| row.0);
        let outputs = row.outputs.iter().map(|row| row.0);
        known.extend(
            inputs
                .chain(outputs)
                .map(|argument| (name.clone(), argument.to_owned())),
        );
    }
    for (command, arguments) in OTHERS {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        known.extend(arguments.map(|argument| ((*command).to_owned(), argument)));
    }
    let mut all = Vec::new();
    commands(&[], &mut all);
    assert!(all.len() > 20, "{} commands", all.len());
    let mut count = 0;
    for (command, help) in &all {
        for (option, value) in arguments(help) {
            if NO_FILES.contains(&value.as_str()) {
                continue;
            }
            count += 1;
            let is_known = [&option, &value]
                .into_iter()
                .any(|name| known.contains(&(command.clone(), name.clone())));
            let short = help.lines().find_map(|line| {
                let (short, rest) = line.trim_start().split_once(", ")?;
                (!option.is_empty() && rest.starts_with(&option)).then(|| short.to_owned())
            });
            let is_known =
                is_known || short.is_some_and(|short| known.contains(&(command.clone(), short)));
            assert!(
                is_known,
                "barewire {command} {option} <{value}>: is it an input or an output? Add it to \
                 the table of this test, and outputs to `OUTPUTS` in the command line's kept.rs"
            );
        }
    }
    assert!(count > 40, "{count} arguments");
}
