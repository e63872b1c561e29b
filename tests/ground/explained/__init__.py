"""Faults of `tests.ground.code` that no test can notice, each with its reason in a line. A fault is
named as the tool prints it; one that no longer exists must leave its list."""

from tests.ground.explained import client, domain, engine, service

EXPLAINED: dict[str, str] = {
    **domain.EXPLAINED,
    **engine.EXPLAINED,
    **service.EXPLAINED,
    **client.EXPLAINED,
}
