"""Which addresses a job may make a worker call, and connecting to exactly the address that was checked.

A job's URL is somebody else's text, and a worker stands inside the network: without this, whoever may create a job
may read the cloud's metadata service and every internal page. A name is resolved once, all its addresses are
checked, and the connection goes to one of those: a second look-up could give another answer (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, NamedTuple

import httpcore

from pipeline.core.handler import Dead

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""`await resolve(host, port)`: its addresses as text, at least one. OSError if there are none."""

NEVER: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: metadata of AWS, Azure, Google, OpenStack; credentials of ECS and EKS
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's WireServer, which looks public
        "192.0.0.192/32",  # Oracle
        "fe80::/10",  # link-local
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # Google
    )
)
"""Whoever reads these has the machine's credentials: no setting allows them."""
METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
_SPECIAL: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "3fff::/20"),
    )
)
"""Not of the public Internet, by IANA's registries of special-purpose addresses. A list of our own, because that of
`ipaddress` differs between the versions of Python."""
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_6TO4 = ipaddress.ip_network("2002::/16")
_V4_FORM = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")


class Endpoint(NamedTuple):
    """A host, or `*.suffix`, in lower case; `port` None = any."""

    host: str
    port: int | None

    def covers(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


def endpoint(text: str) -> Endpoint:
    """As the setting has it: `host`, `host:port`, `*.suffix`, `[address]:port`."""
    host, port = text.lower(), ""
    if ":" in host and not host.endswith("]"):
        host, _, port = host.rpartition(":")
    return Endpoint(host.strip("[]").rstrip("."), int(port) if port else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be called beside public addresses."""

    endpoints: tuple[Endpoint, ...] = ()
    networks: tuple[Network, ...] = ()
    loopback: bool = False

    def refusal(self, host: str, port: int, address: Address) -> str | None:
        """Why `address` of `host` must not be called; None if it may."""
        host = host.lower().rstrip(".")
        real = embedded(address)
        if host in METADATA_NAMES or any(real in network for network in NEVER):
            return "a metadata or link-local service, which is never called"
        if public(real) or self._allowed(host, port, real):
            return None
        return "not public; DUELINE_HTTP_ALLOW of the workers would have to name it"

    def _allowed(self, host: str, port: int, address: Address) -> bool:
        if self.loopback and address.is_loopback:
            return True
        return any(address in network for network in self.networks) or any(
            known.covers(name, port) for known in self.endpoints for name in (host, str(address))
        )


def policy(allow: Iterable[str], *, loopback: bool) -> Policy:
    """Of the setting `http_allow`; `loopback` allows this machine itself."""
    networks: list[Network] = []
    endpoints: list[Endpoint] = []
    for text in allow:
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            endpoints.append(endpoint(text))
    return Policy(endpoints=tuple(endpoints), networks=tuple(networks), loopback=loopback)


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one leads to (mapped, NAT64, 6to4), else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _6TO4:
        return IPv4Address(int(address) >> 80 & 0xFFFF_FFFF)
    return address


def public(address: Address) -> bool:
    """Whether it is of the public Internet, one machine's; of an embedding address ask for the embedded one."""
    if any(address in network for network in _SPECIAL):
        return False
    return isinstance(address, IPv4Address) or address in _GLOBAL_V6


def plain_host(host: str) -> bool:
    """Whether a host, in ASCII, is a name or an address in its usual form. `0x7f.1`, `0177.0.0.1` and `2130706433` are
    127.0.0.1 to some and names to others: nobody writes them in good faith."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return re.fullmatch(r"[a-z0-9._-]{1,253}", host) is not None and not _V4_FORM.fullmatch(host)
    return "%" not in host


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system, once. OSError (gaierror) if it does not know."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [*dict.fromkeys(str(entry[4][0]) for entry in found)]


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses only. TLS and `Host` keep the name, which stands in the URL."""

    def __init__(self, rules: Policy, resolve: Resolve) -> None:
        self._rules = rules
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        """Dead if an address of `host` must not be called; httpcore.ConnectError and ConnectTimeout as usual."""
        addresses = await self._checked(host, port, timeout)
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue  # the next one may be reachable: a host without a route to IPv6 is usual
        return await self._inner.connect_tcp(addresses[-1], port, share, local_address, socket_options)

    async def _checked(self, host: str, port: int, timeout: float | None) -> list[str]:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host} is not resolved in time") from None
        except OSError as error:
            raise httpcore.ConnectError(f"{host} is not resolved: {error}") from None
        for address in addresses:
            # One bad address of several is enough: a mixed answer is how rebinding begins.
            refusal = self._rules.refusal(host, port, ipaddress.ip_address(address))
            if refusal is not None:
                shown = host if host == address else f"{host} is {address}, which"
                raise Dead(f"url: {shown} is {refusal}")
        return [*addresses]
