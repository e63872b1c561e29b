"""Which addresses a call may reach. Pure rules; the caller asks them at connect time, about the
resolved address.

In order: some addresses are refused whatever the settings say (link-local and metadata, multicast,
unspecified, reserved); so are our own (the API, the database, Redis) unless a rule allows them;
then the narrowest of the allow and deny rules that matches decides, deny before allow when both are
as narrow; then private ranges are open unless `allow_private` is off; the rest is open. The tables
are written out here because `ipaddress.is_private` and `is_global` differ between Python versions.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from ksana.base.errors import SetupError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

METADATA: Final = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.169.253",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
"""Where clouds hand out credentials: AWS and most others, ECS, Alibaba, Azure, Oracle, AWS and GCP
over IPv6."""

_ALWAYS_REFUSED: Final = tuple(
    (ip_network(text), reason)
    for text, reason in (
        ("169.254.0.0/16", "link-local"),
        ("fe80::/10", "link-local"),
        ("224.0.0.0/4", "multicast"),
        ("ff00::/8", "multicast"),
        ("0.0.0.0/8", "unspecified"),
        ("::/128", "unspecified"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("100::/64", "reserved"),
        ("2001:db8::/32", "reserved"),
        ("3fff::/20", "reserved"),
        ("5f00::/16", "reserved"),
    )
)
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_PRIVATE: Final = tuple(
    ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "::1/128",
        "fc00::/7",
        "fec0::/10",
    )
)
_WORDS: Final[dict[str, tuple[int, tuple[Network, ...]]]] = {
    "loopback": (-1, _LOOPBACK),
    "private": (-2, _PRIVATE),
    "*": (-3, (ip_network("0.0.0.0/0"), ip_network("::/0"))),
}
"""Words for ranges, with how narrow they count: less than any CIDR, so that an address named
outright prevails."""
_PATTERN = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z", re.ASCII)

_NAT64 = ip_network("64:ff9b::/96")
_NAT64_LOCAL = ip_network("64:ff9b:1::/48")
_SIIT = ip_network("::ffff:0:0:0/96")
_COMPATIBLE = ip_network("::/96")
_LOW_32: Final = 0xFFFF_FFFF
_OWN: Final = "Ksana's own, which only egress.allow can open to tasks"


class EgressPolicy:
    """The rules in force. Never changes once made: a connection it allowed stays allowed for the
    caller's life."""

    def __init__(
        self,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        *,
        allow_private: bool = True,
        own: Iterable[tuple[str, int]] = (),
        is_here: Callable[[str], bool] = lambda ip: False,
    ) -> None:
        """Take CIDRs, addresses, host patterns (`api.example.com`, `*.example.com`), or `private`,
        `loopback`, `*`.

        `own` lists (address or name, port) of what belongs to Ksana itself: no target unless
        `allow` names it. What listens on every address of this machine is listed with an
        unspecified address; `is_here` tells which those are. Raise SetupError for a rule that
        cannot be read.
        """
        allowed, self._allowed_hosts = _read_rules("egress.allow", allow)
        denied, self._denied_hosts = _read_rules("egress.deny", deny)
        rules = [(-width, True, net) for width, net in allowed] + [
            (-width, False, net) for width, net in denied
        ]
        # Narrowest first, deny before allow: the first match decides.
        self._rules = tuple(
            (net, is_open) for _, is_open, net in sorted(rules, key=lambda rule: rule[:2])
        )
        # Of our own places only what is named outright is opened, not what a word covers.
        self._named = tuple(
            (net, is_open)
            for width, is_open, net in sorted(rules, key=lambda rule: rule[:2])
            if width <= 0
        )
        self._allow_private = allow_private
        self._own_hosts, self._own_addresses, self._ports_here = _read_own(own)
        self._is_here = is_here
        self._check = lru_cache(maxsize=4096)(self._check_uncached)

    def check_host(self, host: str, port: int) -> str | None:
        """Say why a name (lower case, no final dot) may not be called, before it is even looked up,
        or None."""
        if (host, port) in self._own_hosts and not self._is_named(host):
            return f"{host}:{port} is {_OWN}"
        if self._denied_hosts and (
            host in self._denied_hosts or _parents(host) & self._denied_hosts
        ):
            # An exact allow is narrower than a denied parent.
            if host in self._allowed_hosts and host not in self._denied_hosts:
                return None
            return f"{host} is denied by the egress rules"
        return None

    def check_address(self, ip: str, port: int = 0, host: str = "") -> str | None:
        """Say why an address may not be called, or None. `host` is the name that led to it."""
        return self._check(ip, port, bool(self._allowed_hosts) and self._is_host_allowed(host))

    def check_target(self, host: str, port: int) -> str | None:
        """Check what can be checked without a lookup, for an early error when a target is saved."""
        reason = self.check_host(host, port)
        if reason is not None:
            return reason
        try:
            literal = ip_address(host)
        except ValueError:
            return None
        return self.check_address(str(literal), port, host)

    def _is_named(self, host: str) -> bool:
        """Whether the allow rules name a host or address outright."""
        if self._is_host_allowed(host):
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return next((is_open for net, is_open in self._named if address in net), False)

    def _is_host_allowed(self, host: str) -> bool:
        return host in self._allowed_hosts or bool(_parents(host) & self._allowed_hosts)

    def _check_uncached(self, ip: str, port: int, host_allowed: bool) -> str | None:
        try:
            outer = ip_address(ip.partition("%")[0])
        except ValueError:
            return f"{ip} is not an address"
        for address in unwrap(outer):
            reason = self._check_one(address, port, host_allowed)
            if reason is not None:
                return (
                    f"{ip} is {reason}"
                    if address == outer
                    else f"{ip} stands for {address}, which is {reason}"
                )
        return None

    def _check_one(self, address: Address, port: int, host_allowed: bool) -> str | None:
        if address in METADATA:
            return "a metadata address"
        for net, name in _ALWAYS_REFUSED:
            if address in net:
                return f"{'an' if name[0] in 'aeiou' else 'a'} {name} address"
        if host_allowed:
            return None
        if self._is_own(address, port):
            is_allowed = next((is_open for net, is_open in self._named if address in net), False)
            return None if is_allowed else f"with port {port} {_OWN}"
        for net, allowed in self._rules:
            if address in net:
                return None if allowed else "denied by the egress rules"
        if not self._allow_private and any(address in net for net in _PRIVATE):
            return "a private address, which the egress rules do not allow"
        return None

    def _is_own(self, address: Address, port: int) -> bool:
        if (address, port) in self._own_addresses:
            return True
        if _is_loopback(address):
            return (None, port) in self._own_addresses
        return port in self._ports_here and self._is_here(str(address))


def unwrap(address: Address) -> tuple[Address, ...]:
    """List every address a packet to this one may end at: itself, or the IPv4 addresses folded into
    it."""
    if isinstance(address, IPv4Address):
        return (address,)
    bits = int(address)
    low = IPv4Address(bits & _LOW_32)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64 or address in _SIIT or (address in _COMPATIBLE and bits > 1):
        return (low,)
    if address in _NAT64_LOCAL:
        # A /48 prefix carries the address around bits 64 to 71 (RFC 6052); operators also cut a /96
        # out of it.
        spread = IPv4Address((bits >> 64 & 0xFFFF) << 16 | (bits >> 40 & 0xFFFF))
        return (spread,) if bits & ((1 << 40) - 1) == 0 else (low,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    return (address,)


def _is_loopback(address: Address) -> bool:
    return any(address in net for net in _LOOPBACK)


def _parents(host: str) -> set[str]:
    """List the patterns that cover a host from above: `*.b.c` and `*.c` for `a.b.c`."""
    labels = host.split(".")
    return {"*." + ".".join(labels[at:]) for at in range(1, len(labels))}


def _read_rules(
    setting: str, rules: Iterable[str]
) -> tuple[list[tuple[int, Network]], frozenset[str]]:
    """Part rules into networks, each with how narrow it is, and host patterns."""
    networks: list[tuple[int, Network]] = []
    hosts: set[str] = set()
    for rule in rules:
        text = rule.strip().lower()
        if text in _WORDS:
            width, nets = _WORDS[text]
            networks += [(width, net) for net in nets]
            continue
        try:
            net = ip_network(text.strip("[]"), strict=False)
            networks.append((net.prefixlen, net))
        except ValueError:
            # All digits and dots, or a slash: meant as an address, and a wrong one must not pass
            # for a name.
            if not _PATTERN.match(text.rstrip(".")) or re.fullmatch(r"[\d.]+", text):
                raise SetupError(
                    f"{setting}: {rule!r} is not a CIDR, an address, a host pattern, "
                    "private, loopback or *"
                ) from None
            hosts.add(text.rstrip("."))
    return networks, frozenset(hosts)


def _read_own(
    own: Iterable[tuple[str, int]],
) -> tuple[frozenset[tuple[str, int]], frozenset[tuple[Address | None, int]], frozenset[int]]:
    """Part them into names, addresses (None: any loopback address), and ports of all addresses."""
    hosts: set[tuple[str, int]] = set()
    ports: set[int] = set()
    addresses: set[tuple[Address | None, int]] = set()
    for host, port in own:
        name = host.strip("[]").lower().rstrip(".")
        hosts.add((name, port))
        try:
            address = ip_address(name)
        except ValueError:
            if name == "localhost":
                addresses.add((None, port))
            continue
        addresses.add((address, port))
        # What listens on one loopback address, or on all addresses, is near enough reached by any
        # loopback address.
        if address.is_unspecified or _is_loopback(address):
            addresses.add((None, port))
        if address.is_unspecified:
            ports.add(port)
    return frozenset(hosts), frozenset(addresses), frozenset(ports)
