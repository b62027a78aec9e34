//! Each transaction of a flow is reported, whatever the segmentation.

use super::*;

/// All transactions of a sample, in segments of `step` bytes, as JSON.
fn transactions(name: &str, step: usize) -> String {
    let all = samples::all();
    let sample = all
        .iter()
        .find(|sample| sample.name == name)
        .expect("the sample");
    let mut inspector = Inspector::new(&InspectorConfig {
        packet_count_max: u16::MAX,
        ..InspectorConfig::default()
    });
    let (mut number, mut next) = (NONE, [1_u32; 2]);
    for (at, (from, bytes)) in sample.pieces().into_iter().enumerate() {
        let step = match sample.transport {
            Transport::Tcp => step,
            Transport::Udp => bytes.len(),
        };
        for part in bytes.chunks(step) {
            let segment = Segment {
                transport: sample.transport,
                from,
                time_ns: 1000 + 250 * at as u64,
                ports: sample.ports,
                sequence: next[from as usize],
                is_syn: false,
                begins: None,
                payload: part,
                payload_len: part.len() as u32,
            };
            next[from as usize] += part.len() as u32;
            inspector.packet(&mut number, &segment);
        }
    }
    inspector.rest(&mut number);
    let (mut found, mut out) = (Vec::new(), Vec::new());
    let application = inspector.application(number).expect("a protocol");
    found.extend_from_slice(application.bytes().1);
    inspector
        .transactions(number)
        .unwrap_or_else(|| panic!("{name} {step} {application:?} {:?}", inspector.stats()))
        .put(&mut found);
    let whole = Application::from_bytes(application.protocol(), &found);
    let list = Transactions::of(&found).expect("what was put");
    assert!(barewire_inspect::json(&whole, None, &mut out));
    barewire_inspect::json_transactions(&whole, &list, &mut out);
    inspector.end(&mut number, |_| ());
    assert!(inspector.is_idle());
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn every_transaction_is_reported() {
    let http = [
        r#"{"http_method":"GET","http_host":"h","http_path":"/one","http_status":200},"#,
        r#"{"http_method":"POST","http_host":"other","http_path":"/two","http_status":201},"#,
        r#"{"http_method":"HEAD","http_host":"h","http_path":"/three","http_status":404},"#,
        r#"{"http_method":"GET","http_path":"/four"}]}"#,
    ];
    for step in [1, 2, 3, 7, 40, 1000] {
        let reported = transactions("http-many", step);
        // Of the first message alone: it has no agent.
        assert!(
            !reported.contains("late") && reported.contains(r#""transactions":4,"#),
            "{reported}"
        );
        let (_, list) = reported.split_once(r#""transaction":["#).expect("a list");
        assert_eq!(list, http.concat(), "every {step}");
    }
    let dns = [
        r#"{"dns_name":"www.example.org","dns_type":28,"dns_rcode":0,"dns_answers":3,"#,
        r#""dns_latency_ns":1250},"#,
        r#"{"dns_name":"two","dns_type":28,"dns_rcode":3,"dns_answers":0,"dns_latency_ns":750},"#,
        r#"{"dns_name":"unused","dns_type":16,"dns_rcode":3,"dns_answers":0},"#,
        r#"{"dns_name":"never","dns_type":1}]}"#,
    ];
    let reported = transactions("dns-many", 1);
    let (_, list) = reported.split_once(r#""transaction":["#).expect("a list");
    assert_eq!(list, dns.concat());
    let refused = transactions("http-connect-refused", 3);
    let expected =
        r#"{"http_method":"GET","http_host":"h","http_path":"/first","http_status":200}]}"#;
    assert!(refused.ends_with(expected), "{refused}");
    let rtsp = [
        r#"{"rtsp_method":"OPTIONS","rtsp_url":"rtsp://192.0.2.1/live","rtsp_status":200},"#,
        r#"{"rtsp_method":"SETUP","rtsp_url":"rtsp://192.0.2.1/live/1","rtsp_status":461},"#,
        r#"{"rtsp_method":"DESCRIBE","rtsp_url":"rtsp://192.0.2.1/live","rtsp_status":200},"#,
        r#"{"rtsp_method":"ANNOUNCE","rtsp_url":"rtsp://c/","rtsp_status":501},"#,
        r#"{"rtsp_method":"TEARDOWN","rtsp_url":"rtsp://192.0.2.1/live"}]}"#,
    ];
    for step in [1, 2, 3, 7, 40, 1000] {
        let reported = transactions("rtsp", step);
        assert!(reported.contains(r#""transactions":5,"#), "{reported}");
        let (_, list) = reported.split_once(r#""transaction":["#).expect("a list");
        assert_eq!(list, rtsp.concat(), "every {step}");
    }
    let proxied = transactions("http-connect", 5);
    assert!(proxied.contains(r#""inner_protocol":"tls""#), "{proxied}");
    assert!(proxied.contains(r#""tls_sni":"example.org""#), "{proxied}");
    assert!(proxied.starts_with(r#"{"protocol":"http","#), "{proxied}");
}

/// Of six pipelined requests four wait for their responses; the responses to the first two are
/// matched by order.
#[test]
fn pipelined_requests_have_their_own_responses() {
    let expected = [
        r#"{"http_method":"HEAD","http_path":"/1","http_status":201},"#,
        r#"{"http_method":"GET","http_path":"/2"},"#,
        r#"{"http_method":"GET","http_path":"/3","http_status":203},"#,
        r#"{"http_method":"GET","http_path":"/4","http_status":404},"#,
        r#"{"http_method":"GET","http_path":"/5","http_status":405},"#,
        r#"{"http_method":"GET","http_path":"/6","http_status":406}]}"#,
    ];
    for step in [1, 5, 1000] {
        let reported = transactions("http-pipelined", step);
        assert!(reported.contains(r#""transactions":6,"#), "{reported}");
        let (_, list) = reported.split_once(r#""transaction":["#).expect("a list");
        assert_eq!(list, expected.concat(), "every {step}");
    }
}

/// Of six concurrent questions four wait for their answers; the other two are reported without.
#[test]
fn a_question_with_a_late_answer_is_counted_once() {
    let reported = transactions("dns-forwarder", 1);
    assert!(reported.contains(r#""transactions":6,"#), "{reported}");
    for name in ["a", "b", "c", "d", "e", "f"] {
        let name = format!(r#"{{"dns_name":"{name}","#);
        assert_eq!(reported.matches(&name).count(), 1, "{name} of {reported}");
    }
}
