//! A reader that closes standard output (`| head -1`): other outputs are completed; if there are
//! none, the run ends and says how much was not read.

use std::process::Command;
use std::time::Duration;

use crate::export::{Folder, flood};
use lab::process::{Process, barewire};
use lab::{Finished, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(120);
/// Far more than pipes and queues hold.
const FLOWS: usize = 100_000;

/// Runs `barewire ARGS | head -1`; the exit code is that of barewire.
fn head(command: &mut Command, args: &str) -> Finished {
    let script = format!("\"$0\" {args} | head -1; exit ${{PIPESTATUS[0]}}");
    command.args(["-c", &script]).arg(barewire().unwrap());
    Process::spawn(command).unwrap().wait(LIMIT).unwrap()
}

fn input(folder: &Folder) -> String {
    let input = folder.file("input.pcap");
    std::fs::write(&input, flood(FLOWS as u32)).unwrap();
    input
}

fn lines(path: &str) -> usize {
    std::fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn exports_are_complete_when_standard_output_is_closed() {
    require!(skip::program("bash", "bash"));
    let folder = Folder::new("closed");
    let input = input(&folder);
    let (csv, json) = (folder.file("out.csv"), folder.file("out.json"));
    for args in [
        format!("flows {input} --json --export csv:{csv} --export json:{json}"),
        format!("flows {input} --export json:- --export csv:{csv} --export json:{json}"),
    ] {
        for path in [&csv, &json] {
            let _ = std::fs::remove_file(path);
        }
        let done = head(&mut Command::new("bash"), &args);
        assert_eq!(done.stdout.lines().count(), 1);
        assert_eq!(lines(&csv), FLOWS + 1, "{}", done.stderr);
        assert_eq!(lines(&json), FLOWS, "{}", done.stderr);
        if args.contains("--json") {
            assert_eq!(done.code(), Some(0), "{}", done.stderr);
            assert!(
                done.stderr.contains("standard output was closed"),
                "{}",
                done.stderr
            );
        }
    }
    let report = folder.file("out.html");
    let args = format!("flows {input} --json --report {report}");
    let done = head(&mut Command::new("bash"), &args);
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let text = std::fs::read_to_string(&report).unwrap();
    assert!(
        text.contains("100,000") || text.contains("100000"),
        "all flows are counted"
    );
}

#[test]
fn a_run_without_other_outputs_ends_and_says_what_was_not_read() {
    require!(skip::program("bash", "bash"));
    let folder = Folder::new("closed");
    let input = input(&folder);
    for args in [
        format!("flows {input} --json"),
        format!("capture -r {input}"),
    ] {
        let done = head(&mut Command::new("bash"), &args);
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        let text = &done.stderr;
        assert!(
            text.contains("standard output was closed: ended after"),
            "{args}: {text}"
        );
        // The reading thread may be far ahead of the lines.
        let is_said = text.contains("% of the input was not read")
            || text.contains("not everything was printed");
        assert!(is_said, "{args}: {text}");
    }
}

#[test]
fn a_file_is_complete_when_the_reader_of_its_lines_leaves() {
    require!(skip::program("bash", "bash"));
    let folder = Folder::new("closed");
    let (input, output) = (input(&folder), folder.file("out.pcap"));
    let args = format!("capture -r {input} -w {output} --micro --print");
    let done = head(&mut Command::new("bash"), &args);
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert!(
        done.stderr.contains("standard output was closed"),
        "{}",
        done.stderr
    );
    assert_eq!(
        std::fs::metadata(&input).unwrap().len(),
        std::fs::metadata(&output).unwrap().len()
    );
}

#[test]
fn a_scan_completes_its_files() {
    require!(skip::lab(), skip::program("bash", "bash"));
    let pair = Veth::new().create().unwrap();
    pair.add_hosts("198.18.4.0/26").unwrap();
    let folder = Folder::new("closed");
    let list = folder.file("out.list");
    let interface = &pair.left.ifname;
    let args = format!(
        "scan 198.18.4.0/26 -p 1-100 -e {interface} --rate 20kpps --wait 2 --json -oL {list}"
    );
    let done = head(&mut pair.left.ns.command("bash"), &args);
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert!(
        done.stderr.contains("standard output was closed"),
        "{}",
        done.stderr
    );
    let text = std::fs::read_to_string(&list).unwrap();
    let answers = text.lines().filter(|line| line.contains(" tcp "));
    assert!(answers.count() >= 6_000, "{}", done.stderr);
}
