//! `cargo xtask clean-lab`: deletes namespaces whose creator was killed.

use std::process::ExitCode;

use anyhow::Result;

use crate::run::{need_root, no_more};

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    no_more(args)?;
    need_root("clean-lab")?;
    let swept = crate::netns::sweep()?;
    for name in &swept {
        println!("deleted {name}");
    }
    println!("{} stale namespaces", swept.len());
    Ok(ExitCode::SUCCESS)
}
