"""Whoever adds an endpoint or a member gives it words: `api/<surface>/words.py`."""

import asyncio
import json
from typing import Any

from ksana.api.core.docs import OPENAPI
from ksana.boot.server import KsanaServer
from ksana.boot.settings.sources import load
from tests.ground.description import find_faults


def test_every_answer_member_and_header_of_the_api_is_described() -> None:
    app: Any = KsanaServer(load({}, {}, None).settings)._http.config.app
    route, _ = app.router.find("GET", OPENAPI, OPENAPI.encode())
    content = asyncio.run(route.handler(None))
    assert find_faults(json.loads(content.body)) == []
