//! Parts of a page: escaped text, bars, histograms, curves.

use std::fmt::Write;

use flow::digest::Share;
use flow::series::{Bin, Series};
use wire::Timestamp;

use crate::text::{bytes, counted, si};

/// Escapes text for a page: markup as entities, invisible and bidirectional characters by their
/// code points.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if inspect::is_unprintable(c) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Escapes bytes that may not be UTF-8.
pub fn safe_bytes(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&safe(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// A row of a bar chart. Label and remark are already escaped.
pub struct Bar {
    /// Label.
    pub label: String,
    /// Remark after the label; empty if none.
    pub remark: String,
    /// Value.
    pub share: Share,
}

/// A bar chart by bytes, in which the longest bar has full width.
pub fn bars(rows: &[Bar], total: u64) -> String {
    if rows.is_empty() {
        return "<p class=\"soft\">nothing</p>".into();
    }
    let most = rows.iter().map(|row| row.share.bytes).max().unwrap_or(0);
    let mut out = String::from("<ul class=\"bars\">\n");
    for row in rows {
        let percent = |of: u64| row.share.bytes as f64 * 100.0 / of.max(1) as f64;
        let remark = match row.remark.as_str() {
            "" => String::new(),
            text => format!(" <small>{text}</small>"),
        };
        let _ = writeln!(
            out,
            "<li title=\"{} in {}\"><span class=\"l\">{}{remark}</span>\
             <span class=\"v\">{} <small>{:.1} %</small></span>\
             <span class=\"t\"><i style=\"width:{:.2}%\"></i></span></li>",
            counted(row.share.packets, "packet"),
            counted(row.share.records, "record"),
            row.label,
            bytes(row.share.bytes),
            percent(total),
            percent(most)
        );
    }
    out.push_str("</ul>\n");
    out
}

/// A histogram: count and label of each bin, and labels below both ends.
pub fn histogram(bins: &[(u64, String)]) -> String {
    let first = bins.iter().position(|bin| bin.0 != 0).unwrap_or(0);
    let last = bins.iter().rposition(|bin| bin.0 != 0).unwrap_or(0);
    let bins = bins.get(first..=last).unwrap_or_default();
    let most = bins.iter().map(|bin| bin.0).max().unwrap_or(0).max(1);
    let mut out = String::from("<div class=\"hist\" role=\"img\">\n");
    for (count, words) in bins {
        let zero = if *count == 0 { " data-zero" } else { "" };
        let height = *count as f64 * 100.0 / most as f64;
        let _ = writeln!(
            out,
            "<i{zero} style=\"height:{:.2}%\" title=\"{words}: {count} records\"></i>",
            height.max(1.0)
        );
    }
    let end = |at: Option<&(u64, String)>| at.map_or(String::new(), |bin| bin.1.clone());
    let _ = writeln!(
        out,
        "</div><div class=\"axis\"><span>{}</span><span>most: {most} records</span>\
         <span>{}</span></div>",
        end(bins.first()),
        end(bins.last())
    );
    out
}

/// A curve over time: the unit, how to read a bin, and the colour.
pub fn curve(series: &Series, unit: &str, value: fn(&Bin) -> u64, colour: u8) -> String {
    let (start_ns, bins) = series.used();
    let seconds = series.width_ns() as f64 / 1e9;
    let rates: Vec<f64> = bins.iter().map(|bin| value(bin) as f64 / seconds).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    if rates.is_empty() {
        return "<p class=\"soft\">no packets</p>".into();
    }
    let count = rates.len() as f64;
    // A step per bin: only its mean is known.
    let mut line = String::new();
    for (at, rate) in rates.iter().enumerate() {
        let y = 100.0 - rate / most.max(1e-9) * 97.0;
        let mark = if at == 0 { 'M' } else { 'L' };
        let (from, to) = (at as f64 / count * 1000.0, (at + 1) as f64 / count * 1000.0);
        let _ = write!(line, "{mark}{from:.2} {y:.2}L{to:.2} {y:.2}");
    }
    let values = rates.iter().enumerate().map(|(at, rate)| {
        let time_ns = start_ns.saturating_add(at as u64 * series.width_ns());
        format!("{} · {}", clock(time_ns), si(rate.round(), unit))
    });
    let values: Vec<String> = values.collect();
    let end_ns = start_ns.saturating_add(bins.len() as u64 * series.width_ns());
    format!(
        "<div class=\"time\" data-values=\"{}\"><div class=\"plot\">\
         <svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{unit} over time\">\
         <path class=\"area{colour}\" d=\"{line}L1000 100L0 100Z\"/>\
         <path class=\"line{colour}\" d=\"{line}\"/></svg>\
         <div class=\"top\"><span>{}</span></div><div class=\"mid\"><span>{}</span></div>\
         <div class=\"cursor\" hidden></div></div>\
         <div class=\"axis\"><span>{}</span><span>{}</span></div><output></output></div>\n",
        values.join("|"),
        si(most.round(), unit),
        si((most / 2.0).round(), unit),
        clock(start_ns),
        clock(end_ns)
    )
}

/// Time of day in UTC, with milliseconds if the bins need them.
fn clock(time_ns: u64) -> String {
    let second = time_ns / 1_000_000_000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        time_ns / 1_000_000 % 1000
    )
}

/// Date and time in UTC, to the second.
pub fn instant(time_ns: u64) -> String {
    let text = format!("{:.0}", Timestamp(time_ns));
    format!("{} UTC", text.replace('T', " ").trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_packets_never_becomes_markup() {
        assert_eq!(
            safe("<b a='1'>&\"\u{202e}\n\u{0}é"),
            "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\\u{202e}\\u{a}\\u{0}é"
        );
        assert_eq!(safe_bytes(b"<\xff>"), "&lt;\\xff&gt;");
    }

    #[test]
    fn times_are_printed_in_readable_form() {
        assert_eq!(
            instant(1_700_000_000_999_999_999),
            "2023-11-14 22:13:20 UTC"
        );
    }

    #[test]
    fn empty_charts_say_so() {
        assert!(bars(&[], 0).contains("nothing"));
        assert!(curve(&Series::default(), "bit/s", |b| b.bytes * 8, 1).contains("no packets"));
        assert!(histogram(&[]).contains("most: 1"));
    }

    #[test]
    fn a_curve_has_a_step_per_bin() {
        let mut series = Series::default();
        series.add(1_000_000, 100);
        series.add(3_000_000, 50);
        let text = curve(&series, "bit/s", |bin| bin.bytes * 8, 1);
        assert!(
            text.contains("800.00 kbit/s") && text.contains("400.00 kbit/s"),
            "{text}"
        );
        assert!(
            text.contains("00:00:00.001 · 800.00 kbit/s|00:00:00.002 · 0 bit/s|"),
            "{text}"
        );
        assert!(
            text.contains("M0.00 3.00L333.33 3.00L333.33 100.00"),
            "{text}"
        );
    }
}
