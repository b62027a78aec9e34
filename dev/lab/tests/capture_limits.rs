//! `barewire capture` at its limits: a full disk, little memory, much traffic on a slow disk.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::capture::{Folder, LIMIT, command, count_with_capinfos};
use lab::packet::{Raw, Udp};
use lab::process::{Process, Signal};
use lab::{Veth, skip};

/// Default memory limit of a capture with one queue.
const MEMORY_MAX: u64 = 256 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pcap file of `count` incompressible packets of 1,000 bytes.
fn large(path: &Path, count: u32) {
    use std::io::{BufWriter, Write};
    let mut file = BufWriter::new(std::fs::File::create(path).unwrap());
    let head: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1];
    head.iter()
        .for_each(|word| file.write_all(&word.to_le_bytes()).unwrap());
    let mut state = 1u64;
    let mut packet = [0u8; 1000];
    for number in 0..count {
        for bytes in packet.chunks_exact_mut(8) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            bytes.copy_from_slice(&state.to_be_bytes());
        }
        for word in [
            1_700_000_000 + number / 1000,
            number % 1000 * 1000,
            1000,
            1000,
        ] {
            file.write_all(&word.to_le_bytes()).unwrap();
        }
        file.write_all(&packet).unwrap();
    }
    file.flush().unwrap();
}

#[test]
fn a_full_disk_leaves_a_valid_file_and_reports_how_much() {
    lab::require!(skip::root(), skip::program("capinfos", "wireshark-common"));
    let folder = Folder::new();
    let input = folder.at("input.pcap");
    large(&input, 6000);
    let barewire = lab::process::barewire().unwrap();
    for name in ["x.pcap", "x.pcapng", "x.pcapng.zst", "x.pcap.gz"] {
        // A disk of 3 MiB in its own mount namespace; its contents are copied out.
        let disk = folder.at("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let copy = folder.at(name);
        let script = "mount -t tmpfs -o size=3m none \"$1\" || exit 99
            \"$2\" capture -r \"$3\" -w \"$1/$4\"; code=$?
            cp \"$1/$4\" \"$5\"; exit $code";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh"])
            .args([&disk, &barewire, &input, Path::new(name), &copy])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {error}");
        assert!(error.contains("No space left on device"), "{name}: {error}");
        assert!(error.contains("hint: free some space"), "{name}: {error}");
        let count = count_with_capinfos(&copy);
        let len = copy.metadata().unwrap().len();
        assert!(count > 1500, "{name}: only {count} packets");
        let reported = format!("{count} packets ({len} bytes) were written and are readable");
        assert!(
            error.contains(&reported),
            "{name}, {count} packets, {len} bytes: {error}"
        );
        // Every packet is either in the file or reported as lost.
        let captured = number_before(&error, " packets captured");
        let lost = number_before(&error, " more are lost");
        assert_eq!(captured, count + lost, "{name}: {error}");
    }
}

/// The number before some words.
fn number_before(text: &str, words: &str) -> u64 {
    let end = text
        .find(words)
        .unwrap_or_else(|| panic!("{words:?} in {text}"));
    let digits = text[..end]
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap();
    digits.parse().unwrap()
}

/// The peak resident memory of a process, in bytes.
fn peak(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib << 10)
}

#[test]
fn a_large_file_takes_little_memory() {
    let folder = Folder::new();
    let input = folder.at("input.pcap");
    large(&input, 300_000);
    assert!(input.metadata().unwrap().len() > MEMORY_MAX + (16 << 20));
    for output in [&["--count-only"][..], &["-w", "/dev/null"]] {
        let mut process = Process::spawn(command(["-r", text(&input)]).args(output)).unwrap();
        let mut max = 0;
        let end = Instant::now() + LIMIT;
        while process.running().unwrap() {
            max = peak(process.pid()).map_or(max, |peak| peak.max(max));
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
        let finished = process.wait(LIMIT).unwrap().checked().unwrap();
        assert!(
            finished.stderr.contains("300000 packets captured"),
            "{}",
            finished.stderr
        );
        // Far less: the mapping returns pages that were read.
        assert!(max > 0 && max < 64 << 20, "{max} bytes");
    }
    // Without address space for a mapping of it, the file is read in pieces.
    let limited = format!("--as={}", 200 << 20);
    let result = Process::spawn(
        Command::new("prlimit")
            .arg(limited)
            .arg(lab::process::barewire().unwrap())
            .args(["capture", "-r", text(&input), "--json", "--count-only"]),
    )
    .unwrap()
    .wait(LIMIT)
    .unwrap();
    let result = result.checked().unwrap();
    let value: serde_json::Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(value["captured"], 300_000);
    assert_eq!(value["facts"]["access"], "buffered");
}

#[test]
fn a_live_capture_stays_within_its_limits() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let folder = Folder::new();
    for port in [end.ifname.clone(), format!("afxdp:{}", end.ifname)] {
        let file = folder.at("x.pcapng.zst");
        let mut command = end.ns.command(lab::process::barewire().unwrap());
        // The limit includes all address space, mapped or not.
        command.args(["capture", &port, "-w", text(&file), "udp"]);
        let mut process = Process::spawn(&mut command).unwrap();
        process.wait_stderr("listening on", LIMIT).unwrap();
        let sender = pair
            .left
            .ns
            .run(|| Raw::sender(&pair.left.ifname))
            .unwrap()
            .unwrap();
        let plan = Udp::between(&pair.left, &pair.right);
        for number in 0..30_000 {
            sender.send(&plan.build(number, 1000)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(200));
        let max = peak(process.pid()).unwrap();
        assert!(max < MEMORY_MAX, "{port}: {max} bytes");
        let finished = process
            .stop(Signal::SIGINT, LIMIT)
            .unwrap()
            .checked()
            .unwrap();
        assert!(finished.stderr.contains("adds up"), "{}", finished.stderr);
    }
}

#[test]
fn losses_under_overload_are_counted() {
    lab::require!(skip::lab(), skip::program("capinfos", "wireshark-common"));
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let folder = Folder::new();
    let file = folder.at("x.pcap");
    let mut command = end.ns.command(lab::process::barewire().unwrap());
    // A ring of 64 KiB, and a reader that is stopped while packets arrive.
    let args = [
        "capture",
        &end.ifname,
        "-w",
        text(&file),
        "-B",
        "64",
        "--json",
        "udp",
    ];
    let mut process = Process::spawn(command.args(args)).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    let mut plan = Udp::between(&pair.left, &pair.right);
    plan.destination_mac[5] ^= 0x40;
    process.suspend().unwrap();
    for number in 0..2000 {
        sender.send(&plan.build(number, 1000)).unwrap();
    }
    process.signal(Signal::SIGCONT).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let finished = process
        .stop(Signal::SIGINT, LIMIT)
        .unwrap()
        .checked()
        .unwrap();
    let value: serde_json::Value =
        serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap();
    let (captured, lost) = (
        value["captured"].as_u64().unwrap(),
        value["lost"].as_u64().unwrap(),
    );
    assert!(lost > 1000, "{value}");
    assert_eq!(captured + lost, 2000, "{value}");
    assert_eq!(value["account"]["total"]["dropped"]["ring_full"], lost);
    assert_eq!(value["account"]["total"]["imbalance"], 0);
    assert_eq!(count_with_capinfos(&file), captured);
    let text = format!("{lost} packets dropped by kernel");
    assert!(finished.stderr.contains(&text), "{}", finished.stderr);
}

#[test]
fn no_memory_is_allocated_per_packet() {
    lab::require!(skip::program("valgrind", "valgrind"));
    let folder = Folder::new();
    let (small, twice) = (folder.at("small.pcap"), folder.at("twice.pcap"));
    large(&small, 2000);
    large(&twice, 4000);
    let allocations = |input: &Path, output: &[&str]| {
        let mut command = Command::new("valgrind");
        command
            .arg(lab::process::barewire().unwrap())
            .args(["capture", "-r", text(input)]);
        let finished = Process::spawn(command.args(output))
            .unwrap()
            .wait(LIMIT)
            .unwrap();
        let report = finished.checked().unwrap().stderr;
        let line = report
            .lines()
            .find(|line| line.contains("total heap usage"))
            .unwrap();
        let number = line
            .split("usage: ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap();
        number.replace(',', "").parse::<i64>().unwrap()
    };
    for output in [
        &["-w", "/dev/null"][..],
        &["-n"],
        &["--count-only", "ether[0] != 1"],
    ] {
        let [small, twice] = [&small, &twice].map(|input| allocations(input, output));
        // The account is read once a second, and valgrind is slow.
        assert!(
            (twice - small).abs() < 100,
            "{output:?}: {small} and {twice}"
        );
    }
}

#[test]
fn progress_is_shown_on_a_terminal() {
    lab::require!(skip::lab(), skip::program("script", "bsdutils"));
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    let folder = Folder::new();
    let barewire = lab::process::barewire().unwrap();
    let file = folder.at("x.pcapng");
    // script(1) gives the command a terminal for both of its outputs.
    let line = format!(
        "{} capture {} -w {} --duration 2.5 udp",
        barewire.display(),
        end.ifname,
        file.display()
    );
    let mut process = end
        .ns
        .spawn("script", ["-qec", &line, "/dev/null"])
        .unwrap();
    process.wait_stdout("listening on", LIMIT).unwrap();
    let sender = pair
        .left
        .ns
        .run(|| Raw::sender(&pair.left.ifname))
        .unwrap()
        .unwrap();
    for number in 0..10 {
        sender
            .send(&Udp::between(&pair.left, &pair.right).build(number, 100))
            .unwrap();
    }
    let shown = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    assert!(
        shown.contains("\r\u{1b}[K10 packets, 1000 B, "),
        "{shown:?}"
    );
    assert!(
        shown.contains(" 0 lost\r\n10 packets captured"),
        "{shown:?}"
    );
}
