//! Selects the accelerator: KVM if a guest works with it, otherwise emulation.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::{Options, dir_of, fetch, guest};

/// The accelerator to use: the user's choice, or the result of a short boot, which is done once.
pub fn choose(parts: &fetch::Parts, options: &Options) -> Result<String> {
    if options.machine.counts_instructions {
        return Ok("tcg".into());
    }
    if let Some(chosen) = &options.accelerator {
        return Ok(chosen.clone());
    }
    let usable = |path: &Path| {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
    };
    if usable(Path::new("/dev/kvm")).is_err() {
        return Ok("tcg".into());
    }
    // Another machine, or another kernel, may give another result.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let memory = fetch::cache()?.join(format!("kvm-{}", parts.release));
    if let Ok(text) = std::fs::read_to_string(&memory)
        && let Some((of, answer)) = text.split_once(' ')
        && of == boot.trim()
    {
        return Ok(answer.to_owned());
    }
    eprintln!("lab: trying KVM");
    let probe = guest::Run {
        job: "exit 0".into(),
        programs: Vec::new(),
        limit: Duration::from_secs(15),
        boot_limit: Some(Duration::from_secs(15)),
        accelerator: "kvm",
        machine: guest::Machine::default(),
    };
    let outcome = guest::run(parts, &probe, &dir_of("kvm")?, |_| None);
    let works = outcome.is_ok_and(|outcome| outcome.code == Some(0) && !outcome.hung);
    let answer = if works { "kvm" } else { "tcg" };
    std::fs::write(memory, format!("{} {answer}", boot.trim()))?;
    Ok(answer.into())
}
