//! Why rules cannot become a program.

use std::fmt;

use bpf::asm::AsmError;
use bpf::translate::TranslateError;

use crate::names::NAMES_MAX;
use crate::prefix::{LISTS_MAX, PREFIXES_MAX};
use crate::rule::RULES_MAX;

/// Why no program was emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// More than [`RULES_MAX`] rules.
    TooMany {
        /// Number of rules.
        count: usize,
    },
    /// More than [`LISTS_MAX`] different prefix lists.
    TooManyLists {
        /// Number of lists.
        count: usize,
    },
    /// More than [`PREFIXES_MAX`] prefixes in all lists together.
    TooManyPrefixes {
        /// Number of prefixes.
        count: usize,
    },
    /// More than [`LISTS_MAX`] different lists of names.
    TooManyNameLists {
        /// Number of lists.
        count: usize,
    },
    /// More than [`NAMES_MAX`] names in all lists together.
    TooManyNames {
        /// Number of names.
        count: usize,
    },
    /// A rule's filter cannot run in XDP.
    Rule {
        /// The rule's name.
        name: String,
        /// The reason.
        why: TranslateError,
    },
    /// A rule answers SYNs, but this kernel or hook lacks the helpers.
    Challenge {
        /// The rule's name.
        name: String,
    },
    /// A rule redirects to user space, but there are no sockets, or the hook is not XDP.
    User {
        /// The rule's name.
        name: String,
    },
    /// The program is too long.
    Asm(AsmError),
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { count } => write!(f, "{count} rules; the limit is {RULES_MAX}"),
            Self::TooManyLists { count } => {
                write!(f, "{count} prefix lists; the limit is {LISTS_MAX}")
            }
            Self::TooManyPrefixes { count } => {
                write!(
                    f,
                    "{count} prefixes in all lists; the limit is {PREFIXES_MAX}"
                )
            }
            Self::TooManyNameLists { count } => {
                write!(f, "{count} lists of names; the limit is {LISTS_MAX}")
            }
            Self::TooManyNames { count } => {
                write!(f, "{count} names in all lists; the limit is {NAMES_MAX}")
            }
            Self::Rule { name, why } => write!(f, "rule \"{name}\": {why}"),
            Self::Challenge { name } => {
                write!(f, "rule \"{name}\": challenge needs XDP and Linux 5.18")
            }
            Self::User { name } => {
                write!(f, "rule \"{name}\": only XDP can redirect to user space")
            }
            Self::Asm(error) => write!(f, "too many or too long rules: {error}"),
        }
    }
}

impl std::error::Error for EmitError {}
