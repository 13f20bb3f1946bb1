"""The TCP port of a shard, for the router of another node, with mutual TLS unless the operator has switched it off."""

import grpc
from grpc import aio

from ..config.cluster import ClusterFiles, ClusterListener
from ..errors import ConfigurationError


def listen_for_nodes(server: aio.Server, listener: ClusterListener) -> None:
    """Makes `server` listen on `listener` too. Raises `ConfigurationError` naming the unusable address or file."""
    try:
        if listener.files is None:
            server.add_insecure_port(listener.address)
        else:
            server.add_secure_port(listener.address, _credentials(listener.files))
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot listen on {listener.address} for the router of node 0: {error}; choose another --master-port"
        ) from error


def _credentials(files: ClusterFiles) -> grpc.ServerCredentials:
    """Reads the certificates; a client must have a certificate of the same authority."""
    try:
        certificate, key, authority = (path.read_bytes() for path in (files.certificate, files.key, files.authority))
    except OSError as error:
        raise ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)
