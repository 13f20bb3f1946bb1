//! Fetching from servers on loopback, to which an injected resolver leads.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::address::{Public, Resolve};
use super::target::Target;
use super::{Domains, FetchError, FetchOptions, Fetcher, connection};

const HOST: &str = "pictures.test";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Every name has the same addresses.
#[derive(Debug)]
struct Fixed(Vec<IpAddr>);

impl Resolve for Fixed {
    fn resolve<'a>(
        &'a self,
        _: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}

fn domains(entries: &[&str]) -> Domains {
    Domains::parse(entries.iter().copied()).unwrap()
}

fn options(domain: &str) -> FetchOptions {
    FetchOptions {
        domains: domains(&[domain]),
        max_bytes: 1000,
        timeout: Duration::from_secs(20),
        at_once: 4,
    }
}

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("../../tests/tls/certificate.pem")).unwrap()
}

fn fetcher(options: FetchOptions, resolver: impl Resolve + 'static) -> Fetcher {
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    Fetcher::with(options, Arc::new(resolver), connection::tls(roots).unwrap())
}

/// Listens, and returns the port.
async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Reads the head of a request.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// What is fetched from a server that answers with these bytes and closes; and the head of the request.
async fn answered(answer: &'static str) -> (Result<Bytes, FetchError>, String) {
    let (listener, port) = listen().await;
    let fetcher = fetcher(options(&format!("{HOST}:{port}")), Fixed(vec![LOOPBACK]));
    let url = format!("http://{HOST}:{port}/a%20b.png?size=1#top");
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head(&mut stream).await;
        stream.write_all(answer.as_bytes()).await.ok();
        stream.shutdown().await.ok();
        head
    };
    tokio::join!(fetcher.fetch(&url), serve)
}

#[tokio::test]
async fn files_are_fetched_whatever_their_framing() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Type: image/png\r\n\r\nhello",
    ] {
        let (fetched, head) = answered(answer).await;
        assert_eq!(fetched.unwrap(), "hello");
        assert!(
            head.starts_with("GET /a%20b.png?size=1 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.to_lowercase().contains(&format!("\r\nhost: {HOST}:")),
            "{head}"
        );
    }
}

#[tokio::test]
async fn other_answers_are_errors() {
    let host = || HOST.to_owned();
    let broken = || FetchError::Unreachable { host: host() };
    let status = |status| FetchError::Status {
        host: host(),
        status,
    };
    for (answer, error) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            status(404),
        ),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
            status(302),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
            broken(),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
            FetchError::Bytes { max: 1000 },
        ),
        ("SSH-2.0-OpenSSH_9.6\r\n", broken()),
        ("", broken()),
    ] {
        let (fetched, _) = answered(answer).await;
        assert_eq!(fetched, Err(error), "{answer}");
    }
}

#[tokio::test]
async fn endless_answers_are_left_at_the_limit() {
    let (listener, port) = listen().await;
    let fetcher = fetcher(options(&format!("{HOST}:{port}")), Fixed(vec![LOOPBACK]));
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        // Ends when nobody reads any more.
        while stream.write_all(&[0; 600]).await.is_ok() {}
    };
    let url = format!("http://{HOST}:{port}/");
    let (fetched, ()) = tokio::join!(fetcher.fetch(&url), serve);
    assert_eq!(fetched, Err(FetchError::Bytes { max: 1000 }));
}

#[tokio::test]
async fn servers_that_say_nothing_are_left_in_time() {
    let (listener, port) = listen().await;
    let options = FetchOptions {
        timeout: Duration::from_millis(100),
        ..options(&format!("{HOST}:{port}"))
    };
    let fetcher = fetcher(options, Fixed(vec![LOOPBACK]));
    let url = format!("http://{HOST}:{port}/");
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // Whatever comes, until the other side has gone.
        stream.read_to_end(&mut Vec::new()).await.ok();
    };
    let (fetched, ()) = tokio::join!(fetcher.fetch(&url), serve);
    let (host, limit) = (HOST.to_owned(), Duration::from_millis(100));
    assert_eq!(fetched, Err(FetchError::Timeout { host, limit }));
}

#[tokio::test]
async fn the_next_address_is_dialled_where_one_refuses() {
    let (listener, port) = listen().await;
    // Nobody listens at this one.
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let fetcher = fetcher(
        options(&format!("{HOST}:{port}")),
        Fixed(vec![other, LOOPBACK]),
    );
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        stream.write_all(answer).await.unwrap();
    };
    let url = format!("http://{HOST}:{port}/");
    let (fetched, ()) = tokio::join!(fetcher.fetch(&url), serve);
    assert_eq!(fetched.unwrap(), "hi");
}

#[tokio::test]
async fn certificates_are_checked() {
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../tests/tls/key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    let serve = async |stream: TcpStream| {
        let Ok(mut stream) = acceptor.accept(stream).await else {
            return;
        };
        head(&mut stream).await;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        stream.write_all(answer).await.unwrap();
        stream.shutdown().await.ok();
    };
    for (host, is_known) in [(HOST, true), ("other.test", false)] {
        let (listener, port) = listen().await;
        let fetcher = fetcher(options(&format!("{host}:{port}")), Fixed(vec![LOOPBACK]));
        let url = format!("https://{host}:{port}/");
        let serving = async { serve(listener.accept().await.unwrap().0).await };
        let (fetched, ()) = tokio::join!(fetcher.fetch(&url), serving);
        if is_known {
            assert_eq!(fetched.unwrap(), "hi");
        } else {
            let host = host.to_owned();
            assert_eq!(fetched, Err(FetchError::Unreachable { host }));
        }
    }
}

#[tokio::test]
async fn own_networks_are_never_dialled() {
    let private = [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
    ];
    let private = private.map(|address| address.parse().unwrap());
    let fetcher = fetcher(options("*"), Public(Fixed(private.to_vec())));
    for host in [
        "anything.example",
        "localhost",
        "127.0.0.1",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "0",
        "169.254.169.254",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[fd00:ec2::254]",
        "１２７.0.0.1",
    ] {
        let fetched = fetcher.fetch(&format!("http://{host}/")).await;
        assert!(
            matches!(fetched, Err(FetchError::Address(_))),
            "{host}: {fetched:?}"
        );
    }
}

#[test]
fn only_allowed_hosts_are_targets() {
    let allowed = domains(&[
        "example.org",
        "*.example.com",
        "pictures.test:8443",
        "8.8.8.8",
    ]);
    let parse = |url: &str| Target::parse(url, &allowed);
    for url in [
        "https://example.org/a.png",
        "HTTP://EXAMPLE.org./a.png",
        "https://example.org:443/",
        "http://a.b.example.com/",
        "https://pictures.test:8443/",
        "http://8.8.8.8/",
    ] {
        assert!(parse(url).is_ok(), "{url}");
    }
    for url in [
        "https://www.example.org/",
        "https://example.com/",
        "https://evilexample.com/",
        "https://example.org.evil.test/",
        "https://example.org:8080/",
        "https://pictures.test/",
        "http://evil.test/example.org",
        "http://evil.test#@example.org/",
        "http://8.8.4.4/",
    ] {
        assert!(matches!(parse(url), Err(FetchError::Domain(_))), "{url}");
    }
    let scheme = |name: &str| Err(FetchError::Scheme(name.to_owned()));
    assert_eq!(parse("file:///etc/passwd"), scheme("file"));
    assert_eq!(parse("ftp://example.org/"), scheme("ftp"));
    assert_eq!(parse("/etc/passwd"), Err(FetchError::Url));
    assert_eq!(parse("http://"), Err(FetchError::Url));
    for url in ["http://me@example.org/", "http://me:secret@example.org/"] {
        assert_eq!(parse(url), Err(FetchError::Credentials));
    }
}

#[test]
fn what_is_dialled_is_what_was_checked() {
    // Some parsers take what stands behind the backslash for the host.
    let target = Target::parse(
        "http://example.org\\@evil.test/",
        &domains(&["example.org"]),
    );
    let target = target.unwrap();
    assert_eq!((target.host(), target.port), ("example.org".to_owned(), 80));
    assert_eq!(target.path, "/@evil.test/");
    let target = Target::parse("http://example.org/a\r\nX: b", &domains(&["*"])).unwrap();
    assert_eq!(target.path, "/aX:%20b");
}

#[test]
fn entries_that_are_no_domains_are_refused() {
    for entry in [
        "",
        "https://example.org",
        "a b",
        "*.1.2.3.4",
        "example.org:http",
        "**",
    ] {
        let error = Domains::parse([entry]).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("`{entry}`")),
            "{error}"
        );
    }
    assert_eq!(Domains::parse(["[::1]"]), Domains::parse(["[0:0::1]"]));
}
