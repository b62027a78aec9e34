//! The kernel that the verdicts of rules need.

use ::guard::{Rule, Verdict};
use sys::{Error, KernelVersion, Unsupported};

const EPERM: i32 = 1;

/// SYN cookies from XDP: the packet is made longer and shorter, which programs without the flag for
/// several buffers do not do.
const CHALLENGE: Unsupported = Unsupported {
    feature: "the verdict challenge",
    since: Some(KernelVersion::new(5, 18)),
};
/// Atomic exchange (`BPF_CMPXCHG`), by which processors share a limit.
const LIMIT: Unsupported = Unsupported {
    feature: "a limit",
    since: Some(KernelVersion::new(5, 12)),
};

/// The error about a program that was refused, with the verdict that this kernel is too old for, if
/// there is one.
pub(super) fn too_old(error: Error, rules: &[Rule], kernel: Option<KernelVersion>) -> Error {
    let Some(kernel) = kernel.filter(|_| error.os_code() != Some(EPERM)) else {
        return error;
    };
    let needed = rules.iter().filter_map(|rule| match rule.verdict {
        Verdict::Challenge => Some(CHALLENGE),
        Verdict::Limit(_) | Verdict::LimitSources(..) => Some(LIMIT),
        _ => None,
    });
    match needed.max_by_key(|feature| feature.since) {
        Some(feature) if feature.since > Some(kernel) => {
            Error::unsupported("load the rules", feature)
                .with_hint("`drop`, `pass` and `count` work with every kernel from Linux 5.10 on")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::ErrorKind;

    #[test]
    fn the_newest_verdict_decides() {
        let rule = |verdict| Rule {
            id: 0,
            name: String::new(),
            matcher: None,
            names: None,
            sources: None,
            destinations: None,
            verdict,
            priority: 0,
        };
        let limit = Verdict::Limit(::guard::Limit::new(10, 1).unwrap());
        let all = [Verdict::Drop, limit, Verdict::Challenge].map(rule);
        let of = |rules: &[Rule], minor| {
            let refusal = Error::new(ErrorKind::Io, "load", "the verifier's reason");
            let error = too_old(refusal, rules, Some(KernelVersion::new(5, minor)));
            (error.kind(), error.to_string())
        };
        for (rules, minor, feature) in [
            (&all[..], 10, Some("challenge needs Linux 5.18")),
            (&all[..], 15, Some("challenge needs Linux 5.18")),
            (&all[..], 18, None),
            (&all[..2], 11, Some("limit needs Linux 5.12")),
            (&all[..2], 12, None),
            (&all[..1], 10, None),
        ] {
            let (kind, text) = of(rules, minor);
            let expected = feature.unwrap_or("the verifier's reason");
            assert!(text.contains(expected), "5.{minor}: {text}");
            assert_eq!(kind == ErrorKind::Unsupported, feature.is_some());
        }
    }
}
