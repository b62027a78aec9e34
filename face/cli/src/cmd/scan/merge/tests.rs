//! Files as scans write them, and what is left of them.

use super::*;

fn merged(files: &[&str]) -> Result<(Vec<Value>, Value)> {
    let (mut merged, mut out) = (Merged::default(), Vec::new());
    for file in files {
        merged.file(Path::new("file"), file.as_bytes(), &mut out)?;
    }
    let text = String::from_utf8(out).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    Ok((rows.collect(), merged.totals()))
}

fn answer(addr: &str, state: &str) -> String {
    format!(
        "{{\"type\":\"answer\",\"address\":\"{addr}\",\"protocol\":\"tcp\",\"port\":80,\
         \"state\":\"{state}\",\"ttl\":64}}\n"
    )
}

const TOTALS: &str = "{\"type\":\"totals\",\"sent\":3,\"lost\":1,\"complete\":true}\n";

#[test]
fn each_answer_is_printed_once_and_totals_add_up() {
    let banner =
        "{\"type\":\"banner\",\"address\":\"192.0.2.1\",\"protocol\":\"tcp\",\"port\":80}\n";
    let rate = "{\"type\":\"rate\",\"to_pps\":9}\n";
    let link = "{\"type\":\"link\",\"state\":\"down\"}\n";
    let status = "{\"type\":\"status\",\"sent\":2,\"open\":1}\n";
    let first = [
        &answer("192.0.2.1", "open"),
        banner,
        rate,
        link,
        status,
        TOTALS,
    ]
    .concat();
    let second = [
        &answer("192.0.2.1", "open"),
        &answer("192.0.2.1", "filtered"),
        TOTALS,
    ]
    .concat();
    let third = [&answer("192.0.2.2", "closed"), banner.trim_end()].concat();
    let (rows, totals) = merged(&[&first, &second, &third]).unwrap();
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (name, count) in [
        ("open", 1),
        ("filtered", 1),
        ("closed", 1),
        ("up", 0),
        ("repeated", 2),
        ("banners", 1),
        ("sent", 6),
        ("lost", 2),
        ("runs", 2),
    ] {
        assert_eq!(totals[name], count, "{name}: {totals}");
    }
    assert_eq!(totals["complete"], false, "the third file has no totals");
}

#[test]
fn banners_of_different_names_are_different() {
    let banner = |name: &str| {
        format!(
            "{{\"type\":\"banner\",\"address\":\"192.0.2.1\",\"protocol\":\"tcp\",\"port\":80,\
             \"name\":\"{name}\"}}\n"
        )
    };
    let file = [banner("a.example"), banner("b.example")].concat();
    let (rows, totals) = merged(&[&file, &file]).unwrap();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!(
        (&totals["banners"], &totals["repeated"]),
        (&2.into(), &2.into())
    );
}

#[test]
fn a_merged_scan_is_complete_if_each_file_ends_with_totals_that_say_so() {
    let row = answer("192.0.2.1", "open");
    let interrupted = TOTALS.replace("true", "false");
    let whole = [&row, TOTALS].concat();
    for (second, complete) in [
        ([&row, TOTALS].concat(), true),
        // The file of an interrupted run, continued by the run that resumed it.
        ([&row, &interrupted, &row, TOTALS].concat(), true),
        (format!("{row}{interrupted}"), false),
        // Killed: without totals, after those of an earlier run, and in its last line.
        (row.clone(), false),
        (String::new(), false),
        ([&row, TOTALS, &row].concat(), false),
        ([&row, TOTALS, &row[..30]].concat(), false),
        ([&row, &TOTALS[..TOTALS.len() - 3]].concat(), false),
    ] {
        for files in [[&whole, &second], [&second, &whole]] {
            let (rows, totals) = merged(&files.map(String::as_str)).unwrap();
            assert_eq!(rows.len(), 1, "{files:?}");
            assert_eq!(totals["complete"], complete, "{files:?}");
        }
    }
    assert_eq!(merged(&[]).unwrap().1["complete"], false);
}

#[test]
fn a_row_that_is_cut_off_at_the_end_is_skipped() {
    let (first, second) = (
        answer("192.0.2.1", "open"),
        answer("192.0.2.2", "\u{e9}\\u00e9"),
    );
    let len = second.trim_end().len();
    for end in 1..len {
        let bytes = [first.as_bytes(), &second.as_bytes()[..end]].concat();
        let (mut merged, mut out) = (Merged::default(), Vec::new());
        merged
            .file(Path::new("file"), &bytes[..], &mut out)
            .unwrap();
        assert_eq!(out, first.as_bytes(), "{end}");
    }
    // Whole, without the end of the line.
    let (rows, _) = merged(&[&[&first, &second[..len]].concat()]).unwrap();
    assert_eq!(rows.len(), 2);
    // Not at the end.
    let text = [&first, &second[..30], "\n", &first].concat();
    let error = merged(&[&text]).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn other_files_are_refused_with_the_number_of_the_line() {
    for bad in ["x", "[]", "{}", "{\"type\":\"flow\"}", "\n"] {
        let text = format!("{}{bad}", answer("192.0.2.1", "open"));
        let error = merged(&[&text]).expect_err(bad).to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}

/// Totals of a run of a scan of 100 probes, which sent those of a range.
fn part(scan: &str, (before, next): (u64, u64)) -> String {
    format!(
        "{{\"type\":\"totals\",\"scan\":\"{scan}\",\"seed\":7,\"block\":3,\"probes\":100,\
         \"before\":{before},\"next\":{next},\"failed\":0,\"error\":null,\
         \"complete\":{}}}\n",
        next == 100
    )
}

#[test]
fn runs_that_resume_each_other_are_complete_together() {
    let complete = |files: &[String]| {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        merged(&files).unwrap().1["complete"] == true
    };
    let row = answer("192.0.2.1", "open");
    let [first, second] = [part("a", (0, 40)), part("a", (40, 100))];
    let whole = part("a", (0, 100));
    for (files, expected) in [
        (vec![whole.clone()], true),
        (vec![first.clone(), second.clone()], true),
        (vec![second.clone(), first.clone()], true),
        // In one file.
        (vec![format!("{row}{first}{row}{second}")], true),
        // Overlapping, and twice.
        (
            vec![first.clone(), part("a", (30, 100)), first.clone()],
            true,
        ),
        (
            vec![first.clone(), part("a", (40, 60)), part("a", (60, 100))],
            true,
        ),
        // Alone, with a gap, and unordered with a gap.
        (vec![first.clone()], false),
        (vec![second.clone()], false),
        (vec![first.clone(), part("a", (41, 100))], false),
        (
            vec![
                part("a", (60, 100)),
                part("a", (0, 40)),
                part("a", (41, 60)),
            ],
            false,
        ),
        // The other part is of another scan, seed or order.
        (vec![first.clone(), part("b", (40, 100))], false),
        (
            vec![first.clone(), second.replace("\"seed\":7", "\"seed\":8")],
            false,
        ),
        (
            vec![first.clone(), second.replace("\"block\":3", "\"block\":4")],
            false,
        ),
        (vec![whole.clone(), part("b", (0, 100))], true),
        (vec![whole.clone(), part("b", (0, 99))], false),
        // It was not sent as a whole.
        (
            vec![
                first.clone(),
                second.replace("\"failed\":0", "\"failed\":1"),
            ],
            false,
        ),
        (
            vec![first.clone(), second.replace("null", "\"no space left\"")],
            false,
        ),
        // Killed after the totals of an earlier run.
        (vec![whole.clone(), format!("{first}{row}")], false),
        // Numbers of more than 64 bits.
        (
            vec![
                whole.replace("probes\":100,", "probes\":\"36893488147419103232\","),
                part("a", (0, 100)),
            ],
            false,
        ),
        (
            vec![whole.replace("100,", "\"36893488147419103232\",")],
            true,
        ),
    ] {
        assert_eq!(complete(&files), expected, "{files:#?}");
    }
}

/// Any order of runs and any cuts between them: a model marks each probe.
#[test]
fn any_ranges_are_complete_if_each_probe_is_in_one() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut count = 0;
    for _ in 0..2_000 {
        let mut sent = [false; 100];
        let mut files = Vec::new();
        for _ in 0..1 + random(6) {
            let from = random(4) * 25;
            let to = (from + random(4) * 25 + random(2) * 25).min(100);
            sent[from as usize..to as usize].fill(true);
            files.push(part("a", (from, to)));
        }
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let is_whole = sent.iter().all(|sent| *sent);
        count += usize::from(is_whole);
        assert_eq!(merged(&files).unwrap().1["complete"], is_whole, "{files:?}");
    }
    assert!((200..1_800).contains(&count), "{count}");
}

const CSV: &str = "type,time,address,protocol,port,state,reason,ttl,from,rtt_ms,application,\
                   banner,mac,vendor\n\
                   answer,2026-11-26T10:00:00.000000Z,192.0.2.1,tcp,80,open,syn-ack,64,192.0.2.1,\
                   0.125,,,,\n\
                   banner,2026-11-26T10:00:01.000000Z,192.0.2.1,tcp,80,open,,,,,http,\
                   \"HTTP/1.0 200 \"\"OK\"\", x\",,\n";
const ARRAY: &str = "[\n\
    {\"ip\":\"192.0.2.1\",\"timestamp\":\"1795687200\",\"ports\":[{\"port\":80,\
    \"proto\":\"tcp\",\"status\":\"open\",\"reason\":\"syn-ack\",\"ttl\":64}]},\n\
    {\"ip\":\"192.0.2.2\",\"timestamp\":\"1795687200\",\"ports\":[{\"port\":22,\
    \"proto\":\"tcp\",\"service\":{\"name\":\"ssh\",\"banner\":\"SSH-2.0-x, ]\"}}]}\n]\n";

#[test]
fn csv_and_masscans_json_are_merged_with_lines() {
    let lines = [&answer("192.0.2.1", "open"), TOTALS].concat();
    let (rows, totals) = merged(&[&lines, CSV, ARRAY]).unwrap();
    assert_eq!(rows.len(), 3, "{rows:#?}");
    assert_eq!(
        (&totals["repeated"], &totals["banners"]),
        (&json!(2), &json!(2))
    );
    // No totals tell whether those scans ended.
    assert_eq!(totals["complete"], false);
    let banner = &rows[1];
    assert_eq!(banner["application"]["protocol"], "http");
    assert_eq!(banner["start"], "HTTP/1.0 200 \"OK\", x");
    assert_eq!(rows[2]["start"], "SSH-2.0-x, ]");
    let (rows, _) = merged(&[CSV]).unwrap();
    assert_eq!(
        rows[0],
        json!({
            "type": "answer", "time": "2026-11-26T10:00:00.000000Z", "address": "192.0.2.1",
            "protocol": "tcp", "port": 80, "state": "open", "reason": "syn-ack", "ttl": 64,
            "from": "192.0.2.1", "rtt_ms": 0.125,
        })
    );
    let (rows, _) = merged(&[ARRAY]).unwrap();
    assert_eq!(
        rows[0],
        json!({
            "type": "answer", "time": "2026-11-26T10:00:00.000000Z", "address": "192.0.2.1",
            "protocol": "tcp", "port": 80, "state": "open", "reason": "syn-ack", "ttl": 64,
        })
    );
    // masscan's own layout, and files of two scans in a row.
    let other = ARRAY.replace("},\n{", "}\n,\n{");
    let (rows, _) = merged(&[&other, &[CSV, CSV].concat()]).unwrap();
    assert_eq!(rows.len(), 3, "{rows:#?}");
}

#[test]
fn csv_and_json_that_a_killed_scan_has_cut_off_lose_their_last_row() {
    for file in [CSV, ARRAY] {
        let whole = merged(&[file]).unwrap().0;
        for len in 0..file.len() {
            // A heading that is cut off is no CSV, and no JSON line either.
            match merged(&[&file[..len]]) {
                Ok((rows, _)) => assert!(whole.starts_with(&rows), "{len}: {rows:?}"),
                Err(error) => assert!(error.to_string().contains("line 1"), "{len}: {error}"),
            }
        }
    }
    for bad in ["answer,x\n", "answer,\"x\n", "{}\n"] {
        let error = merged(&[&[CSV, bad].concat()]).unwrap_err().to_string();
        assert!(error.contains("line 4"), "{bad}: {error}");
    }
    let error = merged(&[&ARRAY.replace("\"ip\"", "\"host\"")]).unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
}
