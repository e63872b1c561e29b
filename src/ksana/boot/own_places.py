"""What belongs to this server itself and is no target of tasks: the API, Redis, the database."""

import contextlib
import socket
from typing import Final
from urllib.parse import urlsplit

from ksana.boot.settings.table import Settings

_PORTS: Final = {"mysql": 3306, "postgresql": 5432, "redis": 6379, "rediss": 6379}


def list_own_places(settings: Settings) -> list[tuple[str, int]]:
    """(host, port) of each, by name and by address as far as both are known. Of the API, which may
    listen on every address of this machine, see `is_here`."""
    server = settings.server
    # An empty host means every address. One address of a name is bound; none is a target.
    places = _addresses_of(server.host or "0.0.0.0", server.port)
    for url in (settings.store.url, settings.coordination.url):
        places += _places_of(url)
    return list(dict.fromkeys(places))


def is_here(ip: str) -> bool:
    """Whether an address is one of this machine's: only to those can a socket be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


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
            places += _addresses_of(host.strip("[]"), int(port))
    return places


def _addresses_of(host: str, port: int) -> list[tuple[str, int]]:
    places = [(host, port)]
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        places += [(str(entry[4][0]), port) for entry in found]
    return places
