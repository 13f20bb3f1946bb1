"""Addresses of ranks on several nodes, and the certificates by which nodes know each other."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError


@dataclass(frozen=True)
class ClusterFiles:
    """PEM files of mutual TLS: the certificate of this node, its key, and the authority that all nodes trust."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True)
class ClusterListener:
    """`address`: IP address and port, such as `10.0.0.3:29503`. Without `files` anybody may connect."""

    address: str
    files: ClusterFiles | None


def cluster_listener(
    address: str | None, certificate: Path | None, key: Path | None, authority: Path | None, insecure: bool
) -> ClusterListener | None:
    """Checks the flags of `serve`. Raises `ConfigurationError` for an address that nothing would protect."""
    if address is None:
        return None
    if insecure:
        return ClusterListener(address, None)
    if certificate is None or key is None or authority is None:
        raise ConfigurationError(
            "--listen needs --cluster-cert, --cluster-key and --cluster-ca, or --cluster-insecure on a network where "
            "everybody may use the shards"
        )
    return ClusterListener(address, ClusterFiles(certificate, key, authority))
