"""Resolver: looked up off the loop, checked whole, and never in each other's way."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ksana.outbound import resolver
from ksana.outbound.resolver import is_literal
from ksana.ports.caller import Request


class Book:
    """A resolver whose silent names answer only when released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[str]] = {}
        self.released = threading.Event()

    def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.released.wait(30)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.answers[host]


@pytest.fixture
def book() -> Iterator[Book]:
    made = Book()
    yield made
    made.released.set()


def test_a_name_that_is_unknown_says_so(run: Callable[..., None], book: Book) -> None:
    async def scenario(net: Any) -> None:
        reply = await net.ask("http://nosuch.test/", caller=net.caller(look_up=book.look_up))
        assert (reply.kind, reply.error) == ("unreachable", "name not found: nosuch.test")

        def fail(host: str) -> list[str]:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        reply = await net.ask("http://later.test/", caller=net.caller(look_up=fail))
        assert reply.kind == "unreachable"
        assert (
            reply.error
            == "the name later.test could not be looked up: Temporary failure in name resolution"
        )

    run(scenario)


@pytest.mark.spec("T12")
def test_a_lookup_counts_against_the_connect_deadline(run: Callable[..., None], book: Book) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(look_up=book.look_up)
        reply = await net.ask(
            "http://silent.test/", caller=caller, timeout_us=9_000_000, connect_timeout_us=150_000
        )
        assert (reply.kind, reply.error) == (
            "timeout",
            "the name silent.test was not found within 150ms",
        )
        assert 140 <= reply.timing.total_ms < 3000
        assert caller.in_flight == 0

    run(scenario)


@pytest.mark.spec("T14")
def test_a_hundred_silent_names_do_not_delay_another(run: Callable[..., None], book: Book) -> None:
    book.answers = {"good.test": ["127.0.0.1"]}

    async def scenario(net: Any) -> None:
        caller = net.caller(look_up=book.look_up)
        held = [
            asyncio.ensure_future(net.ask(f"http://silent{n}.test/", caller=caller))
            for n in range(100)
        ]
        reply = await net.ask(f"http://good.test:{net.server.port}/ok", caller=caller)
        assert reply.status == 200
        assert not any(each.done() for each in held)
        book.released.set()
        assert {reply.error for reply in await asyncio.gather(*held)} >= {
            "name not found: silent7.test"
        }

    run(scenario)


def test_calls_to_one_name_share_a_lookup_and_its_answer(
    run: Callable[..., None], book: Book
) -> None:
    book.answers = {"good.test": ["127.0.0.1"]}

    async def scenario(net: Any) -> None:
        caller = net.caller(look_up=book.look_up)
        url = f"http://good.test:{net.server.port}/ok"
        replies = await asyncio.gather(*(net.ask(url, caller=caller) for _ in range(20)))
        replies += [await net.ask(url.replace("good.test", "GOOD.test."), caller=caller)]
        assert all(reply.status == 200 for reply in replies)
        assert book.asked == ["good.test"]

    run(scenario)


@pytest.mark.spec("X20")
def test_a_name_that_turns_to_a_forbidden_address_loses_even_its_kept_connection(
    run_once: Callable[..., None], book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "KEEP_S", -1.0)

    async def scenario(net: Any) -> None:
        caller = net.caller(look_up=book.look_up)
        url = f"http://turn.test:{net.server.port}/ok"
        book.answers = {"turn.test": ["127.0.0.1"]}
        assert (await net.ask(url, caller=caller)).status == 200
        book.answers = {"turn.test": ["127.0.0.1", "169.254.169.254"]}
        reply = await net.ask(url, caller=caller)
        assert (reply.kind, reply.error) == (
            "refused",
            "not called: 169.254.169.254 is a metadata address",
        )
        assert len(net.server.seen) == 1

    run_once(scenario)


def test_a_call_can_be_aborted_while_its_name_is_looked_up(
    run: Callable[..., None], book: Book
) -> None:
    async def scenario(net: Any) -> None:
        caller = net.caller(look_up=book.look_up)
        told: list[Any] = []
        call = caller.call(Request("GET", "http://silent.test/"), told.append)
        assert caller.in_flight == 1
        call.abort()
        call.abort()
        book.released.set()
        while not told:
            await asyncio.sleep(0)
        other = await net.ask("http://silent.test/", caller=caller)
        assert other.kind == "unreachable"
        assert [reply.kind for reply in told] == ["aborted"] and caller.in_flight == 0

    run(scenario)


def test_a_redirect_to_a_name_is_looked_up_and_judged_too(
    run_once: Callable[..., None], book: Book
) -> None:
    book.answers = {"good.test": ["127.0.0.1"], "evil.test": ["10.0.0.1", "169.254.169.254"]}

    async def scenario(net: Any) -> None:
        caller = net.caller(look_up=book.look_up)
        good = f"http://good.test:{net.server.port}/ok"
        reply = await net.ask(f"/to?url={good}", caller=caller, follow_redirects=1)
        assert reply.status == 200 and 0 < reply.timing.dns_ms <= reply.timing.total_ms
        reply = await net.ask("/to?url=http://evil.test/", caller=caller, follow_redirects=1)
        assert reply.kind == "refused"
        assert (
            reply.error
            == "redirected to http://evil.test/: not called: 169.254.169.254 is a metadata address"
        )

    run_once(scenario)


@pytest.mark.parametrize(
    ("host", "literal"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("2130706433", True),
        ("0x7f.1", True),
        ("017700000001", True),
        ("127.1", True),
        ("localhost", False),
        ("1.example", False),
        ("0xg", False),
        ("a.1", False),
        ("1e100.net", False),
    ],
)
def test_addresses_need_no_lookup(host: str, literal: bool) -> None:
    assert is_literal(host) == literal


async def test_lookups_that_nobody_waits_for_leave_the_queue() -> None:
    """600 silent names: a healthy one is looked up as soon as one thread is free."""
    silent, asked = threading.Event(), list[str]()

    def look_up(host: str) -> list[str]:
        asked.append(host)
        if host.startswith("silent"):
            silent.wait(10)
        return ["192.0.2.1"]

    names = resolver.Resolver(asyncio.get_running_loop(), look_up, max_threads=2)
    given_up = [(f"silent{n}", lambda _: None) for n in range(600)]
    for host, done in given_up:
        names.ask(host, done)
    for host, done in given_up:
        names.forget(host, done)
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    names.ask("healthy", found.set_result)
    silent.set()
    async with asyncio.timeout(5):
        assert await found == ("192.0.2.1",)
    assert len(asked) <= 3
    names.close()
