//! The equivalents of nmap's and masscan's options.

/// What an nmap or masscan option is replaced by.
pub enum Meaning {
    /// This option, without a value.
    Is(&'static str),
    /// This option, with the next argument as its value; without a name, a target.
    Takes(&'static str),
    /// Nothing: it is the default behavior.
    Nothing,
    /// Nothing, and neither does its value: it tunes something that does not exist here.
    Ignored,
    /// Not supported: an error with this hint about the alternative.
    Hint(&'static str),
}
