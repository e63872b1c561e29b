"""What belongs to this server itself and is no target of tasks: the API, Redis, the database."""

import contextlib
import socket
from typing import Final
from urllib.parse import urlsplit

from ksana.boot.settings.table import Settings

_PORTS: Final = {"mysql": 3306, "postgresql": 5432, "redis": 6379, "rediss": 6379}


def list_own_places(settings: Settings) -> list[tuple[str, int]]:
    """(host, port) of each, by name and by address as far as both are known."""
    server = settings.server
    hosts = [server.host]
    if server.host in ("0.0.0.0", "::", ""):
        hosts += ["127.0.0.1", "::1", "localhost", *_addresses_here()]
    elif server.host in ("127.0.0.1", "::1", "localhost"):
        hosts += ["127.0.0.1", "::1", "localhost"]
    places = [(host, server.port) for host in hosts if host and server.port]
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


def _addresses_here() -> list[str]:
    """The addresses by which others know this machine."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        found |= {str(e[4][0]) for e in socket.getaddrinfo(socket.gethostname(), None)}
    for family, probe in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing; it chooses the address we would send from.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect((probe, 9))
            found.add(str(one.getsockname()[0]))
    return sorted(found)
