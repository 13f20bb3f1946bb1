//! One request over one connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::error::{FetchError, FetcherError};
use super::target::Target;

const USER_AGENT: &str = concat!("text-generation/", env!("CARGO_PKG_VERSION"));
/// Of the head of an answer.
const MAX_HEAD: usize = 64 << 10;

/// Of authorities that the system trusts.
pub(super) fn system_roots() -> Result<RootCertStore, FetcherError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(FetcherError::NoRoots);
    }
    Ok(roots)
}

pub(super) fn tls(roots: RootCertStore) -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config).into())
}

pub(super) async fn dial(address: IpAddr, port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(SocketAddr::new(address, port)).await
}

/// Asks for the target, and takes at most `max_bytes`.
pub(super) async fn get(
    stream: TcpStream,
    target: &Target,
    tls: &TlsConnector,
    max_bytes: usize,
) -> Result<Bytes, FetchError> {
    if !target.is_secure {
        return exchange(stream, target, max_bytes).await;
    }
    let failed = || FetchError::Unreachable {
        host: target.host(),
    };
    let name = target.host();
    // Brackets of IPv6 are of URLs alone.
    let name = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let name = ServerName::try_from(name).map_err(|_| failed())?;
    let stream = tls.connect(name, stream).await.map_err(|_| failed())?;
    exchange(stream, target, max_bytes).await
}

async fn exchange<S>(stream: S, target: &Target, max_bytes: usize) -> Result<Bytes, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |_| FetchError::Unreachable {
        host: target.host(),
    };
    let request = Request::get(&target.path)
        .header(header::HOST, &target.authority)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, "image/*")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| FetchError::Url)?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // Within this future, so that nothing goes on when the caller has gone.
    let taken = async move {
        let response = sender.send_request(request).await.map_err(failed)?;
        body(response, target, max_bytes).await
    };
    let mut taken = std::pin::pin!(taken);
    tokio::select! {
        done = &mut taken => done,
        ended = connection => match ended {
            // Its last bytes may still have to be read.
            Ok(()) => taken.await,
            Err(error) => Err(failed(error)),
        },
    }
}

async fn body(
    response: Response<Incoming>,
    target: &Target,
    max: usize,
) -> Result<Bytes, FetchError> {
    let (host, status) = (target.host(), response.status());
    if status != StatusCode::OK {
        let status = status.as_u16();
        return Err(FetchError::Status { host, status });
    }
    let mut body = response.into_body();
    if body.size_hint().lower() > max as u64 {
        return Err(FetchError::Bytes { max });
    }
    let mut taken = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| FetchError::Unreachable { host: host.clone() })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > max - taken.len() {
            return Err(FetchError::Bytes { max });
        }
        taken.extend_from_slice(&data);
    }
    Ok(taken.freeze())
}
