//! Sample conversations of text protocols: HTTP, SIP, mail and file transfer.

use super::{Sample, answer, chrome, records};
use barewire_inspect::Direction::{Forward, Reverse};
use barewire_inspect::Transport::{Tcp, Udp};

const REQUEST: &[u8] =
    b"POST /a/path?x=1 HTTP/1.1\r\nUser-Agent: Program/1.0 (x)\r\nAccept: */*\r\n\
    hOsT:  www.example.org:8080 \r\nContent-Length: 3\r\n\r\nabc";
const RESPONSE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nServer: thing\r\n\
    Content-Type: text/html\r\n\r\n<html>";

pub fn http() -> Vec<Sample> {
    let mut samples = http_alone();
    samples.extend(http_in_a_row());
    samples
}

/// A request and a response, or less.
fn http_alone() -> Vec<Sample> {
    vec![
        Sample::new("http", Tcp, 9999)
            .with(Forward, REQUEST)
            .with(Reverse, RESPONSE),
        Sample::new("http-spaces", Tcp, 80)
            .with(Forward, b"GET      /a  HTTP/1.1\r\nHost: h\r\n\r\n")
            .with(Reverse, RESPONSE),
        Sample::new("http-answer", Tcp, 80).with(Reverse, RESPONSE),
        Sample::new("http-bad-status", Tcp, 80)
            .with(Reverse, "HTTP/1.1 none\r\n\r\n")
            .with(
                Forward,
                "GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n",
            ),
        Sample::new("http2", Tcp, 80).with(
            Forward,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        ),
        Sample::new("http-long", Tcp, 80).with(
            Forward,
            [b"GET /", &[b'x'; 700][..], b" HTTP/1.0\r\nHost: h\r\n\r\n"].concat(),
        ),
    ]
}

/// Several requests in a connection, and one that becomes a tunnel.
fn http_in_a_row() -> Vec<Sample> {
    vec![
        Sample::new("http-pipelined", Tcp, 80)
            .with(
                Forward,
                "HEAD /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n\
                 GET /4 HTTP/1.1\r\n\r\n\r\nGET /5 HTTP/1.1\r\n\r\nGET /6 HTTP/1.1\r\n\r\n",
            )
            .with(
                Reverse,
                "HTTP/1.1 201 1\r\nContent-Length: 99\r\n\r\n\
                 HTTP/1.1 202 2\r\nContent-Length: 2\r\n\r\n22\
                 HTTP/1.1 203 3\r\nContent-Length: 0\r\n\r\n\
                 HTTP/1.1 404 4\r\nContent-Length: 0\r\n\r\n\
                 HTTP/1.1 405 5\r\nContent-Length: 0\r\n\r\n\
                 HTTP/1.1 406 6\r\nContent-Length: 0\r\n\r\n",
            ),
        Sample::new("http-many", Tcp, 80)
            .with(Forward, "GET /one HTTP/1.1\r\nHost: h\r\n\r\n")
            .with(
                Reverse,
                "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nGET /not one",
            )
            .with(
                Forward,
                "POST /two HTTP/1.1\r\nHost: other\r\nContent-Length: 5\r\n\r\nbytes\
                 HEAD /three HTTP/1.1\r\nHost: h\r\nUser-Agent: late\r\n\r\n",
            )
            .with(
                Reverse,
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n\
                 Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nHTTP/\r\n0\r\nA: b\r\n\r\n\
                 HTTP/1.1 404 None\r\nContent-Length: 1000\r\n\r\n",
            )
            .with(Forward, "GET /four HTTP/1.1\r\n\r\n"),
        Sample::new("http-connect", Tcp, 8080)
            .with(
                Forward,
                "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
            )
            .with(Reverse, "HTTP/1.1 407 Who\r\nContent-Length: 2\r\n\r\nno")
            .with(
                Forward,
                "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\
                 Proxy-Authorization: Basic eDp5\r\n\r\n",
            )
            .with(Reverse, "HTTP/1.1 200 Connection established\r\n\r\n")
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
    ]
}

pub fn others() -> Vec<Sample> {
    vec![
        Sample::new("sip-tcp", Tcp, 5060)
            .with(Forward, INVITE)
            .with(Reverse, RINGING),
        Sample::new("sip", Udp, 5060)
            .with(Forward, INVITE)
            .with(Reverse, RINGING),
        Sample::new("smtp", Tcp, 25)
            .with(Reverse, "220-one\r\n220 mail.example ESMTP\r\n")
            .with(Forward, "EHLO me.example\r\n")
            .with(Reverse, "250-mail.example\r\n250 SIZE\r\n")
            .with(
                Forward,
                "MAIL FROM:<a@b.example> SIZE=4\r\nRCPT TO:<c@d>\r\nRCPT TO:<e@f>\r\n",
            )
            .with(Reverse, "250 ok\r\n250 ok\r\n")
            .with(Forward, "DATA\r\n"),
        Sample::new("smtp-starttls", Tcp, 25)
            .with(Reverse, "220 mail.example ESMTP\r\n")
            .with(Forward, "EHLO me\r\n")
            .with(Reverse, "250-mail.example\r\n250 STARTTLS\r\n")
            .with(Forward, "STARTTLS\r\n")
            .with(Reverse, "220 go\r\n")
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
        Sample::new("ftp", Tcp, 9999)
            .with(Reverse, "220 welcome\r\n")
            .with(Forward, "USER x\r\n")
            .with(Reverse, "331 password\r\n"),
        Sample::new("ftp-tls", Tcp, 21)
            .with(Reverse, "220 welcome\r\n")
            .with(Forward, "AUTH TLS\r\n")
            .with(Reverse, "502 not that\r\n")
            .with(Forward, "AUTH SSL\r\n")
            .with(Reverse, "234 go\r\n")
            .with(Forward, records(&chrome(), 5000))
            .with(Reverse, records(&answer(), 5000)),
        Sample::new("imap", Tcp, 143)
            .with(Reverse, "* OK [CAPABILITY IMAP4rev1] ready\r\n")
            .with(Forward, "a1 LOGIN x y\r\n"),
        Sample::new("pop3", Tcp, 110)
            .with(Reverse, "+OK <1.2@host>\r\n")
            .with(Forward, "STLS\r\n")
            .with(Reverse, "-ERR no\r\n"),
    ]
}

const INVITE: &[u8] =
    b"INVITE sip:bob@example.org SIP/2.0\r\nVia: SIP/2.0/UDP a\r\nf: <sip:alice@a>;tag=1\r\n\
    To : <sip:bob@example.org>\r\nCall-ID: 1@a\r\nUser-Agent: phone\r\nContent-Length: 0\r\n\r\n";
const RINGING: &[u8] = b"SIP/2.0 180 Ringing\r\nFrom: <sip:alice@a>;tag=1\r\nServer: box\r\n\r\n";
