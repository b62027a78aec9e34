//! One owner at a time, in a directory that nobody else can change.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use super::*;

/// A directory of root's, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    /// `None` if this process is not root.
    fn create(name: &str) -> Option<Self> {
        let name = format!("barewire-owner-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o755).create(&path).unwrap();
        let this = Self(path);
        (fs::metadata(&this.0).unwrap().uid() == 0).then_some(this)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

macro_rules! folder {
    ($name:literal) => {
        match Folder::create($name) {
            Some(folder) => folder,
            None => skip::skip!("this test needs root"),
        }
    };
}

fn own(file: &Path) -> Result<Owner> {
    Owner::of_file(file, || Kind::Rules.busy("eth0"))
}

#[test]
fn there_is_one_owner_and_nothing_is_left_of_it() {
    let folder = folder!("one");
    let file = folder.0.join("locks").join("a");
    let owner = own(&file).unwrap();
    let refused = own(&file).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().contains("another barewire guard"));
    // Another one of the same directory.
    let other = own(&folder.0.join("locks").join("b")).unwrap();
    drop(other);
    assert!(file.exists());
    drop(owner);
    // Nothing is left, and one can be the owner again.
    assert!(!folder.0.join("locks").exists());
    drop(own(&file).unwrap());
}

#[test]
fn commands_of_a_killed_owner_own_it_until_they_end() {
    let folder = folder!("killed");
    let file = folder.0.join("locks").join("a");
    // Unlike `Owner`, a killed process deletes nothing.
    let lock = open_lock(&folder.0.join("locks"), &file).unwrap();
    lock.try_lock().unwrap();
    let mut command = std::process::Command::new("cat");
    let mut child = command.stdin(Stdio::piped()).stdout(lock).spawn().unwrap();
    drop(command);
    assert_eq!(own(&file).unwrap_err().kind(), ErrorKind::Busy);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(own(&file).unwrap());
    assert!(!file.exists());
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let folder = folder!("squatted");
    let locks = folder.0.join("locks");
    let file = locks.join("a");
    let refused = |why: &str| {
        let error = own(&file).unwrap_err();
        assert!(error.to_string().contains("root's alone"), "{why}: {error}");
    };
    // Of another user, writable by others, a link, a file.
    DirBuilder::new().mode(0o700).create(&locks).unwrap();
    chown(&locks, Some(65_534), None).unwrap();
    refused("another user's");
    chown(&locks, Some(0), None).unwrap();
    fs::set_permissions(&locks, Permissions::from_mode(0o770)).unwrap();
    refused("writable");
    fs::remove_dir(&locks).unwrap();
    symlink("/root", &locks).unwrap();
    refused("a link");
    fs::remove_file(&locks).unwrap();
    File::create(&locks).unwrap();
    refused("a file");
    fs::remove_file(&locks).unwrap();
    // Its parent.
    fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
    refused("a writable parent");
    fs::set_permissions(&folder.0, Permissions::from_mode(0o1777)).unwrap();
    own(&file).unwrap();
}

#[test]
fn locks_of_programs_and_rules_have_different_names() {
    let name = |kind: Kind, of| kind.name(7, of);
    assert_ne!(name(Kind::Program, "eth0"), name(Kind::Rules, "eth0"));
    assert_ne!(name(Kind::Program, "iptables-7"), name(Kind::Rules, "7"));
}

#[test]
fn the_helper_of_a_killed_owner_waits_for_its_commands_and_yields_to_a_new_owner() {
    let folder = folder!("helper");
    let locks = folder.0.join("locks");
    let file = locks.join("a");
    let lock = open_lock(&locks, &file).unwrap();
    lock.try_lock().unwrap();
    // No process has the number 0.
    (&lock).write_all(b"0 7").unwrap();
    let mut command = std::process::Command::new("cat");
    let mut child = command.stdin(Stdio::piped()).stdout(lock).spawn().unwrap();
    drop(command);
    let helper = {
        let file = file.clone();
        thread::spawn(move || Owner::succeed_in(&file, "0 7").map(|owner| owner.is_some()))
    };
    thread::sleep(LOOK);
    assert!(!helper.is_finished());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(helper.join().unwrap().unwrap());
    assert!(!file.exists());
    // Another owner, whose name is in the file.
    let owner = own(&file).unwrap();
    let name = name_in(&file).unwrap();
    assert!(is_alive(&name), "{name}");
    assert!(Owner::succeed_in(&file, "0 7").unwrap().is_none());
    drop(owner);
}

#[test]
fn a_process_is_alive_until_it_is_a_zombie_and_never_again() {
    let mut command = std::process::Command::new("cat");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let name = process(child.id()).unwrap();
    assert!(is_alive(&name));
    // Another process of the same number.
    assert!(!is_alive(&format!("{} 1", child.id())));
    child.kill().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while is_alive(&name) {
        assert!(Instant::now() < until);
        thread::sleep(LOOK);
    }
    child.wait().unwrap();
    assert!(!is_alive(&name));
    for name in ["", "x", "0 7", "-1 7"] {
        assert!(!is_alive(name), "{name}");
    }
}
