"""Classification of addresses, by table."""

from __future__ import annotations

import pytest

from dragoman.net.addresses import Verdict, classify_address


def _each(text: str) -> list[str]:
    return text.split()


PUBLIC = _each("""
8.8.8.8 1.1.1.1 93.184.216.34 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.167.255.255
169.253.255.255 126.255.255.255 128.0.0.1 168.63.129.15 198.17.255.255 198.20.0.0 223.255.255.255
2606:4700::1111 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1
2001:0:808:808:0:0:f7f7:f7f7
""")

PRIVATE = _each("""
127.0.0.1 127.1.2.3 127.255.255.255 10.0.0.5 10.255.255.255 172.16.0.1 172.31.255.255 192.168.1.1
100.64.0.1 100.127.255.255 198.18.0.1 198.19.255.255 ::1 fc00::1 fd12:3456::1 fec0::1 feff::1
::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1 2002:7f00:1:: 2002:c0a8:101::1
2001:0:7f00:1:0:0:f7f7:f7f7 2001:0:808:808:0:0:f5ff:fffe 64:ff9b:1::808:808
2a00::5efe:10.0.0.1 2a00::200:5efe:192.168.0.1
""")

FORBIDDEN = _each("""
169.254.169.254 169.254.170.2 169.254.0.1 100.100.100.200 192.0.0.192 168.63.129.16 0.0.0.0 0.1.2.3
224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 192.0.0.8 192.0.2.1 198.51.100.1 203.0.113.1
192.88.99.1
:: fe80::1 fe80::1%eth0 febf::1 ff02::1 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:42::42
fd00:c1::a9fe:a9fe ::127.0.0.1 ::8.8.8.8 ::169.254.169.254 ::ffff:169.254.169.254 ::ffff:0.0.0.0
::ffff:100.100.100.200 ::ffff:0:169.254.169.254 64:ff9b::a9fe:a9fe 64:ff9b:1::a9fe:a9fe
64:ff9b:1:a9fe:a9:fe00:: 64:ff9b:1:a9:fe:a9fe:808:808 64:ff9b:1:0:a9:fea9:fe08:808
2002:a9fe:a9fe:: 2002:6464:64c8::1 2002:: 2001:0:a9fe:a9fe:0:0:f7f7:f7f7
2001:0:808:808:0:0:5601:5601 2a00::5efe:169.254.169.254
2001:db8::1 2001:2::1 2001:10::1 2001:20::1 3fff::1 100::1 5f00::1 4000::1 1::1
""")

NO_ADDRESSES = [
    "2130706433", "0x7f000001", "0x7f.1", "127.1", "0", "0177.0.0.1", "127.0.0.1.", " 127.0.0.1",
    "127.0.0.1\n", "\uff11\uff12\uff17.0.0.1", "①②⑦.0.0.1", "127。0。0。1", "[::1]", "user@8.8.8.8",
    "localhost", "example.com", "",
]  # fmt: skip


@pytest.mark.promise("B11")
@pytest.mark.parametrize(
    ("address", "verdict"),
    [(address, Verdict.PUBLIC) for address in PUBLIC]
    + [(address, Verdict.PRIVATE) for address in PRIVATE]
    + [(address, Verdict.FORBIDDEN) for address in FORBIDDEN + NO_ADDRESSES],
)
def test_address_is_classified_by_its_most_restrictive_range(
    address: str, verdict: Verdict
) -> None:
    assert classify_address(address).verdict is verdict, classify_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_distinguished_from_other_private_addresses(address: str) -> None:
    assert classify_address(address).loopback
    assert not classify_address("10.0.0.1").loopback


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("169.254.169.254", "a cloud metadata address"),
        ("64:ff9b::a9fe:a9fe", "a cloud metadata address"),
        ("169.254.1.1", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("0.0.0.0", "an unspecified address"),
        ("10.0.0.1", "a private address"),
        ("::1", "a loopback address"),
    ],
)
def test_address_error_names_the_kind_of_address(address: str, kind: str) -> None:
    assert classify_address(address).kind == kind
