//! Tests in which a process restricts itself, and then tries to open files.

use std::fs;
use std::path::Path;

use super::*;

/// Set in the environment of this test binary when it is started again; names the directory.
const CHILD: &str = "BW_LANDLOCK_CHILD";

fn rule(path: PathBuf, access: Access) -> Rule {
    Rule { path, access }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

/// Runs in a process of its own, because the restriction is permanent.
#[test]
fn child_restricts_files() {
    let root = skip::child_body!(CHILD);
    let root = Path::new(&root);
    let at = |path: &str| root.join(path);
    let open = File::open(at("outside/old")).unwrap();
    let rules = [
        rule(at("read"), Access::Read),
        rule(at("file/one"), Access::Read),
        rule(at("delete"), Access::Delete),
        rule(at("write"), Access::Write),
        rule(at("absent"), Access::Write),
        rule("/dev".into(), Access::Devices),
    ];
    let abi = abi();
    assert_eq!(confine(&rules).unwrap(), abi.is_ok());
    let Ok(abi) = abi else {
        println!("not supported");
        return;
    };
    // In a thread started later it is the same.
    let late = at("outside/old");
    refused(std::thread::spawn(move || fs::read(late)).join().unwrap());
    // What is open stays open.
    assert_eq!(io::read_to_string(open).unwrap(), "old");

    assert_eq!(fs::read(at("read/old")).unwrap(), b"old");
    assert_eq!(fs::read_dir(at("read")).unwrap().count(), 1);
    refused(fs::write(at("read/old"), "new"));
    refused(fs::write(at("read/new"), "new"));
    refused(fs::remove_file(at("read/old")));
    assert_eq!(fs::read(at("file/one")).unwrap(), b"old");
    refused(fs::read(at("file/two")));

    refused(fs::read(at("delete/old")));
    fs::remove_file(at("delete/old")).unwrap();

    fs::write(at("write/old"), "new").unwrap();
    fs::create_dir(at("write/folder")).unwrap();
    fs::write(at("write/folder/a"), "a").unwrap();
    fs::rename(at("write/folder/a"), at("write/folder/b")).unwrap();
    fs::hard_link(at("write/folder/b"), at("write/folder/c")).unwrap();
    // To another directory since version 2.
    let moved = fs::rename(at("write/folder/b"), at("write/b"));
    assert_eq!(moved.is_ok(), abi >= 2, "{moved:?}");
    refused(std::os::unix::fs::symlink("old", at("write/link")));

    refused(fs::write(at("outside/new"), "new"));
    // Not there when rules were made: they do not hold for it.
    refused(fs::create_dir(at("absent")));
    refused(fs::read(at("outside/old")));
    refused(fs::read_dir(at("outside")));
    refused(fs::read_dir("/"));
    refused(fs::remove_file(at("outside/old")));
    // A link inside leads nowhere outside.
    refused(fs::read(at("write/out/old")));
    refused(fs::write(at("write/out/new"), "new"));
    fs::write("/dev/null", "x").unwrap();
    // A second time there is less, never more.
    assert!(confine(&[rule(root.to_owned(), Access::Write)]).unwrap());
    refused(fs::read(at("outside/old")));
    refused(fs::write("/dev/null", "x"));
    println!("given up");
}

#[test]
fn files_outside_of_the_rules_are_given_up() {
    let root = std::env::temp_dir().join(format!("barewire-landlock-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    for folder in ["read", "file", "delete", "write", "outside"] {
        fs::create_dir_all(root.join(folder)).unwrap();
        fs::write(root.join(folder).join("old"), "old").unwrap();
    }
    for file in ["one", "two"] {
        fs::write(root.join("file").join(file), "old").unwrap();
    }
    std::os::unix::fs::symlink(root.join("outside"), root.join("write/out")).unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "landlock::tests::child_restricts_files",
            "--nocapture",
        ])
        .env(CHILD, &root)
        .output()
        .unwrap();
    fs::remove_dir_all(&root).unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{text}{errors}");
    if text.contains("not supported") {
        skip::skip!("Landlock, which this kernel does not have");
    }
    assert!(text.contains("given up"), "{text}");
}

#[test]
fn missing_features_have_hints() {
    for (code, word) in [
        (libc::ENOSYS, "CONFIG_SECURITY_LANDLOCK"),
        (libc::EOPNOTSUPP, "lsm="),
        (libc::EPERM, "landlock_add_rule"),
    ] {
        let error = absent(io::Error::from_raw_os_error(code));
        assert!(
            error.hint().is_some_and(|hint| hint.contains(word)),
            "{error}"
        );
    }
}

#[test]
fn a_version_has_the_rights_of_those_before() {
    for abi in 1..9 {
        assert_eq!(known(abi - 1) & !known(abi), 0, "{abi}");
    }
    let all = [Access::Read, Access::Devices, Access::Delete, Access::Write];
    for access in all {
        assert_eq!(access.rights() & !known(5), 0, "{access:?}");
    }
    assert_eq!(known(2) & right::TRUNCATE, 0);
    assert_eq!(known(7), 0xffff);
}
