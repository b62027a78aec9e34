//! `barewire flows` as a service: its configuration, notifications of the service manager,
//! `SIGHUP`, and the unit as read by systemd.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::export::{Folder, LIMIT};
use crate::flow_blocked::{METRICS, figure};
use lab::packet::{Raw, Udp, pour};
use lab::process::{Finished, Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};

/// Waits until a value of the metrics page is at least this large.
fn wait_figure(pair: &Pair, name: &str, least: u64) {
    let until = Instant::now() + LIMIT;
    loop {
        let value = figure(pair, name);
        if value >= Some(least) {
            return;
        }
        assert!(Instant::now() < until, "{name}: {value:?}, not {least}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn flows(args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    command.arg("flows").args(args);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

#[test]
fn a_configuration_file_sets_all_flags() {
    let folder = Folder::new("config");
    let file = folder.0.join("flows.toml");
    let capture = root().join("testdata/captures/lab-mix.pcapng");
    let text = format!(
        "port = {:?}\nfilter = \"udp\"\njson = true\n",
        capture.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let name = file.to_str().unwrap();
    let by_file = flows(&["--config", name]);
    assert_eq!(by_file.code(), Some(0), "{}", by_file.stderr);
    let by_flags = flows(&["--json", capture.to_str().unwrap(), "udp"]);
    let lines = |finished: &Finished| {
        let all = finished.stdout.lines();
        all.filter(|l| l.contains("\"flow\""))
            .map(str::to_owned)
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert!(!lines(&by_flags).is_empty());
    assert_eq!(lines(&by_file), lines(&by_flags));
    // The command line takes precedence.
    let other = flows(&["--config", name, capture.to_str().unwrap(), "tcp"]);
    assert!(lines(&other).is_disjoint(&lines(&by_file)) && !lines(&other).is_empty());
    for (text, why, hint) in [
        (
            "jsn = true",
            "unknown key \"jsn\"",
            "hint: a similar key exists: json",
        ),
        ("top = \"many\"", "invalid value 'many' for '--top", "hint:"),
        ("top = [", "line 1", "hint:"),
    ] {
        std::fs::write(&file, text).unwrap();
        let finished = flows(&["--config", name, "lo"]);
        assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
        let reported = &finished.stderr;
        assert!(
            reported.contains(why) && reported.contains(hint) && reported.contains(name),
            "{reported}"
        );
    }
    let finished = flows(&["--config", "/no/such/file", "lo"]);
    assert!(
        finished.stderr.contains("/no/such/file"),
        "{}",
        finished.stderr
    );
}

/// The example in the repository is valid; only its interface does not exist here.
#[test]
fn the_example_configuration_is_valid() {
    let example = root().join("dist/flows-example.toml");
    let finished = flows(&[
        "--config",
        example.to_str().unwrap(),
        "--export",
        "csv:-",
        "no-such-if",
    ]);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("no-such-if"),
        "{}",
        finished.stderr
    );
}

/// The notifications received by a service manager, which listens all the time.
struct Manager {
    printed: Arc<Mutex<String>>,
    is_over: Arc<AtomicBool>,
}

impl Manager {
    fn listen(socket: &Path) -> Manager {
        let socket = UnixDatagram::bind(socket).unwrap();
        let patience = Some(Duration::from_millis(50));
        socket.set_read_timeout(patience).unwrap();
        let manager = Manager {
            printed: Arc::default(),
            is_over: Arc::default(),
        };
        let (printed, is_over) = (manager.printed.clone(), manager.is_over.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(len) = socket.recv(&mut buffer) {
                    let mut printed = printed.lock().unwrap();
                    printed.push_str(&String::from_utf8_lossy(&buffer[..len]));
                    printed.push('\n');
                }
            }
        });
        manager
    }

    /// Waits until it occurs this many times.
    fn wait_for(&self, wanted: &str, times: usize) {
        let until = Instant::now() + LIMIT;
        while self.printed.lock().unwrap().matches(wanted).count() < times {
            let printed = self.printed.lock().unwrap().clone();
            assert!(Instant::now() < until, "no {wanted} in {printed}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn packets_in(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    let head = lines.next().expect("names of columns");
    let at = head.split(',').position(|name| name == "packets").unwrap();
    lines
        .map(|line| line.split(',').nth(at).unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn sighup_reloads_the_configuration() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("reload");
    let at = |name: &str| folder.0.join(name);
    let (config, socket) = (at("flows.toml"), at("notify"));
    let manager = Manager::listen(&socket);
    let write = |top: u32, exports: &[&str]| {
        let exports: Vec<String> = exports
            .iter()
            .map(|name| format!("\"csv:{}\"", at(name).display()))
            .collect();
        let text = format!(
            "port = \"{}\"\nfilter = \"udp port 9\"\nplain = true\ntop = {top}\n\
             metrics = \"{METRICS}\"\nactive-timeout = \"1s\"\nexport = [{}]\n",
            pair.right.ifname,
            exports.join(", ")
        );
        std::fs::write(&config, text).unwrap();
    };
    write(10, &["a.csv", "stays.csv"]);
    let mut command = pair.right.ns.command(barewire().unwrap());
    command.args(["flows", "--config"]).arg(&config);
    command
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "400000");
    let mut process = Process::spawn(&mut command).unwrap();
    manager.wait_for("READY=1", 1);
    manager.wait_for("STATUS=", 1);
    manager.wait_for("WATCHDOG=1", 1);
    pour(&pair, 5, 100);
    wait_figure(&pair, "barewire_packets_total", 100);
    // An invalid file changes nothing.
    std::fs::write(&config, "tpo = 3").unwrap();
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("nothing was changed", LIMIT).unwrap();
    process
        .wait_stderr("a similar key exists: top", LIMIT)
        .unwrap();
    // One is removed, one added, one stays, and one key needs a restart. The file of the one that
    // stays was moved.
    std::fs::rename(at("stays.csv"), at("stays.csv.1")).unwrap();
    write(11, &["b.csv", "stays.csv"]);
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr(": reloaded", LIMIT).unwrap();
    let reported = process.stderr();
    for words in [
        "b.csv: export started",
        "a.csv: export stopped",
        "stays.csv: file was moved away",
        "top has changed; restart the probe",
    ] {
        assert!(reported.contains(words), "{words}: {reported}");
    }
    // Twice: also for the invalid file.
    manager.wait_for("RELOADING=1\nMONOTONIC_USEC=", 2);
    manager.wait_for("READY=1", 3);
    // The first records end after a second; later ones are in the new files.
    wait_figure(&pair, "barewire_flows_ended_total", 5);
    pour(&pair, 5, 50);
    wait_figure(&pair, "barewire_packets_total", 150);
    let finished = process.stop(Signal::SIGTERM, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    manager.wait_for("STOPPING=1", 1);
    let counts = ["a.csv", "stays.csv.1", "b.csv", "stays.csv"].map(|name| packets_in(&at(name)));
    assert_eq!((counts[0], counts[2]), (counts[1], counts[3]), "{counts:?}");
    assert_eq!(counts[0] + counts[2], 150, "{counts:?}");
    assert!(counts[2] >= 50, "{counts:?}");
    let reported = &finished.stderr;
    let accounts = reported.matches("dropped: adds up").count();
    assert_eq!(accounts, 3, "{reported}");
    let total = "150 in records + 0 in no flow: adds up";
    assert!(reported.contains(total), "{reported}");
}

/// Enrichment files are reloaded with the configuration; an invalid one changes nothing.
#[test]
fn sighup_reloads_enrichment_files() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("reload-origins");
    let at = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (list, flows) = (at("list.tsv"), at("flows.json"));
    let names = |asn: u32| {
        let addr = pair.left.ipv4;
        std::fs::write(&list, format!("{addr}/32\t{asn}\tsomebody\n")).unwrap();
    };
    names(64500);
    let text = format!(
        "port = \"{}\"\nfilter = \"udp port 9\"\nplain = true\nactive-timeout = \"1s\"\n\
         asn = \"{list}\"\nexport = \"json:{flows}\"\n",
        pair.right.ifname
    );
    std::fs::write(at("flows.toml"), text).unwrap();
    let mut command = pair.right.ns.command(barewire().unwrap());
    command.args(["flows", "--config", &at("flows.toml")]);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    let reported = |asn: u32| {
        let until = Instant::now() + LIMIT;
        let wanted = format!("\"src_asn\":{asn},\"src_as_name\":\"somebody\"");
        while !std::fs::read_to_string(&flows).unwrap().contains(&wanted) {
            assert!(Instant::now() < until, "no {wanted}");
            pour(&pair, 5, 10);
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    reported(64500);
    std::fs::write(&list, "nonsense\nnonsense\n").unwrap();
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("kept the old files", LIMIT).unwrap();
    process.wait_stderr("line 2", LIMIT).unwrap();
    names(64501);
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("reloaded the files", LIMIT).unwrap();
    reported(64501);
    let finished = process.stop(Signal::SIGTERM, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("dropped: adds up"),
        "{}",
        finished.stderr
    );
}

/// Under nohup, which starts programs with SIGHUP ignored, a probe with a configuration reloads it
/// and one without continues.
#[test]
fn under_nohup_sighup_reloads_and_never_ends_the_probe() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("reload-nohup");
    let config = folder.0.join("flows.toml");
    let text = format!("port = \"{}\"\nplain = true\n", pair.right.ifname);
    std::fs::write(&config, text).unwrap();
    let start = |args: &[&str]| {
        let mut command = pair.right.ns.command("sh");
        command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
        command.arg(barewire().unwrap()).arg("flows").args(args);
        let process = Process::spawn(&mut command).unwrap();
        process.wait_stderr("of memory", LIMIT).unwrap();
        process
    };
    let mut configured = start(&["--config", config.to_str().unwrap()]);
    configured.signal(Signal::SIGHUP).unwrap();
    configured.wait_stderr(": reloaded", LIMIT).unwrap();
    let mut plain = start(&["--plain", &pair.right.ifname]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", plain.pid())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    assert!(ignored & 1 != 0, "it ignores SIGHUP no more: {status}");
    plain.signal(Signal::SIGHUP).unwrap();
    for process in [&mut configured, &mut plain] {
        let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    }
}

/// systemd reports no problem in the units.
#[test]
fn the_systemd_units_are_valid() {
    require!(skip::program("systemd-analyze", "systemd"));
    for name in ["barewire-flows", "barewire-cluster"] {
        check_unit(name);
    }
}

fn check_unit(name: &str) {
    let folder = Folder::new("unit");
    let unit = folder.0.join(format!("{name}@.service"));
    let text = std::fs::read_to_string(root().join(format!("dist/{name}@.service"))).unwrap();
    let program = barewire().unwrap();
    // The program is not installed here.
    let text = text.replace("/usr/bin/barewire", program.to_str().unwrap());
    std::fs::write(&unit, text).unwrap();
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]);
    let instance = folder.0.join(format!("{name}@eth0.service"));
    std::fs::copy(&unit, &instance).unwrap();
    command.arg(&instance);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert!(finished.success(), "{}", finished.stderr);
    let ours: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| line.contains(name))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// Runs its arguments with what looks like the journal as standard error (systemd.exec(5)).
const JOURNAL: [&str; 2] = [
    "-c",
    "JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) exec \"$0\" \"$@\"",
];

/// The unit's own command line starts with any output settings in the configuration. The journal
/// gets priorities, and no line per second.
#[test]
fn the_unit_starts_with_json_and_the_journal_gets_priorities() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("journal");
    let file = folder.0.join("flows.toml");
    let unit = std::fs::read_to_string(root().join("dist/barewire-flows@.service")).unwrap();
    let start = unit
        .lines()
        .find_map(|l| l.strip_prefix("ExecStart=/usr/bin/barewire "));
    let start = start
        .unwrap()
        .replace("/etc/barewire/flows-%i.toml", file.to_str().unwrap());
    let name = &pair.right.ifname;
    for output in ["json = true", "plain = true", ""] {
        let text = format!("port = {name:?}\nduration = \"2500ms\"\n{output}\n");
        std::fs::write(&file, text).unwrap();
        let mut command = pair.right.ns.command("sh");
        command.args(JOURNAL).arg(barewire().unwrap());
        command.args(start.split_whitespace());
        let done = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let text = &done.stderr;
        assert_eq!(done.code(), Some(0), "{output}: {text}");
        assert!(text.contains("of memory"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("<6>")), "{text}");
        assert!(!text.contains("flows in the table,"), "{output}: {text}");
        assert_eq!(
            done.stdout.contains("\"type\":\"summary\""),
            output.contains("json")
        );
    }
    for args in [
        &["capture", "no-such-if"][..],
        &["capture", "--no-such-flag"],
    ] {
        let mut command = Command::new("sh");
        command.args(JOURNAL).arg(barewire().unwrap()).args(args);
        let failed = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let text = &failed.stderr;
        assert!(text.contains("hint: "), "{text}");
        assert!(text.lines().all(|line| line.starts_with("<3>")), "{text}");
    }
}

/// With a filter that runs in the probe, SIGHUP changes what is metered, and how much of it; all
/// packets are accounted for by the filter or the sampling in effect at the time.
#[test]
fn sighup_changes_filter_and_sampling() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let folder = Folder::new("reload-filter");
    let config = folder.0.join("flows.toml");
    let write = |filter: &str, more: &str| {
        let port = &pair.right.ifname;
        let text = format!(
            "port = \"{port}\"\nfilter = \"{filter}\"\njson = true\nlive-filter = true\n\
             metrics = \"{METRICS}\"\n{more}\n"
        );
        std::fs::write(&config, text).unwrap();
    };
    // `pour` sends to port 9, from five ports.
    write("udp dst port 9", "");
    let mut command = pair.right.ns.command(barewire().unwrap());
    command.args(["flows", "--config"]).arg(&config);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    let metered = |count| wait_figure(&pair, "barewire_packets_total", count);
    let mut times = 0;
    let mut pour_with = |process: &Process, filter: &str, more: &str, count: u64| {
        write(filter, more);
        process.signal(Signal::SIGHUP).unwrap();
        times += 1;
        let until = Instant::now() + LIMIT;
        while process.stderr().matches("flows.toml: reloaded").count() < times {
            assert!(Instant::now() < until, "{}", process.stderr());
            std::thread::sleep(Duration::from_millis(20));
        }
        pour(&pair, 5, count);
    };
    pour(&pair, 5, 100);
    metered(100);
    pour_with(&process, "udp dst port 10", "", 50);
    // The packet after those that are left out is metered.
    let other = Udp {
        destination_port: 10,
        ..Udp::between(&pair.left, &pair.right)
    };
    let out = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    out.unwrap().unwrap().send(&other.build(0, 60)).unwrap();
    metered(101);
    // A wider filter than at the start.
    pour_with(&process, "udp", "sample = \"count:5\"", 200);
    metered(301);
    // An invalid filter changes nothing.
    write("udp port", "");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("nothing was changed", LIMIT).unwrap();
    pour(&pair, 5, 10);
    metered(311);
    pour_with(&process, "udp dst port 9", "", 30);
    metered(341);
    let finished = process.stop(Signal::SIGTERM, LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let summary = finished.stdout.lines().last().expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(count("unsampled"), 168, "{summary}");
    assert_eq!(count("packets_in_records"), 100 + 1 + 42 + 30, "{summary}");
    // And what the host itself has sent meanwhile.
    assert!(count("unselected") >= 50, "{summary}");
    assert_eq!(summary["imbalance"], 0, "{summary}");
    let delivered = summary["account"]["total"]["delivered"].as_u64();
    let known = count("unsampled") + count("packets_in_records") + count("unselected");
    assert_eq!(delivered, Some(known), "{summary}");
}

/// What a port takes from the host is what its filter selects: such a filter stays in the kernel.
#[test]
fn live_filters_are_refused_for_a_bypass() {
    let folder = Folder::new("reload-bypass");
    let config = folder.0.join("flows.toml");
    std::fs::write(&config, "port = \"afxdp:lo\"\nlive-filter = true\n").unwrap();
    let finished = flows(&["--config", config.to_str().unwrap()]);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("use --live-filter"),
        "{}",
        finished.stderr
    );
}
