"""The egress rules as a table."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import SetupError
from ksana.boot.own_places import is_here
from ksana.outbound.egress import EgressPolicy, unwrap

ALWAYS = [
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.51.100.7",
    "203.0.113.9",
    "192.88.99.1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "ff02::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:5601:5601",
    "nonsense",
    "",
]
PRIVATE = [
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "198.18.0.1",
    "::1",
    "fc00::1",
    "fdff::1",
    "fec0::1",
    "::ffff:10.0.0.1",
    "::10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
]
PUBLIC = [
    "1.1.1.1",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700::1111",
    "64:ff9b::101:101",
    "2002:101:101::1",
    "::ffff:1.1.1.1",
]


@pytest.mark.spec("X20")
@pytest.mark.parametrize("ip", ALWAYS)
def test_some_addresses_are_refused_whatever_the_settings_say(ip: str) -> None:
    generous = EgressPolicy(allow=["*", "169.254.0.0/16", "fe80::/10", "anything.test"])
    for policy in (EgressPolicy(), generous):
        reason = policy.check_address(ip, 80, "anything.test")
        assert reason is not None and "\n" not in reason


@pytest.mark.spec("X20")
@pytest.mark.parametrize("ip", PRIVATE)
def test_private_addresses_are_open_by_default_and_can_be_closed_and_opened_again(ip: str) -> None:
    assert EgressPolicy().check_address(ip, 80) is None
    assert EgressPolicy(allow_private=False).check_address(ip, 80) is not None
    assert EgressPolicy(deny=["private"]).check_address(ip, 80) is not None
    inner = unwrap(ip_address(ip))[0]
    assert EgressPolicy(allow=[str(inner)], deny=["private"]).check_address(ip, 80) is None
    assert EgressPolicy(allow=[str(inner)], allow_private=False).check_address(ip, 80) is None
    assert (
        EgressPolicy(allow=["in.test"], allow_private=False).check_address(ip, 80, "in.test")
        is None
    )


@pytest.mark.parametrize("ip", PUBLIC)
def test_public_addresses_are_open_unless_denied(ip: str) -> None:
    assert EgressPolicy(allow_private=False).check_address(ip, 443) is None
    assert EgressPolicy(deny=["*"]).check_address(ip, 443) is not None
    assert EgressPolicy(deny=["*"], allow=["ok.test"]).check_address(ip, 443, "ok.test") is None


def test_the_narrowest_rule_decides_and_deny_wins_a_tie() -> None:
    policy = EgressPolicy(
        allow=["10.1.0.0/16", "10.9.9.9"], deny=["10.0.0.0/8", "10.1.2.0/24", "10.9.9.9"]
    )
    assert policy.check_address("10.1.5.5") is None
    assert policy.check_address("10.1.2.5") is not None
    assert policy.check_address("10.2.0.1") is not None
    assert policy.check_address("10.9.9.9") is not None


def test_host_patterns() -> None:
    policy = EgressPolicy(allow=["good.bad.test"], deny=["*.bad.test", "Worse.Test."])
    assert policy.check_host("x.bad.test", 80) == "x.bad.test is denied by the egress rules"
    assert policy.check_host("a.b.bad.test", 80) is not None
    assert policy.check_host("worse.test", 80) is not None
    assert policy.check_host("good.bad.test", 80) is None
    assert policy.check_host("bad.test", 80) is None
    assert policy.check_host("notbad.test", 80) is None


@pytest.mark.parametrize("own", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "[::1]"])
def test_what_ksana_itself_listens_to_on_loopback_is_never_a_target(own: str) -> None:
    policy = EgressPolicy(allow=["loopback"], own=[(own, 6379)])
    for ip in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert policy.check_address(ip, 6379) is not None
        assert policy.check_address(ip, 80) is None


def test_what_listens_on_every_address_is_no_target_by_any_of_this_machine() -> None:
    here = {"10.0.0.7", "fd00::7"}
    policy = EgressPolicy(own=[("0.0.0.0", 7100)], is_here=here.__contains__)
    for ip in ("127.0.0.1", "::1", "10.0.0.7", "fd00::7", "::ffff:10.0.0.7"):
        assert "egress.allow" in (policy.check_address(ip, 7100) or ""), ip
        assert policy.check_address(ip, 80) is None
    assert policy.check_address("10.0.0.8", 7100) is None
    one = EgressPolicy(own=[("10.0.0.7", 7100)], is_here=here.__contains__)
    assert one.check_address("127.0.0.1", 7100) is None
    named = EgressPolicy(["10.0.0.7"], own=[("::", 7100)], is_here=here.__contains__)
    assert named.check_address("10.0.0.7", 7100) is None
    assert named.check_address("fd00::7", 7100) is not None


def test_only_addresses_of_this_machine_are_here() -> None:
    assert is_here("127.0.0.1")
    assert not is_here("198.51.100.77")
    assert not is_here("2001:db8::77")


def test_our_own_places_are_opened_by_a_rule_that_names_them() -> None:
    policy = EgressPolicy(allow=["127.0.0.1", "db.internal"], own=[("127.0.0.1", 7100)])
    assert policy.check_host("127.0.0.1", 7100) is None
    assert policy.check_address("127.0.0.1", 7100) is None
    assert policy.check_address("127.0.0.2", 7100) is not None
    own = EgressPolicy(allow=["db.internal"], own=[("db.internal", 3306), ("10.0.0.5", 3306)])
    assert own.check_host("db.internal", 3306) is None
    assert own.check_address("10.0.0.5", 3306, "db.internal") is None
    assert own.check_address("10.0.0.5", 3306, "other.internal") is not None


def test_own_addresses_and_names_elsewhere() -> None:
    policy = EgressPolicy(own=[("10.0.0.5", 5432), ("db.internal", 3306)])
    assert "own" in (policy.check_address("10.0.0.5", 5432) or "")
    assert policy.check_address("10.0.0.5", 80) is None
    assert policy.check_host("db.internal", 3306) == (
        "db.internal:3306 is Ksana's own, which only egress.allow can open to tasks"
    )
    assert policy.check_host("db.internal", 80) is None


def test_an_early_word_about_a_literal() -> None:
    policy = EgressPolicy(deny=["no.test"])
    assert policy.check_target("169.254.169.254", 80) == "169.254.169.254 is a metadata address"
    assert policy.check_target("64:ff9b::a9fe:a9fe", 80) == (
        "64:ff9b::a9fe:a9fe stands for 169.254.169.254, which is a metadata address"
    )
    assert policy.check_target("no.test", 80) is not None
    assert policy.check_target("yes.test", 80) is None


@pytest.mark.parametrize(
    "rule", ["10.0.0.0/33", "300.1.1.1", "a b", "http://x", "", "1.2.3", "a*b.test", "::g"]
)
def test_a_rule_that_cannot_be_read_stops_the_start(rule: str) -> None:
    with pytest.raises(SetupError, match=r"egress\.deny"):
        EgressPolicy(deny=[rule])


@given(st.ip_addresses(v=4))
def test_folding_an_address_into_ipv6_never_changes_the_verdict(address: IPv4Address) -> None:
    policy = EgressPolicy(deny=["10.0.0.0/8"])
    open_ = policy.check_address(str(address)) is None
    low = int(address)
    folded = [0xFFFF << 32 | low, 0x64FF9B << 96 | low, 0x2002 << 112 | low << 80]
    if low > 1:
        folded.append(low)
    for bits in folded:
        assert (policy.check_address(str(IPv6Address(bits))) is None) == open_
