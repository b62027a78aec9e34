//! The equivalents of nmap's and masscan's options.

/// What an nmap or masscan option is replaced by.
pub enum Meaning {
    /// This option, without a value.
    Is(&'static str),
    /// This option, with the next argument as its value.
    Takes(&'static str),
    /// Nothing: it is the default behavior.
    Nothing,
    /// Not supported: an error with this hint about the alternative.
    Hint(&'static str),
}
