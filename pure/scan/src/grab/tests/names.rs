//! An address that was given by several names.

use super::segments::sent;
use super::*;

#[test]
fn each_name_of_an_address_has_a_connection_and_a_banner() {
    let scene = Scene::new("80");
    let mut grabber = scene.grabber(4);
    let names = ["a.example", "b.example", "c.example"];
    let known = names.map(Arc::<str>::from).to_vec();
    grabber.grab.names.insert(IpAddr::V4(SERVER), known);
    let manner = Manner {
        answers: true,
        ..Manner::says(HTTP)
    };
    let mut server = Server::new(manner.clone(), scene.syn(80));
    let mut banners: Vec<Banner> = Vec::new();
    let mut heard = Vec::new();
    let first = server.syn_ack().packet();
    grabber.receive(&first, 0, &mut |banner| banners.push(banner));
    loop {
        let segments = sent(&mut grabber);
        if segments.is_empty() {
            break;
        }
        for segment in segments {
            let answers = if segment.flags == SYN {
                heard.push(std::mem::take(&mut server.heard));
                server = Server::new(manner.clone(), segment);
                vec![server.syn_ack()]
            } else {
                server.receive(&segment)
            };
            for answer in answers {
                grabber.receive(&answer.packet(), MS, &mut |banner| banners.push(banner));
            }
        }
    }
    heard.push(server.heard);
    assert_eq!((grabber.open_count(), heard.len()), (0, 3));
    assert_eq!(banners.len(), 3);
    for ((name, heard), banner) in names.iter().zip(&heard).zip(&banners) {
        assert!(String::from_utf8_lossy(heard).contains(name), "{name}");
        assert_eq!(banner.name.as_deref(), Some(*name));
        assert_eq!(banner.start, HTTP);
    }
}
