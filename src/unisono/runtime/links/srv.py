"""Finding nodes by DNS: the SRV records of `_unisono._tcp.DOMAIN` (RFC 2782). The door to the extra `[dns]`."""

from typing import NamedTuple

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.rdatatype
import dns.resolver
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

from unisono.errors import MisuseError, PeerError, TransportError

SERVICE = "_unisono._tcp"
TRY_S = 1.0
"""A question over UDP is repeated after this."""


class NameServer(NamedTuple):
    """Whom to ask, if not whom this machine asks."""

    host: str
    port: int


async def resolve_srv(domain: str, server: NameServer | None, timeout_s: float) -> list[str]:
    """`host:port` of the nodes of a domain, best first; raises TransportError when DNS knows none."""
    name = _name_of(domain)
    try:
        answer = await _resolver(server).resolve(name, dns.rdatatype.SRV, lifetime=timeout_s)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        raise TransportError(f"DNS has no SRV record for {name.to_text(omit_final_dot=True)}") from None
    except dns.resolver.LifetimeTimeout:
        asked = "the DNS server" if server is None else f"the DNS server {server.host}:{server.port}"
        raise TransportError(f"{asked} does not answer") from None
    except dns.resolver.NoResolverConfiguration:
        raise TransportError("this machine names no DNS server: add ?dns=host:port to the address") from None
    except dns.exception.DNSException as error:
        raise PeerError(f"DNS has no answer for {name.to_text(omit_final_dot=True)}: {error}") from None
    addresses = _addresses(answer.response)
    turn = answer.rrset.processing_order() if answer.rrset is not None else []
    records = [record for record in turn if isinstance(record, SRV) and record.target != dns.name.root]
    if not records:  # a lone "." is the word that this service is not offered
        raise TransportError(f"DNS says that {domain} has no nodes")
    return [_endpoint(record, addresses) for record in records]


def _name_of(domain: str) -> dns.name.Name:
    try:
        if not domain:
            raise MisuseError("'' is no domain name")
        return dns.name.from_text(f"{SERVICE}.{domain}")
    except (dns.exception.DNSException, UnicodeError):
        raise MisuseError(f"{domain!r} is no domain name") from None


def _resolver(server: NameServer | None) -> dns.asyncresolver.Resolver:
    resolver = dns.asyncresolver.Resolver(configure=server is None)
    if server is not None:
        try:
            resolver.nameservers = [server.host]
        except ValueError:
            raise MisuseError(f"?dns={server.host}:{server.port} has to be an IP address and a port") from None
        resolver.port = server.port
    resolver.timeout = TRY_S
    return resolver


def _addresses(response: dns.message.Message) -> dict[dns.name.Name, str]:
    """What the answer says beside: addresses of the nodes it names, which need not be asked for then."""
    found = ((records.name, next(iter(records), None)) for records in reversed(response.additional))
    return {name: record.address for name, record in found if isinstance(record, A | AAAA)}


def _endpoint(record: SRV, addresses: dict[dns.name.Name, str]) -> str:
    host = addresses.get(record.target) or record.target.to_text(omit_final_dot=True)
    return f"[{host}]:{record.port}" if ":" in host else f"{host}:{record.port}"
