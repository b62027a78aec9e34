//! Draws the topology of a cluster: as text, and as SVG.

use std::fmt::Write;

use runtime::cluster::{ApplicationStatus, OutputStatus, QueueStatus, Status};

/// What an application does with its packets, in words.
fn policies(application: &ApplicationStatus) -> Vec<String> {
    let mut words = vec![format!("by {}", application.balance)];
    if !application.source.is_empty() {
        words.push(format!("of what {} sends", application.source));
    }
    if !application.filter.is_empty() {
        words.insert(0, format!("\"{}\"", application.filter));
    }
    if !application.when_full.is_empty() {
        words.push(format!("when full: {}", application.when_full));
    }
    if application.when_gone == "rehash" {
        words.push("when gone: rehash".to_owned());
    }
    words
}

/// What is removed from the packets of an application, in words.
fn cleanup(application: &ApplicationStatus) -> Vec<String> {
    let mut words = Vec::new();
    if !application.detunnel.is_empty() {
        let tags = if application.detunnel == "tags" {
            " and tags"
        } else {
            ""
        };
        words.push(format!("without tunnels{tags}"));
    }
    if application.deduplicate_ms != 0 {
        words.push(format!(
            "no duplicates within {} ms",
            application.deduplicate_ms
        ));
    }
    if !application.shunt.is_empty() {
        words.push(format!("shunt after {}", application.shunt));
    }
    words
}

fn queues_of<'a>(
    status: &'a Status,
    application: &'a ApplicationStatus,
) -> impl Iterator<Item = &'a QueueStatus> {
    let is_its = |queue: &&QueueStatus| queue.application == application.name;
    status.queues.iter().filter(is_its)
}

/// The reader of a queue, in words.
fn reader(queue: &QueueStatus, application: &ApplicationStatus) -> String {
    match queue.reader {
        _ if !application.port.is_empty() => application.port.clone(),
        None => "no reader".to_owned(),
        Some(process) if queue.has_reader_exited => format!("a child of process {process}"),
        Some(process) => format!("process {process}"),
    }
}

/// The ports of the return path.
fn returning(status: &Status) -> impl Iterator<Item = &OutputStatus> {
    status
        .outputs
        .iter()
        .filter(|port| port.reader_of.is_empty())
}

/// A tree: the inputs, the applications, and their queues with their readers.
pub(super) fn tree(status: &Status) -> String {
    let mut out = status.input.ports.clone();
    if !status.input.filter.is_empty() {
        out += &format!(", \"{}\"", status.input.filter);
    }
    out.push('\n');
    let last = status.applications.len().saturating_sub(1);
    for (at, application) in status.applications.iter().enumerate() {
        let (branch, stem) = match at == last {
            true => ("└─", "  "),
            false => ("├─", "│ "),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{branch} {}: {}",
            application.name,
            [policies(application), cleanup(application)]
                .concat()
                .join(", ")
        );
        let queues: Vec<&QueueStatus> = queues_of(status, application).collect();
        for (at, queue) in queues.iter().enumerate() {
            let branch = if at + 1 == queues.len() {
                "└─"
            } else {
                "├─"
            };
            let (index, name) = (queue.index, &status.name);
            let _ = writeln!(
                out,
                "{stem} {branch} queue {index}, ring:{name}/{index}: {}",
                reader(queue, application)
            );
        }
    }
    for port in returning(status) {
        let _ = writeln!(out, "back: {}: {}", port.port, port.of);
    }
    out
}

/// Height of a row, in pixels.
const ROW: usize = 34;

/// Left edges and widths of the columns: inputs, cluster, applications, queues.
const COLUMNS: [(usize, usize); 4] = [(10, 200), (270, 220), (550, 360), (970, 230)];

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Cuts a text that does not fit into a box of this width.
fn fitted(text: &str, width: usize) -> String {
    let max = (width - 16) / 8;
    match text.chars().count() > max {
        true => text.chars().take(max - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// An unfinished SVG document.
struct Drawing {
    body: String,
}

impl Drawing {
    /// Draws a box in a column; `middle` is its vertical centre. The whole text is its tooltip.
    fn tile(&mut self, column: usize, middle: usize, lines: &[String], class: &str) {
        let (x, width) = COLUMNS[column];
        let height = 8 + 17 * lines.len();
        let top = middle - height / 2;
        let title = escape(&lines.join("\n"));
        let _ = write!(
            self.body,
            "<g class=\"{class}\"><title>{title}</title><rect x=\"{x}\" y=\"{top}\" \
             width=\"{width}\" height=\"{height}\" rx=\"4\"/>",
        );
        for (at, line) in lines.iter().enumerate() {
            let _ = write!(
                self.body,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                x + 8,
                top + 17 + 17 * at,
                escape(&fitted(line, width))
            );
        }
        self.body += "</g>\n";
    }

    /// Draws a line from the right of one column to the left of the next one.
    fn line(&mut self, column: usize, from: usize, to: usize) {
        let (x, width) = COLUMNS[column];
        let (start, end) = (x + width, COLUMNS[column + 1].0);
        let bend = start.midpoint(end);
        let _ = writeln!(
            self.body,
            "<path d=\"M{start} {from} C{bend} {from} {bend} {to} {end} {to}\"/>"
        );
    }
}

impl Drawing {
    /// Draws the ports of the return path, from `top` on; returns the height.
    fn ports(&mut self, status: &Status, top: usize, y_of: impl Fn(usize) -> usize) -> usize {
        for (at, port) in returning(status).enumerate() {
            let y = top + at * ROW + ROW / 2;
            self.tile(2, y, &[format!("{}: {}", port.port, port.of)], "port");
            let is_its = |queue: &&QueueStatus| port.senders.contains(&queue.application);
            for queue in status.queues.iter().filter(is_its) {
                self.back(y_of(queue.index as usize), y);
            }
        }
        returning(status).count() * ROW + 10
    }

    /// Draws what readers send: a line from the right of a queue back to a tile of applications.
    fn back(&mut self, from: usize, to: usize) {
        let (start, width) = COLUMNS[3];
        let (start, end) = (start + width, COLUMNS[2].0 + COLUMNS[2].1);
        let _ = writeln!(
            self.body,
            "<path class=\"back\" d=\"M{start} {from} C{bend} {from} {bend} {to} {end} {to}\"/>",
            bend = start + 60,
        );
    }
}

/// The topology as an SVG document: inputs, the cluster, its applications, and their queues.
pub(super) fn svg(status: &Status) -> String {
    let mut drawing = Drawing {
        body: String::new(),
    };
    let inputs: Vec<&str> = status.input.ports.split(", ").collect();
    let rows = status.queues.len().max(inputs.len() * 2).max(3);
    // A third line needs more room.
    let is_high = status.applications.iter().any(|it| !cleanup(it).is_empty());
    let height = rows * if is_high { 2 * ROW } else { ROW } + 20;
    let middle = height / 2;
    for (at, input) in inputs.iter().enumerate() {
        let y = 10 + (2 * at + 1) * (height - 20) / (2 * inputs.len());
        drawing.line(0, y, middle);
        drawing.tile(0, y, &[(*input).to_owned()], "port");
    }
    let mut lines = vec![format!("cluster {}", status.name)];
    if !status.input.filter.is_empty() {
        lines.push(format!("\"{}\"", status.input.filter));
    }
    let queue_count = status.queues.len().max(1);
    let y_of = |index: usize| 10 + (2 * index + 1) * (height - 20) / (2 * queue_count);
    for application in &status.applications {
        let at: Vec<usize> = queues_of(status, application)
            .map(|it| it.index as usize)
            .collect();
        let (Some(&first), Some(&last)) = (at.first(), at.last()) else {
            continue;
        };
        let y = y_of(first).midpoint(y_of(last));
        let source = status.applications.iter();
        match source.clone().find(|it| it.name == application.source) {
            None => drawing.line(1, middle, y),
            Some(source) => {
                for queue in queues_of(status, source) {
                    drawing.back(y_of(queue.index as usize), y);
                }
            }
        }
        for queue in queues_of(status, application) {
            let at = y_of(queue.index as usize);
            drawing.line(2, y, at);
            let text = format!("queue {}: {}", queue.index, reader(queue, application));
            drawing.tile(3, at, &[text], "queue");
        }
        let mut words = policies(application);
        let rest = words.split_off(1.min(words.len()));
        let first = format!("{}: {}", application.name, words.concat());
        let more = [rest.join(", "), cleanup(application).join(", ")];
        let more = more.into_iter().filter(|line| !line.is_empty());
        let lines: Vec<String> = [first].into_iter().chain(more).collect();
        drawing.tile(2, y, &lines, "application");
    }
    drawing.tile(1, middle, &lines, "cluster");
    let height = height + drawing.ports(status, height, y_of);
    let width = COLUMNS[3].0 + COLUMNS[3].1 + 50;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n<style>\
         rect{{fill:#fff;stroke:#456}}path{{fill:none;stroke:#89a}}\
         text{{font:13px monospace;fill:#123}}.cluster rect{{fill:#def}}\
         .application rect{{fill:#efe}}path.back{{stroke-dasharray:4 3}}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" style=\"stroke:none\"/>\n{}</svg>\n",
        drawing.body
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::cluster::{Application, Balance, Cleanup, Detunnel, Return, Setup, WhenFull};

    fn setup() -> Setup {
        Setup {
            name: "ids".into(),
            inputs: vec!["eth0".into(), "file:<a&b>.pcap".into()],
            applications: vec![
                Application {
                    filter: "tcp[0] < 5".into(),
                    balance: Balance::Inner,
                    when_full: Some(WhenFull::Spill),
                    cleanup: Cleanup {
                        shunt: flow::cleanup::ShuntLimits::parse("64k").ok(),
                        deduplicate: Some(std::time::Duration::from_millis(7)),
                        detunnel: Some(Detunnel::Tunnels),
                    },
                    ..Application::new("ids", 2)
                },
                Application::new("flows", 1),
            ],
            ring_len: 100,
            merge: None,
            returns: Vec::new(),
            filter: "not port 22".into(),
            options: port::PortOptions::default(),
            allow: Vec::new(),
            user: None,
        }
    }

    fn status() -> Status {
        setup().planned()
    }

    #[test]
    fn lines_join_queues_to_the_ports_that_send_what_their_readers_send() {
        let back = |port: &str, application: &str| Return {
            port: port.into(),
            from: None,
            application: Some(application.into()),
        };
        let setup = Setup {
            returns: vec![back("eth1", "ids"), back("eth2", "flows")],
            ..setup()
        };
        let picture = svg(&setup.planned());
        let lines = picture
            .lines()
            .filter(|line| line.contains("class=\"back\""));
        // From the two queues of ids to eth1, from that of flows to eth2.
        let ends: Vec<&str> = lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|it| it.1)
            .collect();
        assert_eq!(ends.len(), 3, "{picture}");
        assert!(ends[0] == ends[1] && ends[1] != ends[2], "{ends:?}");
    }

    #[test]
    fn a_tree_has_inputs_applications_and_queues() {
        let expected = "eth0, file:<a&b>.pcap, \"not port 22\"\n\
                        ├─ ids: \"tcp[0] < 5\", by inner, when full: spill, without \
                        tunnels, no duplicates within 7 ms, shunt after 64k\n\
                        │  ├─ queue 0, ring:ids/0: no reader\n\
                        │  └─ queue 1, ring:ids/1: no reader\n\
                        └─ flows: by flow\n   └─ queue 2, ring:ids/2: no reader\n";
        assert_eq!(tree(&status()), expected);
    }

    #[test]
    fn a_picture_has_everything_and_no_foreign_markup() {
        let picture = svg(&status());
        for text in [
            "file:&lt;a&amp;b&gt;.pcap",
            "tcp[0] &lt; 5",
            "queue 2",
            "flows",
            "shunt after 64k",
        ] {
            assert!(picture.contains(text), "{text}: {picture}");
        }
        assert_eq!(
            picture.matches("<g ").count(),
            picture.matches("</g>").count()
        );
        assert!(!picture.contains("<a&b>"));
        // Something is drawn even of an empty status.
        assert!(svg(&Status::default()).ends_with("</svg>\n"));
    }
}
