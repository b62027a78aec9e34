//! The live view on a pseudo-terminal of 80 columns: its pages, filter, pause; and `--once`.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use lab::packet::pour;
use lab::process::{Process, barewire};
use lab::{Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// Only differences to the previous screen are drawn, so the test looks for words that are new.
#[test]
fn keys_switch_pages_filter_and_pause() {
    require!(skip::lab());
    require!(skip::program("script", "bsdutils"));
    let pair = Veth::new().create().unwrap();
    let inner = format!(
        "stty rows 24 cols 80; '{}' flows {} udp port 9; echo code $?",
        barewire().unwrap().display(),
        pair.right.ifname
    );
    let mut command = pair.right.ns.command("script");
    command
        .args(["-qec", &inner, "/dev/null"])
        .stdin(Stdio::piped());
    command.env("TERM", "xterm-256color");
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    let mut press = |keys: &str, wanted: &str| {
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.flush().unwrap();
        process
            .wait_stdout(wanted, LIMIT)
            .unwrap_or_else(|e| panic!("{keys:?}: {e:#}"));
    };
    press("", "destination");
    pour(&pair, 3, 300);
    press("", &format!("{}:4000", pair.left.ipv4));
    // Every field of the first flow, and back.
    press("\r", "duration ns");
    press("\u{1b}", "destination");
    press("?", "draw the screen again");
    press("x", "destination");
    // Port 9 has no known application here: everything is in one row. The page of talkers has both
    // endpoints.
    press("2", "unknown");
    press("3", "received");
    press("4", "metered");
    press("5", "iptoasn.com");
    press("1/zzz", "filter: zzz▏");
    press("\r ", "PAUSED");
    stdin.write_all(b"q").unwrap();
    let finished = process.wait(LIMIT).unwrap();
    let (_, after) = finished.stdout.split_once("\u{1b}[?1049l").unwrap();
    assert!(
        after.contains("300 in records + 0 in no flow: adds up"),
        "{after}"
    );
    assert!(after.contains("code 0"), "{after}");
}

#[test]
fn once_prints_one_snapshot_and_ends() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = ["flows", "--once", &pair.right.ifname, "udp", "port", "9"];
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    pour(&pair, 3, 300);
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let text = &finished.stdout;
    assert!(
        text.contains("destination") && text.contains("bit/s▾ →"),
        "{text}"
    );
    assert!(text.contains(&format!("{}:4000", pair.left.ipv4)), "{text}");
    assert!(
        text.contains("3 flows live") && text.contains("adds up"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(
        finished.stderr.contains("300 in records"),
        "{}",
        finished.stderr
    );
    // For a file: its state at the end.
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/captures/lab-mix.pcapng");
    let mut command = std::process::Command::new(barewire().unwrap());
    command
        .args(["flows", "--once", "--decode", "all"])
        .arg(file);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    assert!(finished.stdout.contains("tls") && finished.stdout.contains("0 flows live"));
}
