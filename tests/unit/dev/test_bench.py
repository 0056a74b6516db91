"""The pure half of `dueline bench`: percentiles, ratios, targets, load, log lines, plot, and its JSON's schema."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.bench import _text
from pipeline.core.layout import default_layout
from pipeline.dev.bench import bare, load, plot, throughput
from pipeline.dev.bench.faults import Fault
from pipeline.dev.bench.figures import (
    Figure,
    Sense,
    Target,
    at_least,
    at_most,
    per_second,
    percentile,
    ratio_at_least,
    rounded,
    rows,
    spread,
)
from pipeline.dev.bench.observer import Seen, due_of_anonymous
from pipeline.dev.bench.play import SCALES, SHAPES, USUAL, Scale, report
from pipeline.dev.bench.process import Moment, read_memory, read_moment, running_after
from pipeline.dev.bench.site import Store
from pipeline.dev.bench.throughput import curve

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "cli" / "bench.json").read_text())
NOW = 1_800_000_000_000


# -- figures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


@given(st.lists(st.integers(0, 1_000), min_size=1), st.floats(0, 1))
def test_at_least_the_share_of_all_values_is_not_above_the_percentile(
    values: list[int], share: float
) -> None:
    found = percentile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match="no share"):
        percentile([1], 1.5)


def test_a_spread_says_how_values_are_distributed() -> None:
    found = spread([5, 1, 4, 2, 3])
    assert (found.count, found.least, found.p50, found.p99, found.most) == (5, 1, 3, 5, 5)


def test_a_spread_of_nothing_is_refused_since_it_would_look_perfect() -> None:
    with pytest.raises(ValueError, match="no values"):
        spread([])


def figure(
    value: float, *, measured: float | None = None, target: Target | None = None, name: str = "create"
) -> Figure:
    return Figure(shape="create", name=name, value=value, unit="jobs/s", bare=measured, target=target)


def test_a_ratio_is_ours_to_bare() -> None:
    assert figure(50, measured=200).ratio == 0.25
    assert figure(50).ratio is None
    assert figure(50, measured=0).ratio is None


@pytest.mark.parametrize(
    ("found", "met"),
    [
        (figure(80, measured=200, target=ratio_at_least(0.4)), True),
        (figure(79, measured=200, target=ratio_at_least(0.4)), False),
        (figure(79, target=ratio_at_least(0.4)), None),
        (figure(15, target=at_most(15)), True),
        (figure(16, target=at_most(15)), False),
        (figure(-1, target=at_least(0)), False),
        (figure(0, target=at_least(0)), True),
        (figure(0), None),
    ],
)
def test_a_target_is_met_or_not_or_cannot_be_judged(found: Figure, met: bool | None) -> None:
    assert found.met is met


def test_a_target_is_told_in_words() -> None:
    assert str(ratio_at_least(0.4)) == "at least 0.4 of bare"
    assert str(Target(bound=15, sense=Sense.AT_MOST)) == "at most 15"


def test_a_rate_of_what_took_no_time_is_finite() -> None:
    assert per_second(500, 2_000) == 250
    assert per_second(500, 0) == 500_000


def test_numbers_are_not_more_exact_than_a_run_can_repeat() -> None:
    assert rounded(12_345.678) == 12_346
    assert rounded(1.23456) == 1.235


# -- report --------------------------------------------------------------------------------------------------


def reported() -> dict[str, object]:
    figures = [
        figure(80_000, measured=200_000, target=ratio_at_least(0.4)),
        figure(41, target=at_most(40), name="lateness p99"),
        figure(1, name="something without a target"),
    ]
    store = Store(kind="embedded", bootstrap="127.0.0.1:9092")
    return report(store, figures, {"create": 5}, Path("plot.svg"), 6)


def test_the_report_has_its_schema_and_counts_what_was_missed() -> None:
    found = reported()
    jsonschema.validate(found, SCHEMA)
    assert found["missed"] == 1


@pytest.mark.parametrize(
    ("shape", "unit"),
    [
        ("worker", "runs/s"),
        ("worker-kill", "runs"),
        ("instant", "ms"),
        ("worker-memory", "MB"),
        ("server", "times"),
    ],
)
def test_figures_of_processes_are_in_the_schema(shape: str, unit: str) -> None:
    found = [Figure(shape=shape, name="a worker's", value=1, unit=unit, target=at_most(0))]
    jsonschema.validate(report(Store(kind="running", bootstrap="a:1"), found, {shape: 5}, None, 6), SCHEMA)


def test_every_shape_is_in_the_schema() -> None:
    known = SCHEMA["properties"]["figures"]["items"]["properties"]["shape"]["enum"]
    assert set(known) == {*SHAPES, "index"}, "create measures the index too"
    assert set(USUAL) < set(SHAPES)


def test_the_text_shows_each_figure_beside_its_bare_loop() -> None:
    text = _text(reported())
    assert "80,000 jobs/s" in text
    assert "200,000" in text
    assert "0.40" in text
    assert "MISSED" in text
    assert "1 targets missed" in text
    assert "plot: plot.svg" in text


def test_a_row_without_bare_loop_and_target_has_empty_cells() -> None:
    assert rows([figure(1).described()]) == [["create", "1 jobs/s", "", "", "", ""]]


# -- load ----------------------------------------------------------------------------------------------------


def test_payloads_have_the_promised_size_and_differ() -> None:
    made = [load.encoded(payload) for payload in load.payloads()]
    assert {len(text) for text in made} == {load.PAYLOAD_BYTES}
    assert len(set(made)) == load.PAYLOADS
    assert made == [load.encoded(payload) for payload in load.payloads()], "the same in every run"


def test_a_bare_record_is_about_200_bytes() -> None:
    records = bare.records(10, NOW)
    assert len({key for key, _ in records}) == 10
    assert all(190 <= len(value) <= 210 for _, value in records)


def test_far_jobs_stay_pending_and_stand_on_every_partition() -> None:
    layout = default_layout()
    dues = list(load.far(2_400, NOW))
    assert min(dues) > NOW + load.HOUR_MS
    buckets = {layout.bucket(due) for due in dues}
    assert len({bucket % layout.ring for bucket in buckets}) == layout.ring


def test_steady_jobs_are_due_in_order_at_their_rate() -> None:
    dues = list(load.steady(NOW, 1_000, 2.0))
    assert len(dues) == 2_000
    assert (dues[0], dues[-1]) == (NOW, NOW + 1_999)
    assert all(a <= b for a, b in pairwise(dues))


def test_jobs_carry_their_due_time_to_the_millisecond() -> None:
    (job,) = load.jobs(iter([NOW + 7]))
    assert round(job["at"].timestamp() * 1000) == NOW + 7


@pytest.mark.parametrize("scale", SCALES.values())
def test_a_scale_keeps_its_proportions_at_another_size(scale: Scale) -> None:
    sized = scale.sized(1_000)
    assert sized.jobs == 1_000
    assert all(drain % 4 == 0 and drain > 0 for drain in sized.drains)
    assert max(sized.rates) <= 100
    assert sized.waiting == 1_000 * scale.waiting // scale.jobs
    assert sized.seconds >= 1


# -- what processes and records tell -------------------------------------------------------------------------


def test_lateness_counts_from_due_to_hand_and_emit_delay_to_the_log() -> None:
    seen = Seen(due=NOW, at=NOW + 12, appended=NOW + 5)
    assert (seen.lateness, seen.emit_delay) == (12, 5)


def test_the_due_time_is_read_from_an_anonymous_id() -> None:
    from pipeline.core.ids import anonymous_id

    assert due_of_anonymous(anonymous_id(NOW, 1).encode()) == NOW


def test_a_log_line_is_a_moment_and_anything_else_is_none() -> None:
    assert read_moment(b'{"action":"running","partitions":[1,2]}\n', 7) == Moment(
        7, "running", frozenset({1, 2})
    )
    assert read_moment(b'{"action":"started"}', 7) == Moment(7, "started", frozenset())
    assert read_moment(b'{"action":"started","process":"a.0"}', 7) == Moment(7, "started", frozenset(), "a.0")
    assert read_moment(b"Traceback (most recent call last):\n", 7) is None
    assert read_moment(b"[]", 7) is None


def test_partitions_run_from_running_until_they_are_revoked_or_assigned_anew() -> None:
    moments = [
        Moment(1, "assigned", frozenset({1, 2, 3})),
        Moment(2, "running", frozenset({1, 2})),
        Moment(3, "revoked", frozenset({1})),
        Moment(4, "running", frozenset({3})),
        Moment(5, "assigned", frozenset({3})),
    ]
    assert running_after(moments) == {2}
    assert running_after(moments[:4]) == {2, 3}


def test_memory_is_read_in_megabytes() -> None:
    status = "Name:\tpython\nVmHWM:\t  204800 kB\nVmRSS:\t  102400 kB\n"
    assert read_memory(status) == {"rss_mb": 100, "rss_peak_mb": 200}


def test_every_fault_has_a_bound() -> None:
    from pipeline.dev.bench.faults import TARGET_MS

    assert set(TARGET_MS) == set(Fault)


# -- plot ----------------------------------------------------------------------------------------------------


def test_a_curve_has_a_point_for_each_moment_at_which_records_came() -> None:
    assert curve([5, 5, 5, 9, 12, 12]) == [(5, 3), (9, 4), (12, 6)]


def test_a_distribution_ends_at_its_largest_value_with_all() -> None:
    points = plot.distribution(list(range(10_000, 0, -1)))
    assert len(points) <= plot.MOST_POINTS
    assert points[-1] == (10_000, 1.0)
    assert all(a[0] <= b[0] and a[1] < b[1] for a, b in pairwise(points))


@given(st.integers(0, 5_000))
def test_thinned_points_are_ascending_and_keep_the_last(count: int) -> None:
    kept = plot.thinned(range(count))
    assert len(kept) == min(count, plot.MOST_POINTS)
    assert kept == sorted(set(kept))
    assert not count or kept[-1] == count - 1


def test_the_plot_is_well_formed_and_has_a_line_for_each_series() -> None:
    drawn = plot.document({"ours <1 k/s>": [1, 2, 900], "bare": [1, 1, 2]}, {"drain": [(0.1, 10), (0.2, 20)]})
    root = ET.fromstring(drawn)
    names = {"svg": "http://www.w3.org/2000/svg"}
    assert len(root.findall(".//svg:polyline", names)) == 3
    assert "ours <1 k/s>" in [text.text for text in root.findall(".//svg:text", names)]


def test_a_plot_of_nothing_is_an_empty_picture() -> None:
    assert ET.fromstring(plot.document({}, {})).tag.endswith("svg")


def test_points_stay_inside_the_panel() -> None:
    drawn = plot.document({"early and late": [-3, *range(200), 10_000]}, {})
    (line,) = ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}polyline")
    for point in line.attrib["points"].split():
        x, y = map(float, point.split(","))
        assert plot.LEFT <= x <= plot.WIDTH - plot.RIGHT
        assert plot.TOP <= y <= plot.HEIGHT - plot.BOTTOM


# -- a machine slower than the small try said ---------------------------------------------------------------


def context() -> throughput.Context:
    return throughput.Context(Store(kind="embedded", bootstrap="127.0.0.1:1"), Path(), lambda _text: None)


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened and closed instead of a site."""
    seen: list[str] = []

    @contextmanager
    def site(*_: object) -> Iterator[None]:
        seen.append("opened")
        yield
        seen.append("closed")

    monkeypatch.setattr(throughput, "site", site)
    return seen


def test_a_measurement_whose_jobs_were_due_too_soon_is_repeated_with_more_slack(sites: list[str]) -> None:
    tried: list[float] = []

    def measure(_here: object, slack: float) -> str:
        tried.append(slack)
        if len(tried) < 3:
            raise throughput.TooSoon("too soon")
        return "measured"

    assert throughput.patiently(context(), measure) == "measured"
    assert tried == sorted(set(tried))
    assert sites.count("opened") == 3, "each on a site of its own: jobs of the last one would fire into it"


def test_a_machine_that_is_too_slow_for_all_slack_is_told(sites: list[str]) -> None:
    def measure(_here: object, _slack: float) -> None:
        raise throughput.TooSoon("too soon")

    with pytest.raises(throughput.TooSoon):
        throughput.patiently(context(), measure)
