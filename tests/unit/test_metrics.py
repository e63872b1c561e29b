"""Metrics: capped labels, values read on demand, names that scrape."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.boot.metrics import Metrics
from ksana.ports.store import StoreHealth

pytestmark = pytest.mark.spec("X17")


@pytest.fixture
def metrics(clock: VirtualClock) -> Metrics:
    return Metrics(clock, "1.2.3")


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    text = metrics.render().decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_labels_beyond_the_cap_are_folded_into_other(metrics: Metrics) -> None:
    family = metrics.counter("cronjob_run_retries_total", "Retries.", ("task_id",))
    for task_id in range(250):
        family.child(task_id).inc()
    family.child(7).inc()
    found = {
        labels[0]: value
        for (name, labels), value in samples(metrics).items()
        if name == "cronjob_run_retries_total"
    }
    assert len(found) == 201
    assert (found["7"], found["199"], found["other"]) == (2, 1, 50)
    assert "200" not in found


def test_a_bound_child_stays_the_same_series(metrics: Metrics) -> None:
    family = metrics.gauge("g", "G.", ("a", "b"), cap=1)
    assert family.child("x", 1) is family.child("x", "1")
    assert family.child("y", 1) is family.child("z", 2)


def test_a_value_counts_in_every_bucket_at_or_above_it(metrics: Metrics) -> None:
    family = metrics.histogram("h", "H.", ("a",), (0.5, 1.0, 2.5))
    for value in (0.1, 0.5, 0.6, 1.0, 3.0):
        family.child("x").observe(value)
    found = {key: value for key, value in samples(metrics).items() if key[0].startswith("h_")}
    assert [found["h_bucket", ("x", bound)] for bound in ("0.5", "1.0", "2.5", "+Inf")] == [
        2,
        4,
        4,
        5,
    ]
    assert (found["h_count", ("x",)], found["h_sum", ("x",)]) == (5, pytest.approx(5.2))


def test_the_process_is_described(metrics: Metrics, clock: VirtualClock) -> None:
    metrics.watch_store(lambda: StoreHealth(True, None, 3, 40, 1))
    metrics.loop_lag(2 * MILLISECOND)
    metrics.clock_stepped(-SECOND)
    metrics.clock_skewed(1500 * MILLISECOND)
    metrics.loop_restarted("firing")
    clock._move_to(90 * SECOND)
    found = samples(metrics)
    assert found["ksana_uptime_seconds", ()] == 90
    assert found["ksana_store_commits_total", ()] == 3
    assert found["ksana_store_transactions_total", ()] == 40
    assert found["ksana_store_up", ()] == 1
    assert found["ksana_event_loop_lag_seconds_count", ()] == 1
    assert found["ksana_clock_steps_total", ("back",)] == 1
    assert found["ksana_clock_skew_seconds", ()] == 1.5
    assert found["ksana_loop_restarts_total", ("firing",)] == 1
    assert next(value for (name, _), value in found.items() if name == "ksana_build_info") == 1
    assert not any(name.endswith("_created") for name, _ in found)
