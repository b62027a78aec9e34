//! Rights given up: what is kept, and what is gone.

use std::process::Command;

use lab::{require, skip};
use sys::rights::{Capability, User, give_up, has};

/// Tells this test binary, started again, that it may change its user.
const CHILD: &str = "BW_RIGHTS_CHILD";

#[test]
fn child_becomes_another_user() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let nobody = User::find("nobody").unwrap();
    let keep = [Capability::NetRaw, Capability::DacOverride];
    give_up(Some(&nobody), &keep).unwrap();
    assert_eq!(nix::unistd::geteuid().as_raw(), nobody.uid);
    assert!(has(Capability::NetRaw) && has(Capability::DacOverride));
    assert!(!has(Capability::NetAdmin));
    give_up(None, &[Capability::DacOverride]).unwrap();
    assert!(has(Capability::DacOverride) && !has(Capability::NetRaw));
    give_up(Some(&nobody), &[]).unwrap();
    assert!(!has(Capability::DacOverride), "gone with the last");
    println!("kept and gone");
}

/// In a process of its own: the C library changes the user of all threads.
#[test]
fn what_is_kept_outlives_the_change_of_user() {
    require!(skip::root());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_becomes_another_user", "--nocapture"]);
    let output = command.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("kept and gone"), "{text}");
}
