//! Files that commands write: permissions, symbolic links, and what remains after a failure.

use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::export::{Folder, flood};
use lab::process::{Process, barewire};
use lab::{Finished, Veth, require, skip};

const LIMIT: Duration = Duration::from_secs(60);

fn input(folder: &Folder) -> PathBuf {
    let path = folder.0.join("input.pcap");
    std::fs::write(&path, flood(10)).unwrap();
    path
}

/// Runs `barewire` with the usual umask.
fn run(args: &[&str]) -> Finished {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 022; exec \"$0\" \"$@\""]);
    command.arg(barewire().unwrap()).args(args);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn captures_are_private_by_default() {
    let folder = Folder::new("modes");
    let input = input(&folder);
    for (name, options, mode) in [
        ("a.pcap", &[][..], 0o600),
        ("b.pcapng.zst", &[], 0o600),
        ("c.pcap", &["--file-mode", "666"], 0o644),
        ("d.pcap", &["--file-mode", "640"], 0o640),
        ("e.pcap", &["-C", "1k"], 0o600),
    ] {
        let path = folder.0.join(name);
        let mut args = vec!["capture", "-r", text(&input), "-w", text(&path)];
        args.extend(options);
        run(&args).checked().unwrap();
        let found = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(found, mode, "{name}: {found:o}");
    }
}

/// In a world-writable directory, another user has placed a link under the capture's name.
#[test]
fn a_capture_does_not_follow_the_link_of_another_user() {
    require!(skip::root());
    let folder = Folder::new("links");
    let input = input(&folder);
    let (shared, file) = (folder.0.join("shared"), folder.0.join("file"));
    std::fs::create_dir(&shared).unwrap();
    let sticky = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(&shared, sticky).unwrap();
    std::fs::write(&file, "kept").unwrap();
    let link = shared.join("out.pcap");
    symlink(&file, &link).unwrap();
    let args = ["capture", "-r", text(&input), "-w", text(&link)];
    lchown(&link, Some(12_345), Some(12_345)).unwrap();
    let refused = run(&args);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    // Unless the kernel refuses it first.
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = run(&args);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    let words = "it is a symbolic link to ";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("hint: give the path of the file itself")
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    // The user's own link is followed.
    lchown(&link, Some(0), Some(0)).unwrap();
    run(&args).checked().unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() > 24);
}

/// In a world-writable directory, another user has placed a link, or their own file, under the name
/// of an output.
#[test]
fn no_output_follows_a_link_of_another_user() {
    require!(skip::lab());
    let folder = Folder::new("planted");
    let input = input(&folder);
    let pair = Veth::new().create().unwrap();
    let router = wire::Mac(pair.right.mac).to_string();
    let ifname = pair.left.ifname.as_str();
    let (shared, kept) = (folder.0.join("shared"), folder.0.join("kept"));
    std::fs::create_dir(&shared).unwrap();
    let set_mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&shared, mode).unwrap();
    };
    std::fs::write(&kept, "").unwrap();
    let out = shared.join("out");
    let (to, csv) = (text(&out).to_owned(), format!("csv:{}", text(&out)));
    let scan = [
        "scan",
        "192.0.2.1",
        "-p",
        "1",
        "-e",
        ifname,
        "--wait",
        "10ms",
    ];
    let state = ["--router-mac", &router, "--state", &to];
    for args in [
        vec!["capture", "-r", text(&input), "-w", &to],
        vec!["flows", text(&input), "--export", &csv],
        vec!["flows", text(&input), "--report", &to],
        [&scan[..], &state].concat(),
    ] {
        let run = || {
            let process = pair.left.ns.spawn(barewire().unwrap(), &args);
            process.unwrap().wait(LIMIT).unwrap()
        };
        let refused = |words: &str| {
            let refused = run();
            assert_eq!(refused.code(), Some(1), "{args:?} {}", refused.stderr);
            assert!(
                refused.stderr.contains(words),
                "{args:?} {}",
                refused.stderr
            );
            assert_eq!(std::fs::read_to_string(&kept).unwrap(), "", "{args:?}");
        };
        // Unless the kernel refuses it first.
        set_mode(0o777);
        symlink(&kept, &out).unwrap();
        lchown(&out, Some(12_345), None).unwrap();
        refused("it is a symbolic link to ");
        lchown(&out, Some(0), None).unwrap();
        run().checked().unwrap();
        assert_ne!(std::fs::metadata(&kept).unwrap().len(), 0, "{args:?}");
        std::fs::write(&kept, "").unwrap();
        std::fs::remove_file(&out).unwrap();
        // A file, which any user can create.
        set_mode(0o1777);
        std::fs::write(&out, "").unwrap();
        lchown(&out, Some(12_345), None).unwrap();
        refused("user 12345 created it");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "", "{args:?}");
        std::fs::remove_file(&out).unwrap();
        run().checked().unwrap();
        std::fs::remove_file(&out).unwrap();
    }
}

#[test]
fn output_directories_do_not_follow_another_users_link() {
    require!(skip::root());
    let folder = Folder::new("led");
    let input = input(&folder);
    let [inside, out] = ["inside", "out"].map(|name| folder.0.join(name));
    std::fs::create_dir(&inside).unwrap();
    symlink(&inside, &out).unwrap();
    lchown(&out, Some(12_345), None).unwrap();
    let parquet = format!("parquet:{}/", text(&out));
    let refused = run(&["flows", text(&input), "--export", &parquet]);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    let words = "it is a symbolic link to ";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 0);
}

#[test]
fn other_outputs_have_the_permissions_that_the_umask_leaves() {
    let folder = Folder::new("umask");
    let input = input(&folder);
    let [csv, page, set] = ["a.csv", "page.html", "set-%n.csv"].map(|name| folder.0.join(name));
    let exports = [
        format!("csv:{}", text(&csv)),
        format!("csv:{}?size=1M", text(&set)),
    ];
    let mut args = vec!["flows", text(&input), "--report", text(&page)];
    exports
        .iter()
        .for_each(|export| args.extend(["--export", export]));
    run(&args).checked().unwrap();
    for path in [csv, page, folder.0.join("set-1.csv")] {
        let found = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(found, 0o644, "{}: {found:o}", path.display());
    }
}

#[test]
fn a_failed_report_leaves_no_file_and_keeps_the_old_page() {
    require!(skip::root(), skip::program("unshare", "util-linux"));
    let folder = Folder::new("report");
    let input = input(&folder);
    let page = folder.0.join("page.html");
    // The probe does not start.
    let args = ["flows", text(&input), "--report", text(&page)];
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let begin = [&args[..], &["--user", "no-such-user"]].concat();
    assert_eq!(run(&begin).code(), Some(1));
    let metrics = [&args[..], &["--metrics", &address]].concat();
    assert_eq!(run(&metrics).code(), Some(1));
    assert!(!page.exists());
    // An existing page survives a failed run.
    std::fs::write(&page, "old").unwrap();
    assert_eq!(run(&metrics).code(), Some(1));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");
    run(&args).checked().unwrap();
    assert!(
        std::fs::read_to_string(&page)
            .unwrap()
            .starts_with("<!doctype")
    );
    // The disk is full once the page is written.
    let script = "mount -t tmpfs -o size=4k none \"$1\" || exit 99
        \"$2\" flows --report \"$1/page.html\" \"$3\"; code=$?
        ls \"$1\" >&2; exit $code";
    let disk = folder.0.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.args([&disk, &barewire().unwrap(), &input]);
    let full = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(full.code(), Some(1), "{}", full.stderr);
    assert!(full.stderr.contains("No space left"), "{}", full.stderr);
    assert!(
        !full.stderr.trim_end().ends_with("page.html"),
        "{}",
        full.stderr
    );
}
