//! A screen as SVG: a frame, rectangles behind text, and runs of text in one style. Each run is as
//! wide as its columns in any font.

use super::screen::{Cell, Screen, Style};

/// Marks pictures made by this task.
pub const MARK: &str = "<!-- made by `cargo xtask picture` -->";

/// Width and height of a character, and the outer margin, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const MARGIN: f64 = 14.0;

/// The terminal's own colours.
const FRONT: [u8; 3] = [212, 212, 212];
const BACK: [u8; 3] = [24, 26, 31];

/// Renders the picture.
pub fn of(screen: &Screen) -> String {
    let rows: Vec<&[Cell]> = screen.rows().collect();
    let used = rows
        .iter()
        .rposition(|row| row.iter().any(|cell| cell.char != ' '));
    let count = used.map_or(0, |last| last + 1);
    let width = screen.columns() as f64 * WIDTH + 2.0 * MARGIN;
    let height = count as f64 * HEIGHT + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace\" \
         font-size=\"14\">\n{MARK}\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>\n",
        hex(BACK)
    );
    for (row, cells) in rows.iter().take(count).enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| a.style == b.style) {
            draw(&mut out, run, column, row);
            column += run.len();
        }
    }
    out + "</svg>\n"
}

fn draw(out: &mut String, run: &[Cell], column: usize, row: usize) {
    let (x, y) = (column as f64 * WIDTH + MARGIN, row as f64 * HEIGHT + MARGIN);
    let style = run[0].style;
    let (front, back) = colours(&style);
    let width = run.len() as f64 * WIDTH;
    if back != BACK {
        *out += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{HEIGHT:.1}\" \
             fill=\"{}\" shape-rendering=\"crispEdges\"/>\n",
            hex(back)
        );
    }
    let text: String = run.iter().map(|cell| cell.char).collect();
    let left = text.chars().take_while(|char| *char == ' ').count();
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    let x = x + left as f64 * WIDTH;
    let length = text.chars().count() as f64 * WIDTH;
    let bold = if style.is_bold {
        " font-weight=\"bold\""
    } else {
        ""
    };
    *out += &format!(
        "<text x=\"{x:.1}\" y=\"{:.1}\" fill=\"{}\"{bold} textLength=\"{length:.1}\" \
         lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\">{}</text>\n",
        y + HEIGHT * 0.75,
        hex(front),
        escaped(text)
    );
}

fn colours(style: &Style) -> ([u8; 3], [u8; 3]) {
    let (mut front, mut back) = (style.front.unwrap_or(FRONT), style.back.unwrap_or(BACK));
    if style.is_reversed {
        (front, back) = (back, front);
    }
    if style.is_dim {
        // Half way to the background.
        front = std::array::from_fn(|at| u8::midpoint(front[at], back[at]));
    }
    (front, back)
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_text_keep_position_and_colour() {
        let mut screen = Screen::new(20, 4);
        screen.feed(b"  a<b  \x1b[1;31mred\x1b[0m\r\n\x1b[7m x \x1b[0m");
        let text = of(&screen);
        assert!(text.starts_with("<svg ") && text.contains(MARK));
        assert!(
            text.contains(">a&lt;b</text>") && text.contains("x=\"30.8\""),
            "{text}"
        );
        assert!(
            text.contains("fill=\"#cd3131\" font-weight=\"bold\""),
            "{text}"
        );
        // Two lines are used: the picture is no higher. The second has a rectangle behind it.
        assert!(
            text.contains(&format!("0 0 196 {:.0}", 2.0 * HEIGHT + 2.0 * MARGIN)),
            "{text}"
        );
        assert!(
            text.contains("<rect x=\"14.0\" y=\"32.0\" width=\"25.2\""),
            "{text}"
        );
    }
}
