//! Checks of seccomp and Landlock.

use sys::{Result, landlock, seccomp};

use super::Finding;

/// Checks seccomp.
pub fn seccomp() -> Finding {
    of_seccomp(seccomp::available())
}

fn of_seccomp(found: Result<()>) -> Finding {
    match found {
        Ok(()) => Finding::Yes("system calls can be blocked".into()),
        Err(error) => Finding::No(
            error.why().to_owned(),
            error.hint().unwrap_or("use a newer kernel").to_owned(),
        ),
    }
}

/// Checks Landlock.
pub fn landlock() -> Finding {
    of_landlock(landlock::abi())
}

fn of_landlock(found: Result<u32>) -> Finding {
    match found {
        Ok(abi @ ..3) => Finding::Partly(
            format!("ABI {abi}: files elsewhere can still be truncated"),
            "use Linux 6.2 or later (ABI 3)".into(),
        ),
        Ok(abi) => Finding::Yes(format!("ABI {abi}: access to files can be restricted")),
        Err(error) => Finding::No(
            error.why().to_owned(),
            error.hint().unwrap_or("use Linux 6.2 or later").to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use sys::{Error, ErrorKind};

    use super::*;

    #[test]
    fn old_landlock_versions_are_reported_as_partial() {
        assert!(matches!(of_landlock(Ok(2)), Finding::Partly(..)));
        assert!(matches!(of_landlock(Ok(7)), Finding::Yes(text) if text.contains('7')));
        let error = || Error::new(ErrorKind::Unsupported, "try", "there is none");
        let absent = of_landlock(Err(error().with_hint("get it")));
        let expected = Finding::No("there is none".into(), "get it".into());
        assert_eq!(absent, expected);
        assert!(matches!(of_seccomp(Err(error())), Finding::No(..)));
        assert!(matches!(of_seccomp(Ok(())), Finding::Yes(_)));
    }
}
