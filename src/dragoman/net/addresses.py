"""Classifies IP addresses: public, private, or forbidden. Pure; does no lookups.

`ipaddress.is_global` is no guard: it calls NAT64 and 6to4 forms of 169.254.169.254 global, and
fec0::1, 192.0.0.192 and multicast, too. So the ranges are written out here, an IPv4 address inside
an IPv6 one is classified as well, and the worst verdict counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple


class Verdict(IntEnum):
    """The worse, the greater."""

    PUBLIC = 0
    PRIVATE = 1
    FORBIDDEN = 2


class AddressClass(NamedTuple):
    verdict: Verdict
    kind: str
    """As text, with its article: "a private address"."""
    loopback: bool = False


_PUBLIC = AddressClass(Verdict.PUBLIC, "a public address")
_PRIVATE = AddressClass(Verdict.PRIVATE, "a private address")
_LOOPBACK = AddressClass(Verdict.PRIVATE, "a loopback address", loopback=True)
_METADATA = AddressClass(Verdict.FORBIDDEN, "a cloud metadata address")
_LINK_LOCAL = AddressClass(Verdict.FORBIDDEN, "a link-local address")
_MULTICAST = AddressClass(Verdict.FORBIDDEN, "a multicast address")
_UNSPECIFIED = AddressClass(Verdict.FORBIDDEN, "an unspecified address")
_RESERVED = AddressClass(Verdict.FORBIDDEN, "a reserved address")

# The first match counts. What matches none is public.
_V4: tuple[tuple[IPv4Network, AddressClass], ...] = tuple(
    (IPv4Network(network), judgement)
    for network, judgement in (
        ("169.254.169.254/32", _METADATA),  # AWS, GCP, Azure, and most others
        ("169.254.170.0/24", _METADATA),  # AWS task and pod credentials
        ("100.100.100.200/32", _METADATA),  # Alibaba, inside the CGNAT range
        ("192.0.0.192/32", _METADATA),  # Oracle
        ("168.63.129.16/32", _METADATA),  # Azure's WireServer, inside a public range
        ("0.0.0.0/8", _UNSPECIFIED),  # "this network": Linux takes 0.0.0.0 for itself
        ("127.0.0.0/8", _LOOPBACK),
        ("10.0.0.0/8", _PRIVATE),
        ("172.16.0.0/12", _PRIVATE),
        ("192.168.0.0/16", _PRIVATE),
        ("100.64.0.0/10", _PRIVATE),  # CGNAT, RFC 6598
        ("198.18.0.0/15", _PRIVATE),  # benchmarking, RFC 2544; VPNs hand it out for names
        ("169.254.0.0/16", _LINK_LOCAL),
        ("192.0.0.0/24", _RESERVED),  # IETF protocol assignments
        ("192.0.2.0/24", _RESERVED),  # documentation
        ("198.51.100.0/24", _RESERVED),
        ("203.0.113.0/24", _RESERVED),
        ("192.88.99.0/24", _RESERVED),  # 6to4 relays, withdrawn
        ("224.0.0.0/4", _MULTICAST),
        ("240.0.0.0/4", _RESERVED),  # and the broadcast address
    )
)

# The first match counts. What matches none is reserved: IANA has given out 2000::/3 only.
_V6: tuple[tuple[IPv6Network, AddressClass], ...] = tuple(
    (IPv6Network(network), judgement)
    for network, judgement in (
        ("fd00:ec2::/32", _METADATA),  # AWS: fd00:ec2::254 and its neighbours
        ("fd20:ce::254/128", _METADATA),  # GCP
        ("fd00:c1::a9fe:a9fe/128", _METADATA),  # Oracle
        ("fd00:42::42/128", _METADATA),  # Scaleway
        ("::/128", _UNSPECIFIED),
        ("::1/128", _LOOPBACK),
        ("::ffff:0:0/96", _PUBLIC),  # IPv4-mapped: as its inner address
        ("64:ff9b::/96", _PUBLIC),  # NAT64: as its inner address
        ("64:ff9b:1::/48", _PRIVATE),  # NAT64 for local use, RFC 8215
        ("fc00::/7", _PRIVATE),  # unique local
        ("fec0::/10", _PRIVATE),  # site-local, deprecated and still routed in places
        ("fe80::/10", _LINK_LOCAL),
        ("ff00::/8", _MULTICAST),
        ("2001::/32", _PUBLIC),  # Teredo: as its inner addresses
        ("2001::/23", _RESERVED),  # IETF protocol assignments
        ("2001:db8::/32", _RESERVED),  # documentation
        ("3fff::/20", _RESERVED),
        ("2000::/3", _PUBLIC),
    )
)


# Where the last four bytes are an IPv4 address: mapped, compatible (deprecated), NAT64.
_LAST_FOUR = (bytes(10) + b"\xff\xff", bytes(12), b"\x00\x64\xff\x9b" + bytes(8))


def classify_address(text: str) -> AddressClass:
    """Classifies an address; anything but an IP address in its usual spelling is forbidden."""
    try:
        address = ip_address(text)
    except ValueError:
        return AddressClass(Verdict.FORBIDDEN, "not an IP address")
    if isinstance(address, IPv4Address):
        return _classify_v4(address)
    outer = next((found for network, found in _V6 if address in network), _RESERVED)
    return max(
        (outer, *map(_classify_v4, _list_embedded(address))),
        key=lambda judgement: judgement.verdict,
    )


def _classify_v4(address: IPv4Address) -> AddressClass:
    return next((found for network, found in _V4 if address in network), _PUBLIC)


def _list_embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Every IPv4 address that something on the path may take `address` for."""
    raw = address.packed
    low = IPv4Address(raw[12:])
    if raw[:12] in _LAST_FOUR and int(address) > 1:  # :: and ::1 are themselves
        yield low
    elif raw[:6] == b"\x00\x64\xff\x9b\x00\x01":
        # NAT64 for local use. Only the operator knows the length of its prefix, so each place
        # that RFC 6052 section 2.2 allows is checked; octet 8 is skipped.
        yield low
        for place in (raw[6:8] + raw[9:11], raw[7:8] + raw[9:12], raw[9:13]):
            if place[0]:
                yield IPv4Address(place)
    elif raw[:2] == b"\x20\x02":  # 6to4
        yield IPv4Address(raw[2:6])
    elif raw[:4] == b"\x20\x01\x00\x00":  # Teredo: its server, and its client in complement
        yield IPv4Address(raw[4:8])
        yield IPv4Address(int(low) ^ 0xFFFFFFFF)
    if raw[8:12] in (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"):  # ISATAP
        yield low
