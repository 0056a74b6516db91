"""Which addresses may be called."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from pipeline.handlers.addresses import plain_host, policy

ANYTHING = policy(["0.0.0.0/0", "::/0", "*.internal", "metadata.google.internal"], loopback=True)
NOTHING = policy([], loopback=False)


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9"),
        *("169.254.1.1", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.168.1.1"),
        *("192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
        *("239.255.255.250", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1"),
        *("64:ff9b::10.0.0.1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a00:1::", "3fff::1"),
        *("2002:7f00:1::1", "5f00::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1"),
    ],
)
def test_an_address_that_is_not_public_is_not_called(address: str) -> None:
    assert NOTHING.refusal("any.example", 80, ip_address(address)) is not None


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "93.184.215.14", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1"),
        *("192.169.0.1", "198.17.0.1", "223.255.255.255"),
        *("2606:4700:4700::1111", "2a00:1450::1", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1", "2002:101:101::1"),
    ],
)
def test_a_public_address_is_called(address: str) -> None:
    assert NOTHING.refusal("any.example", 80, ip_address(address)) is None


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe"),
        *("::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1"),
    ],
)
def test_what_hands_out_the_machines_credentials_is_never_called(address: str) -> None:
    assert "never called" in (ANYTHING.refusal("fine.internal", 80, ip_address(address)) or "")


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.google.internal.", "instance-data"])
def test_a_metadata_service_is_not_called_by_its_name_either(host: str) -> None:
    assert "never called" in (ANYTHING.refusal(host, 80, ip_address("10.0.0.1")) or "")


@pytest.mark.parametrize(
    ("allow", "host", "port", "address", "may"),
    [
        ("10.0.0.0/8", "x.example", 80, "10.255.0.1", True),
        ("10.0.0.0/8", "x.example", 80, "11.0.0.1", True),
        ("10.0.0.0/8", "x.example", 80, "192.168.0.1", False),
        ("10.0.0.0/8", "x.example", 80, "64:ff9b::10.0.0.1", True),
        ("fd00::/8", "x.example", 80, "fd12::1", True),
        ("hooks.internal", "hooks.internal", 8080, "10.0.0.1", True),
        ("Hooks.Internal.", "hooks.internal.", 8080, "10.0.0.1", True),
        ("hooks.internal", "nothooks.internal", 80, "10.0.0.1", False),
        ("hooks.internal:8080", "hooks.internal", 8080, "10.0.0.1", True),
        ("hooks.internal:8080", "hooks.internal", 80, "10.0.0.1", False),
        ("*.svc.local", "a.b.svc.local", 80, "10.0.0.1", True),
        ("*.svc.local", "svc.local", 80, "10.0.0.1", False),
        ("*.svc.local:80", "a.svc.local", 81, "10.0.0.1", False),
        ("127.0.0.1:8080", "localhost", 8080, "127.0.0.1", True),
        ("127.0.0.1:8080", "localhost", 8081, "127.0.0.1", False),
        ("[::1]:8080", "localhost", 8080, "::1", True),
        ("::1", "localhost", 1, "::1", True),
    ],
)
def test_what_the_setting_allows(allow: str, host: str, port: int, address: str, may: bool) -> None:
    refusal = policy([allow], loopback=False).refusal(host, port, ip_address(address))
    assert (refusal is None) == may


def test_development_allows_this_machine_and_no_other() -> None:
    rules = policy([], loopback=True)
    assert rules.refusal("localhost", 80, ip_address("127.0.0.1")) is None
    assert rules.refusal("localhost", 80, ip_address("::1")) is None
    assert rules.refusal("neighbour", 80, ip_address("192.168.0.2")) is not None


@pytest.mark.parametrize(
    "host", ["example.org", "a-b_c.d", "localhost", "1.2.3.4", "::1", "xn--bcher-kva.example"]
)
def test_a_host_in_its_usual_form(host: str) -> None:
    assert plain_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "0177.0.0.1.", "1.2.3.4.", "a.0x7f"),
        *("", "a b", "a%2eb", "fe80::1%eth0", "bücher.example", "a" * 254),
    ],
)
def test_a_host_that_some_read_as_an_address_and_others_as_a_name(host: str) -> None:
    assert not plain_host(host)
