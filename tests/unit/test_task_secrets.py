"""Secrets: which parts of a task are secret, in which spellings they are looked for, and how they
are stored. No spelling of a secret survives masking."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.domain import secrets
from ksana.domain.secrets import MASK, Secrets, key_id_of, mask, pack, spell
from ksana.domain.tasks import sealing
from ksana.domain.tasks.records import Definition
from ksana.domain.tasks.secrets import (
    OF_THE_CALL,
    SECRET_HEADERS,
    add_body,
    add_token,
    find_origin,
    find_secrets,
    has_moved,
    list_secret_names,
)
from tests.unit.task_ground import a_definition

pytestmark = pytest.mark.spec("X2")


def forms(*values: str) -> set[str]:
    return {one.decode("utf-8", "surrogateescape") for one in spell(values)}


def test_a_secret_is_looked_for_as_it_is_and_inside_json_urls_and_html() -> None:
    assert forms('pä/"<') == {
        'pä/"<',
        *('pä/\\"<', 'pä\\/\\"<', 'pä/\\"\\u003c', 'pä/\\"\\u003C'),
        *('p\\u00e4/\\"<', 'p\\u00E4/\\"<'),
        *('p\\u00e4/\\"\\u003c', 'p\\u00E4/\\"\\u003C'),
        *("p\\u00e4/\\u0022\\u003c", "p\\u00E4/\\u0022\\u003C"),
        *('pä/\\\\\\"<', 'p\\\\u00e4/\\\\\\"<', 'p\\\\u00E4/\\\\\\"<'),
        *("p%C3%A4%2F%22%3C", "p%c3%a4%2f%22%3c", "p%C3%A4/%22%3C", "p%c3%a4/%22%3c"),
        *("pä/&quot;&lt;", "pä/&#34;&lt;"),
    }
    assert forms("with blank") >= {"with blank", "with%20blank", "with+blank"}
    assert forms("it's+1") >= {"it&#x27;s+1", "it&#39;s+1", "it&#039;s+1", "it&#39;s&#43;1"}
    assert forms("it's+1") >= {"it\\u0027s\\u002b1", "it\\u0027s\\u002B1"}
    assert forms("plain1") == {"plain1", "p\0l\0a\0i\0n\0001"}


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc"])
@pytest.mark.parametrize("after", [b"", b"x", b"xy"])
def test_a_secret_is_found_inside_what_is_packed_wherever_it_begins(
    before: bytes, after: bytes
) -> None:
    secret = "sixteen??>>bytes"
    for write in (base64.b64encode, base64.urlsafe_b64encode):
        packed = write(before + secret.encode() + after)
        left = mask(packed, spell([secret]))
        assert MASK.encode() in left
        assert len(left) <= 16, "nothing but the ends is left"
    assert len(spell(["1234567"])) == 2, "a short one would be found everywhere"


def test_a_secret_is_found_in_either_order_of_two_bytes() -> None:
    for order in ("utf-16-le", "utf-16-be"):
        assert b"***" in mask("my plain1 key".encode(order), spell(["plain1"]))


def test_a_long_secret_is_looked_for_in_the_plainer_spellings_alone() -> None:
    assert len(spell(["+" * 4096])) > len(spell(["+" * 4097])) == 2


def test_values_that_would_be_found_everywhere_are_not_looked_for() -> None:
    assert {one for one in forms("abc", "abcd", "") if "\0" not in one} == {"abcd"}
    lengths = [len(one) for one in spell(["short!", "a much longer one!"])]
    assert lengths == sorted(lengths, reverse=True), "the longest first: it may contain a shorter"


def test_what_is_no_text_is_looked_for_as_the_bytes_it_came_from() -> None:
    broken = b"half \xff key".decode("utf-8", "surrogateescape")
    assert b"half \xff key" in spell([broken])
    held = Secrets(frozenset(), spell([broken]))
    assert held.mask(f"x{broken}y \udc80") == f"x{MASK}y \udc80"


@given(st.text(min_size=4, max_size=12), st.text(max_size=5), st.text(max_size=5))
def test_no_spelling_of_a_secret_is_left_in_a_text(secret: str, before: str, after: str) -> None:
    secret = secret.encode("utf-8", "replace").decode()
    values = spell([secret])
    held = Secrets(frozenset(), values)
    for one in values:
        masked = held.mask(before.encode("utf-8", "replace").decode() + one.decode() + "\x00")
        assert masked.count(MASK) >= 1
    assert not held.are_in(mask(b"".join(values), values))


def test_masking_tells_secrets_from_other_texts() -> None:
    held = Secrets(frozenset(), (b"secret-one", b"other"))
    assert held.mask("a secret-one, other and others") == f"a {MASK}, {MASK} and {MASK}s"
    assert held.mask_cut("a secret-one", 4) == f"a {MASK}"[:4]
    assert held.are_in(b"the other one")
    assert not held.are_in(b"nothing")


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"x secret-on", b"x ***"),
        (b"x secr", b"x ***"),
        (b"x secre", b"x ***"),
        (b"x secret", b"x ***"),
        (b"x secret-", b"x ***"),
        (b"x secret-o", b"x ***"),
        (b"x sec", b"x sec"),  # too short to be told
        (b"x secret-one", b"x ***"),
        (b"secret-on", b"***"),
        (b"secr", b"***"),
        (b"x secret-on.", b"x secret-on."),
        (b"x secret-on othe", b"x secret-on ***"),
        (b"", b""),
    ],
)
def test_a_secret_that_was_cut_in_half_at_the_end_is_masked_too(data: bytes, left: bytes) -> None:
    assert mask(data, (b"secret-one", b"other"), is_cut=True) == left
    assert mask(data, (b"secret-one",)) == data.replace(b"secret-one", b"***")
    assert mask(data, (), is_cut=True) == data


def test_the_key_that_sealed_a_text_is_read_from_it() -> None:
    assert key_id_of("ksana1:key:rest:more") == "key"
    assert key_id_of("ksana1:" + "k" * 20 + ":rest") == "k" * 16


# Which parts are secret


def found(*headers: tuple[str, str], **members: Any) -> set[str]:
    """The plain spellings of what is secret; those of the rest are tried above."""
    held = find_secrets(headers, members.pop("secret_headers", ()), **members)
    values = () if held is None else held.values
    plain = [one for one in values if b"\0" not in one]
    packed = {form for one in plain for form in pack(one)}
    return {one.decode() for one in plain if one not in packed}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("Authorization", " Bearer abcd ", {"Bearer abcd", "Bearer%20abcd", "Bearer+abcd", "abcd"}),
        ("authorization", "Bearer abc", {"Bearer abc", "Bearer%20abc", "Bearer+abc"}),
        ("X-API-Key", "scheme 1234567", {"scheme 1234567", "scheme%201234567", "scheme+1234567"}),
        (
            "X-API-Key",
            "scheme 12345678",
            {"scheme 12345678", "scheme%2012345678", "scheme+12345678", "12345678"},
        ),
        ("Cookie", "a=1234567; b=12345678", {"12345678"}),
        ("X-Other", "12345678", set()),
    ],
)
def test_a_header_is_secret_as_a_whole_and_in_the_part_that_somebody_may_repeat(
    name: str, value: str, wanted: set[str]
) -> None:
    values = found((name, value))
    if name == "Cookie":
        assert wanted <= values
        assert "1234567" not in values
    else:
        assert values == wanted


def test_of_a_basic_login_the_password_is_secret_too() -> None:
    values = found(("Authorization", "BASIC dXNlcjpwYXNzd29yZA=="))
    assert {"user:password", "password", "dXNlcjpwYXNzd29yZA=="} <= values
    assert found(("Authorization", "Basic not base64!")) >= {"not base64!"}
    assert found(("Authorization", "Basic /////w==")) >= {"/////w=="}, "no text inside"
    assert "password" not in found(("Authorization", "Basic dXNlcjpw*YXNzd29yZA=="))


def test_a_task_names_further_headers_and_a_signing_secret() -> None:
    assert list_secret_names(()) is SECRET_HEADERS
    assert list_secret_names(("X-Mine",)) == SECRET_HEADERS | {"x-mine"}
    assert found(("x-MINE", "12345678"), secret_headers=("X-Mine",)) == {"12345678"}
    assert found(signing_secret="whsec_abcd") >= {"whsec_abcd", "abcd"}
    assert find_secrets([], ()) is None
    assert find_secrets([("a", "b")], (), "") is None
    body = find_secrets([], (), is_body_secret=True)
    assert body == Secrets(SECRET_HEADERS | OF_THE_CALL, (), True)
    plain = find_secrets([("Cookie", "abcd")], ())
    assert plain == Secrets(SECRET_HEADERS | OF_THE_CALL, (b"a\0b\0c\0d", b"abcd"), False)


def test_a_callback_token_and_a_secret_body_are_added() -> None:
    alone = add_token(None, "tok-en")
    assert alone == Secrets(SECRET_HEADERS | OF_THE_CALL, (b"tok-en", b"TOK-EN"))
    long = add_token(None, "0123456789abcdef").values
    assert b"MDEyMzQ1Njc4OWFiY2RlZ" in long, "inside base64 too"
    assert len(long) == 5
    more = add_token(Secrets(frozenset("n"), (b"v",), True), "t")
    assert more == Secrets(frozenset("n"), (b"v", b"t", b"T"), True)
    body = '{"a":["12345678",{"b":"123456789"}],"c":"1234567","d":1}'
    whole = add_body(Secrets(frozenset("n"), (b"v",)), body)
    assert {b"12345678", b"123456789", b"v", body.encode()} <= set(whole.values)
    assert b"1234567" not in whole.values
    assert not {one for one in whole.values if b"\0" in one}, "so many are looked for plainly"
    assert whole.is_body_secret
    assert list(whole.values) == sorted(whole.values, key=len, reverse=True)
    assert b"not json" in add_body(Secrets(frozenset(), ()), "not json").values
    deep = add_body(Secrets(frozenset(), ()), "[" * 5000 + "]" * 5000)
    assert len(deep.values) > 0
    many = add_body(
        Secrets(frozenset(), ()), str([f"text{n:06}" for n in range(300)]).replace("'", '"')
    )
    assert sum(one.startswith(b"text") for one in many.values) == 256


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("HTTP://Host:80/path", ("http", "host")),
        ("https://host:443?q", ("https", "host")),
        ("https://host:80#f", ("https", "host:80")),
        ("http://user@host/", ("http", "host")),
        ("http://~host/", ("http", "~host")),
        ("http://{{task_name}}.x/", ("http", "{{task_name}}.x name")),
        ("ftp://host:80/", ("ftp", "host:80")),
        ("http://host/a://b", ("http", "host")),
    ],
)
def test_the_origin_is_what_the_definition_fixes_of_it(url: str, origin: tuple[str, str]) -> None:
    assert find_origin(url, "name") == origin


@pytest.mark.parametrize(
    ("old", "new", "is_move"),
    [
        ("http://a/x", "http://a/y", False),
        ("http://a/", "http://b/", True),
        ("http://a/", "https://a/", False),
        ("https://a/", "http://a/", True),
        ("http://a:8080/", "https://a:8080/", True),
        ("http://[::1]/", "https://[::1]/", False),
        ("http://a:80/", "http://a/", False),
    ],
)
def test_secrets_do_not_follow_a_task_to_another_origin(old: str, new: str, is_move: bool) -> None:
    assert has_moved(a_definition(target_url=old), new, "t") is is_move


# How they are stored

SECRET = a_definition(
    headers={"Authorization": "key", "X-Mine": "mine", "Accept": "all"},
    body="body",
    secret_headers=("x-mine",),
    secret_body=True,
    signing_secret="sign",
)


def test_each_secret_is_rewritten_with_its_place_and_nothing_else() -> None:
    sealed = sealing.rewrite_secrets(SECRET, lambda text, place: f"{place}={text}", "k1")
    assert sealed.headers == {
        "Authorization": "header/authorization=key",
        "X-Mine": "header/x-mine=mine",
        "Accept": "all",
    }
    assert (sealed.body, sealed.options.signing_secret) == ("body=body", "signing_secret=sign")
    assert sealing.find_seal(sealed) == "k1"
    plain = a_definition(headers={"Accept": "all"}, body="body")
    assert sealing.rewrite_secrets(plain, lambda *_: "no", "") == plain
    nothing = a_definition(secret_body=True)
    assert sealing.rewrite_secrets(nothing, lambda *_: "no", "").body is None


@pytest.mark.parametrize(
    ("definition", "has"),
    [
        (a_definition(), False),
        (a_definition(headers={"Accept": "a"}), False),
        (a_definition(headers={"Accept": "a", "COOKIE": "a"}), True),
        (a_definition(signing_secret=""), True),
        (a_definition(body="b"), False),
        (a_definition(secret_body=True), False),
        (a_definition(body="", secret_body=True), True),
    ],
)
def test_a_task_with_something_to_seal_is_told(definition: Definition, has: bool) -> None:
    assert sealing.has_secrets(definition) is has
    assert sealing.find_seal(definition) == (sealing.CLEAR if has else None)


def test_a_deleted_task_keeps_no_secret() -> None:
    gone = sealing.drop_secrets(SECRET)
    assert gone.headers == {"Authorization": MASK, "X-Mine": MASK, "Accept": "all"}
    assert (gone.body, gone.options.signing_secret) == (MASK, None)
    assert sealing.find_seal(gone) == sealing.GONE
    plain = a_definition(headers={"Accept": "all"})
    assert sealing.drop_secrets(plain) is plain


def test_a_seal_is_settled_by_what_the_secrets_show() -> None:
    def settle(authorization: str, signing: str, sealed_by: str = "old") -> str:
        definition = a_definition(
            headers={"Authorization": authorization}, signing_secret=signing, sealed_by=sealed_by
        )
        return sealing.settle_seal(definition).options.sealed_by

    one, two = f"{secrets.SEALED}k1:x", f"{secrets.SEALED}k2:x"
    assert settle(one, one) == "k1"
    assert settle("clear", "clear") == ""
    assert settle(one, "clear") == sealing.CLEAR
    assert settle(one, two) == sealing.CLEAR
    assert sealing.settle_seal(a_definition(sealed_by="k1")).options.sealed_by == ""
    right = a_definition(signing_secret=one, sealed_by="k1")
    assert sealing.settle_seal(right) is right


def test_a_value_in_base64_is_known_from_its_first_whole_sign_to_its_last() -> None:
    """Wherever in the packed text it begins."""
    assert pack(b"12345678") == {b"MTIzNDU2Nz", b"EyMzQ1Njc4", b"xMjM0NTY3O"}
    assert pack(b"1234567") == set(), "too short to be told from other text"
    assert b"-__-7_vv" in {one[:8] for one in pack(b"\xfb\xff\xfe\xef\xfb\xef\xff\xff")}
