"""What belongs to this server itself and is no target of tasks: Redis and the database."""

import contextlib
import socket
from typing import Final
from urllib.parse import urlsplit

from ksana.boot.settings.table import Settings

_PORTS: Final = {"mysql": 3306, "postgresql": 5432, "redis": 6379, "rediss": 6379}


def list_own_places(settings: Settings) -> list[tuple[str, int]]:
    """(host, port) of each, by name and by address as far as both are known."""
    places: list[tuple[str, int]] = []
    for url in (settings.store.url, settings.coordination.url):
        places += _places_of(url)
    return list(dict.fromkeys(places))


def _places_of(url: str) -> list[tuple[str, int]]:
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme not in _PORTS:
        return []
    places = []
    for each in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host, _, port = each.rpartition(":") if not each.endswith("]") else (each, "", "")
        if not port.isdigit():
            host, port = each, str(_PORTS[scheme])
        if host:
            places.append((host.strip("[]"), int(port)))
            with contextlib.suppress(OSError):
                found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
                places += [(str(entry[4][0]), int(port)) for entry in found]
    return places
