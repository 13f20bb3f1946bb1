"""The shard's socket file: it has mode 0600, and is removed when the process ends."""

import os
import socket
import stat
from pathlib import Path

from ..errors import ConfigurationError

_MAX_PATH_BYTES = 107
"""Linux keeps 108 bytes for the path of a Unix socket, one of them for the final zero."""


class SocketFile:
    """Owns `path`, and its folder if `directory_owned`. Any thread may call it."""

    def __init__(self, path: Path, directory_owned: bool) -> None:
        self._path = path
        self._directory_owned = directory_owned

    def prepare(self) -> None:
        """Removes the socket of a crashed run. Raises `ConfigurationError` for anything else in the way."""
        if len(os.fsencode(self._path)) > _MAX_PATH_BYTES:
            raise ConfigurationError(
                f"--uds-path makes a socket path longer than {_MAX_PATH_BYTES} bytes: {self._path}; use a shorter one"
            )
        if not self._path.parent.is_dir():
            raise ConfigurationError(f"the folder of --uds-path does not exist: {self._path.parent}")
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigurationError(
                f"{self._path} is in the way and is no socket of this user; choose another --uds-path"
            )
        if _is_served(self._path):
            raise ConfigurationError(f"another server listens on {self._path}; stop it or choose another --uds-path")
        self._path.unlink()

    def restrict(self) -> None:
        """Lets only this user connect."""
        self._path.chmod(0o600)

    def remove(self) -> None:
        """Removes the socket. The folder stays for ranks that start again."""
        self._path.unlink(missing_ok=True)

    def remove_with_folder(self) -> None:
        """Removes the socket, and the folder if this was its last socket, because no parent is left to do so."""
        self.remove()
        if self._directory_owned:
            try:
                self._path.parent.rmdir()
            except OSError:
                # Other ranks still have their sockets there; the last one takes the folder with it.
                return


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
