//! Dropping privileges: what is kept, what is dropped, and what the remaining user can still do.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::export::{Folder, LIMIT};
use lab::process::{Finished, Process, Signal, barewire, own_test};
use lab::{Veth, require, skip};
use sys::privileges::{Capability, User, drop_privileges, has};

/// Allows this test binary, started again, to change its user.
const CHILD: &str = "BW_RIGHTS_CHILD";

#[test]
fn child_becomes_another_user() {
    ::skip::child_body!(CHILD);
    let nobody = User::find("nobody").unwrap();
    let keep = [Capability::NetRaw, Capability::DacOverride];
    drop_privileges(Some(&nobody), &keep).unwrap();
    assert_eq!(nix::unistd::geteuid().as_raw(), nobody.uid);
    assert!(has(Capability::NetRaw) && has(Capability::DacOverride));
    assert!(!has(Capability::NetAdmin));
    drop_privileges(None, &[Capability::DacOverride]).unwrap();
    assert!(has(Capability::DacOverride) && !has(Capability::NetRaw));
    drop_privileges(Some(&nobody), &[]).unwrap();
    assert!(!has(Capability::DacOverride), "gone with the last");
    println!("kept and gone");
}

/// In a separate process: the C library changes the user of all threads.
#[test]
fn kept_capabilities_survive_the_change_of_user() {
    require!(skip::root());
    let (program, args) = own_test(module_path!(), "child_becomes_another_user");
    let mut command = Command::new(program);
    command.args(args);
    let output = command.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("kept and gone"), "{text}");
}

/// Runs `barewire` with these arguments as user nobody to its end.
fn as_nobody(args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    command.args(args).args(["--user", "nobody"]);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

/// A capture of the repository with many flows.
fn capture_file() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/captures/lab-mix.pcapng"
    );
    path.to_owned()
}

/// All files below a directory.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let found = paths.flat_map(|path| match path.is_dir() {
        true => files(path),
        false => vec![path],
    });
    found.collect()
}

/// Destinations that create files while the probe runs, in a directory of this name.
const LATER: [fn(&str) -> String; 3] = [
    |folder| format!("parquet:{folder}"),
    |folder| format!("parquet:{folder}?partition=none"),
    |folder| format!("csv:{folder}/flows-%n.csv?size=4k"),
];

#[test]
fn directories_created_for_exports_belong_to_the_user_that_writes_there() {
    require!(skip::root());
    let scratch = Folder::new("rights-created");
    for (at, url) in LATER.iter().enumerate() {
        let folder = scratch.0.join(format!("{at}/new/flows"));
        let url = url(folder.to_str().unwrap());
        let finished = as_nobody(&["flows", &capture_file(), "--json", "--export", &url]);
        assert_eq!(finished.code(), Some(0), "{url}: {}", finished.stderr);
        let summary: serde_json::Value =
            serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap();
        let export = &summary["exports"][0];
        assert_ne!(export["exported"]["flows"], 0, "{url}: {export}");
        assert_eq!(export["exported"], export["offered"], "{url}: {export}");
        let files = files(folder);
        assert!(!files.is_empty(), "{url}");
        for file in files {
            assert_eq!(file.metadata().unwrap().uid(), 65534, "{}", file.display());
        }
    }
}

#[test]
fn an_export_directory_that_the_user_cannot_write_is_refused_at_the_start() {
    require!(skip::root());
    let scratch = Folder::new("rights-refused");
    for (at, url) in LATER.iter().enumerate() {
        let folder = scratch.0.join(at.to_string());
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let url = url(folder.to_str().unwrap());
        let finished = as_nobody(&["flows", &capture_file(), "--json", "--export", &url]);
        assert_eq!(finished.code(), Some(1), "{url}: {}", finished.stderr);
        assert_eq!(finished.stdout, "", "{url}");
        let words = format!("create files in {}", folder.display());
        assert!(
            finished.stderr.contains(&words),
            "{url}: {}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains("hint: "),
            "{url}: {}",
            finished.stderr
        );
        assert!(files(folder).is_empty(), "{url}");
    }
}

/// A thread's name, and the lines of its status with user and capabilities.
fn rights_of(task: &Path) -> Option<(String, String)> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    let line = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(
            line.split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    let words = ["Uid:", "Gid:", "CapEff:", "CapPrm:"].map(line);
    let words: Option<Vec<String>> = words.into_iter().collect();
    Some((line("Name:")?, words?.join(", ")))
}

/// Including threads that a library starts.
#[test]
fn every_thread_of_a_probe_has_dropped_its_privileges() {
    require!(skip::lab());
    let library = sys::librdkafka::version();
    require!(library.map_err(|error| skip::Missing::Machine(error.to_string())));
    let pair = Veth::new().create().unwrap();
    let end = &pair.right;
    end.ns.ip(["link", "set", "lo", "up"]).unwrap();
    let kafka = "json:kafka://127.0.0.1:1/flows";
    let args = ["flows", &end.ifname, "--json", "--user", "nobody"];
    let others = ["--export", kafka, "--export", "ipfix:tcp://127.0.0.1:2"];
    let metrics = ["--metrics", "127.0.0.1:14739"];
    let args = [&args[..], &others, &metrics].concat();
    let mut process = end.ns.spawn(barewire().unwrap(), args).unwrap();
    let nobody = "65534 65534 65534 65534";
    let none = "0000000000000000";
    let expected = format!("{nobody}, {nobody}, {none}, {none}");
    let folder = PathBuf::from(format!("/proc/{}/task", process.pid()));
    let until = Instant::now() + LIMIT;
    loop {
        assert!(process.running().unwrap(), "{}", process.stderr());
        let tasks = std::fs::read_dir(&folder).unwrap();
        let found: Vec<_> = tasks
            .filter_map(|task| rights_of(&task.ok()?.path()))
            .collect();
        let has = |name: &str| found.iter().any(|(task, _)| task.starts_with(name));
        if ["rdk", "export-0", "export-1", "flows-0"]
            .into_iter()
            .all(has)
        {
            for (name, rights) in &found {
                assert_eq!(*rights, expected, "{name} of {found:?}");
            }
            break;
        }
        assert!(Instant::now() < until, "{found:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    process.stop(Signal::SIGINT, LIMIT).unwrap();
}

/// Later files of a set are created by the remaining user.
#[test]
fn a_set_of_files_that_the_user_cannot_write_is_refused_at_the_start() {
    require!(skip::root());
    let scratch = Folder::new("rights-sets");
    let nobody = User::find("nobody").unwrap();
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(nobody.uid), Some(nobody.gid));
    let captured = |name: &str, set: &[&str]| {
        let file = scratch.0.join(name);
        let (read, write) = (capture_file(), file.to_str().unwrap().to_owned());
        let args = [&["capture", "-r", &read, "-w", &write], set].concat();
        as_nobody(&args)
    };
    for (at, set) in [&["-C", "20k"][..], &["-G", "1"], &["-C", "20k", "-W", "3"]]
        .into_iter()
        .enumerate()
    {
        let folder = scratch.0.join(at.to_string());
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let name = format!("{at}/x-%s.pcap");
        let refused = captured(&name, set);
        assert_eq!(refused.code(), Some(1), "{set:?}: {}", refused.stderr);
        let reported = &refused.stderr;
        assert!(reported.contains(folder.to_str().unwrap()), "{reported}");
        assert!(
            reported.contains("hint: with --user, later files"),
            "{reported}"
        );
        assert!(
            !reported.contains("reading from"),
            "it had begun: {reported}"
        );
        // The same directory, given to the user.
        files(folder.clone())
            .iter()
            .for_each(|file| std::fs::remove_file(file).unwrap());
        own(&folder).unwrap();
        let finished = captured(&name, set);
        assert_eq!(finished.code(), Some(0), "{set:?}: {}", finished.stderr);
        let written = files(folder);
        assert!(written.len() > 1, "{written:?}");
        for file in written {
            let owner = file.metadata().unwrap().uid();
            assert_eq!(owner, nobody.uid, "{}", file.display());
        }
    }
    // A file that will be overwritten belongs to another user.
    let folder = scratch.0.join("2");
    let last = files(folder).into_iter().max().unwrap();
    std::os::unix::fs::chown(&last, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&last, PermissionsExt::from_mode(0o644)).unwrap();
    let refused = captured("2/x-%s.pcap", &["-C", "20k", "-W", "3"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    let name = last.file_name().unwrap().to_str().unwrap();
    assert!(refused.stderr.contains(name), "{}", refused.stderr);
}
