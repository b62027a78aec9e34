//! A terminal that interprets the control sequences of the live view (ECMA-48): moves, erasing,
//! colours. All others are skipped.

/// The style of a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Foreground colour, red to blue; `None` is the terminal's own.
    pub front: Option<[u8; 3]>,
    /// Background colour.
    pub back: Option<[u8; 3]>,
    /// Bold.
    pub is_bold: bool,
    /// Faint.
    pub is_dim: bool,
    /// Colours swapped.
    pub is_reversed: bool,
}

/// A character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The character.
    pub char: char,
    /// Its style.
    pub style: Style,
}

const EMPTY: Cell = Cell {
    char: ' ',
    style: Style {
        front: None,
        back: None,
        is_bold: false,
        is_dim: false,
        is_reversed: false,
    },
};

/// The sixteen numbered colours of xterm.
const COLOURS: [[u8; 3]; 16] = [
    [0, 0, 0],
    [205, 49, 49],
    [13, 188, 121],
    [229, 229, 16],
    [66, 132, 220],
    [188, 63, 188],
    [17, 168, 205],
    [204, 204, 204],
    [118, 118, 118],
    [241, 76, 76],
    [35, 209, 139],
    [245, 245, 67],
    [92, 160, 242],
    [214, 112, 214],
    [41, 184, 219],
    [242, 242, 242],
];

/// Maximum length of a sequence.
const SEQUENCE_LEN: usize = 64;

/// State of the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// Between `ESC [` and the final byte.
    Control(String),
    /// Between `ESC ]` and its end.
    Command,
}

/// A screen of fixed size.
#[derive(Clone, Debug)]
pub struct Screen {
    columns: usize,
    cells: Vec<Cell>,
    column: usize,
    row: usize,
    style: Style,
    state: State,
    /// The first bytes of an incomplete character.
    partial: Vec<u8>,
}

impl Screen {
    /// Creates an empty screen.
    pub fn new(columns: usize, rows: usize) -> Screen {
        Screen {
            columns,
            cells: vec![EMPTY; columns * rows],
            column: 0,
            row: 0,
            style: Style::default(),
            state: State::Text,
            partial: Vec::new(),
        }
    }

    /// Iterates over the lines.
    pub fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunks(self.columns)
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether the screen is empty.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| *cell == EMPTY)
    }

    /// The text, without trailing spaces and empty lines.
    pub fn text(&self) -> String {
        let lines = self.rows().map(|row| {
            let line: String = row.iter().map(|cell| cell.char).collect();
            line.trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    /// Handles a program's output; characters and sequences may be split anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.partial.extend(bytes);
        let bytes = std::mem::take(&mut self.partial);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    text.chars().for_each(|char| self.char(char));
                    return;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    String::from_utf8_lossy(good)
                        .chars()
                        .for_each(|char| self.char(char));
                    match error.error_len() {
                        Some(len) => rest = &bad[len..],
                        None => {
                            self.partial = bad.to_vec();
                            return;
                        }
                    }
                }
            }
        }
    }

    fn char(&mut self, char: char) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.plain(char),
            State::Escape => match char {
                '[' => self.state = State::Control(String::new()),
                ']' => self.state = State::Command,
                _ => {}
            },
            State::Control(mut words) => match char {
                '@'..='~' => self.control(&words, char),
                _ if words.len() < SEQUENCE_LEN => {
                    words.push(char);
                    self.state = State::Control(words);
                }
                _ => {}
            },
            State::Command => match char {
                '\x07' => {}
                '\x1b' => self.state = State::Escape,
                _ => self.state = State::Command,
            },
        }
    }

    fn plain(&mut self, char: char) {
        match char {
            '\x1b' => self.state = State::Escape,
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            '\x08' => self.column = self.column.saturating_sub(1),
            char if char.is_control() => {}
            char => {
                let style = self.style;
                if self.column < self.columns
                    && let Some(cell) = self.cells.get_mut(self.row * self.columns + self.column)
                {
                    *cell = Cell { char, style };
                }
                self.column += 1;
            }
        }
    }

    fn control(&mut self, words: &str, last: char) {
        // Omitted numbers are 0, and numbers that are too large are limited.
        let number = |word: &str| match word {
            "" => 0,
            word => word.parse().unwrap_or(usize::MAX),
        };
        let numbers: Vec<usize> = words.split(';').map(number).collect();
        let nth = |at: usize| numbers.get(at).copied().unwrap_or(0);
        let steps = nth(0).max(1);
        match last {
            'H' | 'f' => {
                self.row = nth(0).saturating_sub(1);
                self.column = nth(1).saturating_sub(1);
            }
            'A' => self.row = self.row.saturating_sub(steps),
            'B' => self.row = self.row.saturating_add(steps),
            'C' => self.column = self.column.saturating_add(steps),
            'D' => self.column = self.column.saturating_sub(steps),
            'G' => self.column = steps - 1,
            'd' => self.row = steps - 1,
            'J' if nth(0) >= 2 => self.cells.fill(EMPTY),
            'J' => self.erase(self.row * self.columns + self.column, self.cells.len()),
            'K' => self.erase(
                self.row * self.columns + self.column,
                (self.row + 1) * self.columns,
            ),
            'm' => self.colours(&numbers),
            _ => {}
        }
        // Far outside is treated as just outside, and cannot overflow.
        self.row = self.row.min(self.cells.len());
        self.column = self.column.min(self.columns);
    }

    fn erase(&mut self, from: usize, to: usize) {
        let to = to.min(self.cells.len());
        if let Some(cells) = self.cells.get_mut(from..to) {
            cells.fill(EMPTY);
        }
    }

    /// Select Graphic Rendition (ECMA-48 8.3.117), with xterm's 38 and 48.
    fn colours(&mut self, numbers: &[usize]) {
        let mut numbers = numbers.iter().copied();
        while let Some(number) = numbers.next() {
            match number {
                0 => self.style = Style::default(),
                1 => self.style.is_bold = true,
                2 => self.style.is_dim = true,
                7 => self.style.is_reversed = true,
                22 => (self.style.is_bold, self.style.is_dim) = (false, false),
                27 => self.style.is_reversed = false,
                30..=37 => self.style.front = Some(COLOURS[number - 30]),
                38 => self.style.front = extended(&mut numbers),
                39 => self.style.front = None,
                40..=47 => self.style.back = Some(COLOURS[number - 40]),
                48 => self.style.back = extended(&mut numbers),
                49 => self.style.back = None,
                90..=97 => self.style.front = Some(COLOURS[number - 82]),
                100..=107 => self.style.back = Some(COLOURS[number - 92]),
                _ => {}
            }
        }
    }
}

/// The colour after 38 or 48: `5;N` of the palette, or `2;R;G;B`.
fn extended(numbers: &mut impl Iterator<Item = usize>) -> Option<[u8; 3]> {
    let byte = |number: Option<usize>| u8::try_from(number.unwrap_or(0)).unwrap_or(u8::MAX);
    match numbers.next()? {
        5 => {
            let number = byte(numbers.next());
            Some(match number {
                0..16 => COLOURS[usize::from(number)],
                16..232 => {
                    let cube = number - 16;
                    let level = |step: u8| if step == 0 { 0 } else { 55 + step * 40 };
                    [level(cube / 36), level(cube / 6 % 6), level(cube % 6)]
                }
                _ => [8 + (number - 232) * 10; 3],
            })
        }
        2 => Some([
            byte(numbers.next()),
            byte(numbers.next()),
            byte(numbers.next()),
        ]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_and_erasing_are_followed() {
        let mut screen = Screen::new(10, 3);
        screen.feed(b"\x1b[?1049h\x1b[2Jfirst\x1b[2;3Hsecond\x1b[3;1Hxyz\x1b[3;2H\x1b[K");
        assert_eq!(screen.text(), "first\n  second\nx");
        screen.feed(b"\x1b[1;1H\x1b[J");
        assert!(screen.is_empty());
        // Outside nothing is drawn.
        screen.feed(b"\x1b[99;99Hx\x1b[1;9Hlong\x1b[99999999999999999999;1Hx\x1b[99999B\n");
        assert_eq!(screen.text(), "        lo");
    }

    #[test]
    fn characters_and_sequences_may_be_cut_anywhere() {
        let bytes = "\x1b[38;5;196m\x1b]0;title\x07▾ä\x1b[0m.\u{fffd}".as_bytes();
        let mut whole = Screen::new(8, 1);
        whole.feed(bytes);
        let mut cut = Screen::new(8, 1);
        bytes.iter().for_each(|byte| cut.feed(&[*byte]));
        assert_eq!(cut.cells, whole.cells);
        assert_eq!(whole.text(), "▾ä.\u{fffd}");
        assert_eq!(whole.cells[0].style.front, Some([255, 0, 0]));
        assert_eq!(whole.cells[2].style, Style::default());
    }

    #[test]
    fn colours_are_those_of_xterm() {
        let mut screen = Screen::new(4, 1);
        screen.feed(b"\x1b[1;32;48;2;1;2;3ma\x1b[22;7mb\x1b[0;94mc\x1b[38;5;244md");
        let style = |at: usize| screen.cells[at].style;
        assert_eq!(
            (style(0).front, style(0).back),
            (Some(COLOURS[2]), Some([1, 2, 3]))
        );
        assert!(style(0).is_bold && !style(1).is_bold && style(1).is_reversed);
        assert_eq!(style(2).front, Some(COLOURS[12]));
        assert_eq!(style(3).front, Some([128; 3]));
    }
}
