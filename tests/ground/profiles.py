"""Hypothesis profiles. `ci` gives the same examples every time; `torture` looks much longer; `dev`
explores; `mutants` only asks whether anything fails.

Chosen by HYPOTHESIS_PROFILE; otherwise `ci` when CI=true and `dev` at a desk.
"""

import os

from hypothesis import HealthCheck, Phase, settings

from tests.ground.server import is_ci

# The machines are shared and slow at times: a deadline per example would test their luck.
_BASE = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("ci", _BASE, derandomize=True, database=None)
settings.register_profile("dev", _BASE)
settings.register_profile(
    "mutants",
    _BASE,
    derandomize=True,
    database=None,
    max_examples=50,
    phases=[Phase.explicit, Phase.generate],
)
settings.register_profile("torture", _BASE, max_examples=5_000)


def load() -> str:
    """Load the profile that fits and tell its name."""
    name = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if is_ci() else "dev")
    settings.load_profile(name)
    return name
