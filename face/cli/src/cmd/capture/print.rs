//! Format of printed packets: the flags, and the style that they select.

use clap::ArgAction;
use runtime::capture::{Columns, Dump, Printer, Style, TimeStyle};
use sys::Result;

/// Printing packets.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
pub struct PrintArgs {
    /// Print the number of packets instead of the packets; with =COUNT, stop after COUNT packets,
    /// as -c does
    #[arg(id = "packet_count", long = "count", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "0")]
    #[arg(value_name = "COUNT")]
    pub count: Option<u64>,
    /// Same as --count
    #[arg(long, conflicts_with = "write")]
    pub count_only: bool,
    /// Print packets although they are written to a file
    #[arg(long)]
    pub print: bool,
    /// Ignored: names are never resolved
    #[arg(short = 'n', action = ArgAction::Count)]
    no_names: u8,
    /// Print a packet number at the beginning of each line
    #[arg(short = '#', long = "number")]
    number: bool,
    /// Print the lengths of the packet as captured and on the wire
    #[arg(long)]
    lengths: bool,
    /// Print absolute TCP sequence numbers, not relative to the first of the connection
    #[arg(short = 'S', long = "absolute-tcp-sequence-numbers")]
    absolute: bool,
    /// Quick output: addresses, ports and lengths only
    #[arg(short = 'q')]
    quick: bool,
    /// Verbose output: adds fields of the IP header
    #[arg(short = 'v', action = ArgAction::Count)]
    verbose: u8,
    /// Print the link-level header
    #[arg(short = 'e')]
    link: bool,
    /// Print these fields as columns, by tshark's or barewire's names: ip.src,tcp.dstport,tls.sni;
    /// --fields help lists them
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    #[arg(conflicts_with_all = ["json", "quick"])]
    fields: Vec<String>,
    /// Print the names of the fields in a line before the packets
    #[arg(long, requires = "fields")]
    header: bool,
    /// Separate fields by this character; /t is a tab, /s a space
    #[arg(long, default_value = "/t", value_parser = parse_separator, requires = "fields")]
    #[arg(value_name = "CHAR")]
    separator: char,
    /// Timestamp format: -t none, -tt seconds since 1970, -ttt since the previous packet, -tttt
    /// date and time, -ttttt since the first packet
    #[arg(short = 't', action = ArgAction::Count)]
    time: u8,
    /// Print timestamps with nanoseconds
    #[arg(long, conflicts_with_all = ["micro", "precision"])]
    pub nano: bool,
    /// Print packet data in hex; -xx includes the link-level header
    #[arg(short = 'x', action = ArgAction::Count)]
    hex: u8,
    /// Print packet data in hex and ASCII; -XX includes the link-level header
    #[arg(short = 'X', action = ArgAction::Count)]
    hex_text: u8,
    /// Print packet data in ASCII
    #[arg(short = 'A')]
    text: bool,
    /// Flush standard output after each batch of lines
    #[arg(short = 'l')]
    pub line_buffered: bool,
}

impl PrintArgs {
    /// Whether packets are only counted.
    pub fn counts(&self) -> bool {
        self.count_only || self.count == Some(0)
    }

    /// Whether only the names of fields are requested.
    pub fn lists_fields(&self) -> bool {
        self.fields.as_slice() == ["help"]
    }

    /// The printer of packets.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown field.
    pub fn printer(&self, nanoseconds: bool, json: bool) -> Result<Printer> {
        let printer = Printer::new(self.style(nanoseconds, json));
        if self.fields.is_empty() {
            return Ok(printer);
        }
        let columns = Columns::parse(&self.fields, self.separator)?;
        Ok(printer.with_columns(columns, self.header))
    }

    /// The style of lines.
    fn style(&self, nanoseconds: bool, json: bool) -> Style {
        Style {
            time: match self.time {
                0 => TimeStyle::Clock,
                1 => TimeStyle::None,
                2 => TimeStyle::Epoch,
                3 => TimeStyle::Delta,
                4 => TimeStyle::Date,
                _ => TimeStyle::SinceFirst,
            },
            nanoseconds,
            absolute: self.absolute,
            number: self.number,
            lengths: self.lengths,
            link: self.link,
            quick: self.quick,
            verbose: self.verbose > 0,
            dump: match (self.hex, self.hex_text, self.text) {
                (_, 1.., _) => Dump::HexText,
                (1.., ..) => Dump::Hex,
                (.., true) => Dump::Text,
                _ => Dump::None,
            },
            dump_link: self.hex > 1 || self.hex_text > 1,
            json,
        }
    }
}

/// Parses a separator as tshark does.
fn parse_separator(value: &str) -> std::result::Result<char, String> {
    let mut letters = value.chars();
    match (value, letters.next(), letters.next()) {
        ("/t" | "\\t", ..) => Ok('\t'),
        ("/s", ..) => Ok(' '),
        (_, Some(letter), None) if !letter.is_control() || letter == '\t' => Ok(letter),
        _ => Err("expected one character, /t or /s".into()),
    }
}
