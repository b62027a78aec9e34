//! The input ports of a command: one, several interfaces at once, or capture files that are merged.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use port::{PortAccount, PortName, PortOptions, QueueAccount};
use sys::create::kept;
use sys::privileges::Capability;
use sys::{Error, ErrorKind, Result};

use crate::args;
use crate::report::counted;

/// Maximum number of names shown.
const NAMED_MAX: usize = 3;
/// Number of inputs for which the usual limit of descriptors may be too low.
const MANY: usize = 100;
/// Maximum size of a list of names.
const LIST_LEN_MAX: u64 = 16 << 20;

/// Names of one or more ports.
#[derive(Clone, Debug)]
pub struct Inputs {
    names: Vec<String>,
}

impl Inputs {
    /// Creates inputs with at least one name. No output replaces one of the files.
    pub fn new(names: Vec<String>) -> Self {
        let inputs = Self { names };
        inputs
            .files()
            .iter()
            .for_each(|file| kept::keep_input(file));
        inputs
    }

    /// Reads the names of capture files from the lines of a file, or of standard input for `-`, as
    /// with tcpdump's -V. Empty lines are skipped.
    ///
    /// # Errors
    /// Errors of the file; `InvalidInput` if it has no name.
    pub fn listed(list: &Path) -> Result<Self> {
        let text = match list.to_str() {
            Some("-") => {
                std::io::read_to_string(std::io::Read::take(std::io::stdin(), LIST_LEN_MAX))
            }
            _ => std::fs::File::open(list)
                .and_then(|file| std::io::read_to_string(std::io::Read::take(file, LIST_LEN_MAX))),
        };
        let what = || format!("read the list of files {}", list.display());
        let text = text.map_err(|error| Error::from_io(what(), error))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let names: Vec<String> = lines.map(|line| format!("file:{line}")).collect();
        match names.is_empty() {
            true => Err(Error::new(
                ErrorKind::InvalidInput,
                what(),
                "it lists no file",
            )),
            false => Ok(Self::new(names)),
        }
    }

    /// The number of ports.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The first name.
    pub fn first(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// The names in one line, only the first few of many. A single name is unchanged.
    pub fn label(&self) -> String {
        if let [name] = self.names.as_slice() {
            return name.clone();
        }
        let shown = |name: &String| name.strip_prefix("file:").unwrap_or(name).to_owned();
        let names = self.names.iter().take(NAMED_MAX).map(shown);
        let mut label = names.collect::<Vec<_>>().join(", ");
        if self.names.len() > NAMED_MAX {
            label += &format!(" and {} more", self.names.len() - NAMED_MAX);
        }
        label
    }

    /// Opens them as one port.
    ///
    /// # Errors
    /// As [`port::open_all`].
    pub fn open(&self, options: &PortOptions) -> Result<port::Port> {
        let names: Vec<&str> = self.names().collect();
        if names.len() > MANY {
            sys::descriptors::raise_limit();
        }
        port::open_all(&names, options)
    }

    /// The inputs that are files.
    pub fn files(&self) -> Vec<PathBuf> {
        let parsed = self.names().filter_map(|name| PortName::parse(name).ok());
        let is_file = |row: &port::Backend| row.target == port::Target::File;
        let files = parsed.filter(|name| name.backend().is_some_and(is_file));
        files.map(|name| PathBuf::from(name.target)).collect()
    }

    /// Size in bytes of the files, if none is compressed.
    pub fn file_len(&self) -> Option<u64> {
        let len = |path: PathBuf| {
            let end = path.extension().unwrap_or_default();
            let data = std::fs::metadata(&path).ok().filter(Metadata::is_file)?;
            (end != "gz" && end != "zst").then_some(data.len())
        };
        self.files().into_iter().map(len).sum()
    }

    /// How much was not read when the reader of standard output closed it, which ended the run.
    pub fn unread(&self, account: &PortAccount, is_file: bool) -> String {
        let total = account.rx_total();
        let read = counted(total.delivered, "packet");
        let rest = match self.file_len() {
            _ if !is_file => String::new(),
            Some(len) if len != 0 => match len.saturating_sub(read_len(&total)) * 100 / len {
                0 => ", all that the input has; not everything was printed".to_owned(),
                part => format!("; about {part} % of the input was not read"),
            },
            _ => "; the rest of the input was not read".to_owned(),
        };
        format!("standard output was closed: ended after {read}{rest}")
    }

    /// Whether one of them calls bpf(2) once it is open.
    ///
    /// # Errors
    /// As [`PortName::parse`].
    pub fn calls_bpf(&self) -> Result<bool> {
        args::calls_bpf(&self.names().collect::<Vec<_>>())
    }

    /// The capabilities needed to read the counters of all ports; see
    /// [`args::to_read_counters_of`].
    ///
    /// # Errors
    /// As [`PortName::parse`].
    pub fn to_read_counters(&self) -> Result<Vec<Capability>> {
        args::to_read_counters_of(&self.names().collect::<Vec<_>>())
    }
}

/// Reads the lines of a file of UTF-8 text, or of standard input for `-`, of at most `len_max`
/// bytes, one after the other.
///
/// # Errors
/// The system's error; `InvalidInput` if it is longer or no UTF-8; the callback's error.
pub fn read_lines(
    path: &Path,
    len_max: u64,
    mut take: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    use std::io::{BufRead as _, BufReader, Read as _};
    let what = || format!("read {}", path.display());
    let file: Box<dyn std::io::Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => {
            let file = std::fs::File::open(path);
            Box::new(file.map_err(|error| Error::from_io(what(), error))?)
        }
    };
    let mut reader = BufReader::new(file.take(len_max + 1));
    let (mut line, mut len) = (Vec::new(), 0);
    for number in 1u64.. {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        let read = read.map_err(|error| Error::from_io(what(), error))?;
        if read == 0 {
            return Ok(());
        }
        len += read as u64;
        if len > len_max {
            let why = format!("it is larger than {} KiB", len_max >> 10);
            return Err(Error::new(ErrorKind::InvalidInput, what(), why));
        }
        let text = std::str::from_utf8(&line).map_err(|_| {
            let why = format!("line {number}: it is not UTF-8 text");
            Error::new(ErrorKind::InvalidInput, what(), why)
        })?;
        // Windows' editors begin UTF-8 files with a byte order mark.
        let text = match number {
            1 => text.strip_prefix('\u{feff}').unwrap_or(text),
            _ => text,
        };
        take(text.trim_end_matches(['\r', '\n']))?;
    }
    Ok(())
}

/// Reads a file, or standard input for `-`, of at most `len_max` bytes. It is read, not measured: a
/// device or a pipe has no length.
///
/// # Errors
/// The system's error; `InvalidInput` if it is longer.
pub fn read_bytes(path: &Path, len_max: u64) -> Result<Vec<u8>> {
    use std::io::Read as _;
    let what = || format!("read {}", path.display());
    let mut bytes = Vec::new();
    let len = match path == Path::new("-") {
        true => std::io::stdin().take(len_max + 1).read_to_end(&mut bytes),
        false => std::fs::File::open(path)
            .and_then(|file| file.take(len_max + 1).read_to_end(&mut bytes)),
    };
    let len = len.map_err(|error| Error::from_io(what(), error))?;
    if len as u64 > len_max {
        let why = format!("it is larger than {} KiB", len_max >> 10);
        return Err(Error::new(ErrorKind::InvalidInput, what(), why));
    }
    Ok(bytes)
}

/// Checks that the packets sent to `port` come from a capture file or standard input: with the
/// arguments in the wrong order, the capture would be the output.
///
/// # Errors
/// `InvalidInput`.
pub fn check_capture(file: &str, port: &str) -> Result<()> {
    let is_file = |name: &str| {
        let name = PortName::parse(name)?;
        Ok(name.backend().map(|row| row.target) == Some(port::Target::File))
    };
    if is_file(file)? {
        return Ok(());
    }
    let why = "packets are sent from a capture file or from standard input";
    let hint = match is_file(port)? {
        true => format!("the file comes first: barewire send {port} {file}"),
        false => format!("to send what a port receives: barewire forward {file} {port}"),
    };
    let what = format!("send the packets of {file}");
    Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint))
}

/// Refuses to send packets to a capture file that has any: arguments in the wrong order must not
/// destroy the capture.
///
/// # Errors
/// `InvalidInput`.
pub fn refuse_replacing(what: &str, port: &str, example: &str) -> Result<()> {
    let name = PortName::parse(port)?;
    let is_file = name
        .backend()
        .is_some_and(|row| row.target == port::Target::File);
    let data = std::fs::metadata(&name.target).ok();
    if !is_file || !data.is_some_and(|data| data.is_file() && data.len() != 0) {
        return Ok(());
    }
    let why = format!("the file {} exists, and would be overwritten", name.target);
    let hint = format!("the input comes first: {example}; to write a new file, remove the old one");
    Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(hint))
}

/// Bytes read of a file. Packet records are some bytes longer than the packets.
pub fn read_len(total: &QueueAccount) -> u64 {
    total.delivered_bytes + total.delivered * 16
}

/// Device and inode of a regular file.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = std::fs::metadata(path).ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

/// Splits words into ports and a filter: the first word is a port, and so are following ones that
/// name a port and cannot start a filter.
pub fn split(words: &[String]) -> (&[String], &[String]) {
    let more = words.get(1..).map_or(0, |words| more(words).0.len());
    words.split_at((1 + more).min(words.len()))
}

/// Splits the words after a port into more ports, as a shell expands `-r *.pcap`, and a filter.
pub fn more(words: &[String]) -> (&[String], &[String]) {
    let ports = words.iter().take_while(|word| is_another_port(word));
    words.split_at(ports.count())
}

/// Whether a word after a port also names one: by a scheme, as a capture file, or as an interface
/// whose name is not a filter keyword.
fn is_another_port(word: &str) -> bool {
    if word.contains(':') {
        return PortName::parse(word).is_ok_and(|name| name.backend().is_some());
    }
    if is_path(word) {
        return true;
    }
    !filter::expression::is_keyword(word) && nic::interface(word).is_ok()
}

/// Whether a word is the path of a file and no part of a filter, such as `10.0.0.0/8`: it exists
/// and its name has a dot or a slash, it has the suffix of a capture file, or a directory before a
/// slash. A file that does not exist is then reported as such.
fn is_path(word: &str) -> bool {
    if word.contains(['.', '/']) && Path::new(word).is_file() {
        return true;
    }
    let is_operator = |c: char| c.is_whitespace() || "()[]<>=!&|".contains(c);
    let kind = PortName::parse(word).ok().and_then(|name| name.backend());
    let is_file = kind.is_some_and(|row| row.target == port::Target::File);
    if !is_file || word.contains(is_operator) {
        return false;
    }
    let Some((folder, name)) = word.rsplit_once('/') else {
        return true;
    };
    let is_length = name.starts_with(|c: char| c.is_ascii_digit());
    let is_folder = folder.is_empty() || folder.starts_with(['/', '.']);
    let first = folder.split('/').next().unwrap_or_default();
    is_folder || !is_length && !filter::expression::is_keyword(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn lines_are_read_one_by_one_within_a_bound() {
        let path = std::env::temp_dir().join(format!("barewire-lines-{}", std::process::id()));
        let read = |bytes: &[u8], len_max| {
            std::fs::write(&path, bytes).unwrap();
            let mut lines = Vec::new();
            let result = read_lines(&path, len_max, |line| {
                lines.push(line.to_owned());
                Ok(())
            });
            result.map(|()| lines).map_err(|error| error.to_string())
        };
        assert_eq!(read(b"", 9).unwrap(), [""; 0]);
        assert_eq!(read(b"a\r\n\nb", 5).unwrap(), ["a", "", "b"]);
        assert!(read(b"a\r\n\nb", 4).unwrap_err().contains("larger than"));
        let error = read(b"a\n\xff\n", 9).unwrap_err();
        assert!(error.contains("line 2: it is not UTF-8"), "{error}");
        let failed = read_lines(&path, 9, |_| {
            Err(Error::new(ErrorKind::InvalidInput, "take", "no"))
        });
        assert!(failed.unwrap_err().to_string().contains("no"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn words_are_split_into_ports_and_a_filter() {
        for (text, count) in [
            ("eth0", 1),
            ("lo lo", 2),
            ("eth0 tcp port 80", 1),
            ("lo udp lo", 1),
            ("lo memory:x udp", 2),
            ("lo 2001:db8::1", 1),
            ("lo 10.0.0.1", 1),
            ("a.pcap missing.pcap", 2),
            ("a.pcap /no/such2 udp", 2),
            ("a.pcap /2", 2),
            ("a.pcap ./x ../y/2 no/such -", 5),
            ("a.pcap 10.0.0.0/8", 1),
            ("a.pcap 10/8 or udp", 1),
            ("a.pcap len/2 > 9", 1),
            ("a.pcap ip[2:2]/4 > 9", 1),
            ("a.pcap (10.0.0.0/8)", 1),
        ] {
            let words = words(text);
            let (ports, filter) = split(&words);
            assert_eq!(
                (ports.len(), filter.len()),
                (count, words.len() - count),
                "{text}"
            );
        }
        assert_eq!(split(&[]).0.len(), 0);
    }

    #[test]
    fn an_existing_file_is_a_port() {
        let file = tempfile();
        let words = [
            "x.pcap".to_owned(),
            file.clone(),
            "tcp".into(),
            file.clone(),
        ];
        let (ports, filter) = split(&words);
        assert_eq!((ports.len(), filter.len()), (2, 2));
        std::fs::remove_file(file).unwrap();
    }

    fn tempfile() -> String {
        let path =
            std::env::temp_dir().join(format!("barewire-inputs-{}.pcap", std::process::id()));
        std::fs::write(&path, "").unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn only_the_first_of_many_names_are_shown() {
        let inputs = Inputs::new(words("a b c d e"));
        assert_eq!(inputs.label(), "a, b, c and 2 more");
        assert_eq!(Inputs::new(words("a b")).label(), "a, b");
    }
}
