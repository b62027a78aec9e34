//! Names, limits and requirements of rules.

use super::*;

#[test]
fn rules_with_the_same_name_get_numbers() {
    let names = ["udp", "tcp", "udp", "udp (2)", "udp"];
    let mut specs = names.map(|name| RuleSpec::new(name, Verdict::Drop));
    number_names(&mut specs, detect::is_rule_name);
    let names = specs.map(|spec| spec.name);
    assert_eq!(names, ["udp", "tcp", "udp (2)", "udp (2) (2)", "udp (3)"]);
    // A rule that was installed by detection, copied to a file.
    let names = ["detected flood 1", "detected flood x"];
    let mut specs = names.map(|name| RuleSpec::new(name, Verdict::Drop));
    number_names(&mut specs, detect::is_rule_name);
    let names = specs.map(|spec| spec.name);
    assert_eq!(names, ["detected flood 1 (2)", "detected flood x"]);
}

#[test]
fn rules_that_do_not_fit_one_program_are_refused() {
    let rule = |verdict| RuleSpec::new("udp port 53 or tcp port 80", verdict);
    let one = check(&[rule(Verdict::Drop)]).unwrap();
    let two = check(&[rule(Verdict::Count), rule(Verdict::Drop)]).unwrap();
    assert!(0 < one && one < two, "{one} {two}");
    let many = vec![rule(Verdict::Count); ::guard::RULES_MAX + 1];
    let error = check(&many).unwrap_err();
    assert!(error.to_string().contains("limit is 800"), "{error}");
    // An error of the whole set only: each list is valid, but together there are too many.
    let lists: Vec<RuleSpec> = (0..=::guard::LISTS_MAX)
        .map(|number| {
            let list = ListSpec::argument(&format!("10.0.{number}.0/24")).unwrap();
            RuleSpec::of_sources(&format!("list {number}"), list, Verdict::Drop)
        })
        .collect();
    check(&lists[1..]).unwrap();
    let error = check(&lists).unwrap_err();
    assert!(error.to_string().contains("prefix lists"), "{error}");
    let names = |number: usize| {
        let list = ListSpec::inline(vec![format!("*.n{number}.test")]).unwrap();
        RuleSpec::of_names(&number.to_string(), list, Verdict::Drop)
    };
    let names: Vec<RuleSpec> = (0..=::guard::LISTS_MAX).map(names).collect();
    check(&names[1..]).unwrap();
    let error = check(&names).unwrap_err();
    assert!(error.to_string().contains("lists of names"), "{error}");
}

#[test]
fn challenges_need_syn_cookies_enabled_in_the_kernel() {
    assert!(check_cookies(Ok("1\n".into())).is_ok());
    let error = check_cookies(Ok("0\n".into())).unwrap_err().to_string();
    assert!(error.contains("tcp_syncookies is 0"), "{error}");
    let missing = io::Error::from(io::ErrorKind::NotFound);
    let error = check_cookies(Err(missing)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
