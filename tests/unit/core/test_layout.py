"""Homes: stable, readable from any id, and spread over any number of owners."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import ids
from pipeline.core.errors import InvalidInput, Refused, Undecodable
from pipeline.core.hashing import text_hash
from pipeline.core.layout import DEFAULT_SKEW, Layout, assignments, default_layout, search_skew, unevenness

VECTORS = json.loads((Path(__file__).parents[3] / "schemas/vectors/ids.json").read_text())
DEFAULT = default_layout()
SIZES = [(4, 6), (1, 1), (1, 6), (2, 3), (3, 4), (2, 12), (6, 6)]

randoms = st.integers(0, (1 << 80) - 1)
dues = st.integers(0, (1 << 48) - 1)
layouts = st.sampled_from(
    [default_layout(shards=s, ring=r, bucket_width_ms=w) for s, r in SIZES for w in (1, 60_000)]
)


def test_the_vectors_are_of_the_default_layout():
    fields = VECTORS["layout"]
    assert replace(DEFAULT, **{**fields, "skew": tuple(fields["skew"])}) == DEFAULT


@pytest.mark.parametrize(
    "vector",
    [
        v
        for form in ("anonymous", "keyed", "keyed_occurrences", "schedule_occurrences")
        for v in VECTORS[form]
    ],
    ids=str,
)
def test_home_vectors(vector):
    assert DEFAULT.home(vector.get("occurrence_id", vector.get("id"))) == vector["home"]


@pytest.mark.parametrize("vector", VECTORS["anonymous"], ids=lambda vector: vector["id"])
def test_bucket_shard_and_work_partition_vectors(vector):
    assert DEFAULT.bucket(vector["due_at"]) == vector["bucket"]
    assert DEFAULT.home(vector["id"]) // DEFAULT.ring == vector["shard"] == vector["hash"] % DEFAULT.shards
    assert DEFAULT.work_partition("default", vector["id"]) == vector["work_partition"]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: repr(vector["id"]))
def test_what_is_no_id_has_no_home(vector):
    with pytest.raises(Undecodable):
        DEFAULT.home(vector["id"])


@given(layouts, dues, randoms)
def test_home_of_an_anonymous_id_by_the_formula(layout, due, random80):
    text = ids.anonymous_id(due, random80)
    shard = text_hash(text) % layout.shards
    place = (due // layout.bucket_width_ms + layout.skew[shard]) % layout.ring
    assert layout.home(text) == shard * layout.ring + place < layout.partitions


@given(layouts, st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(0, 1 << 62))
def test_home_of_a_keyed_job_is_that_of_its_key_and_of_all_its_occurrences(layout, key, incarnation):
    text = ids.keyed_id(key)
    homes = {
        layout.home(text),
        layout.home(ids.occurrence_of_keyed(text, incarnation)),
        layout.home_of_name(key),
    }
    assert homes == {text_hash(key) % layout.partitions}


@given(layouts, st.integers(0, 1 << 62), dues)
def test_all_occurrences_of_a_schedule_live_with_it(layout, incarnation, nominal):
    grid = ids.schedule_occurrence("daily-report", incarnation, "g", "", nominal)
    trigger = ids.schedule_occurrence("daily-report", incarnation, "t", "now", nominal)
    assert layout.home(grid) == layout.home(trigger) == layout.home_of_name("daily-report")


@pytest.mark.parametrize("owner_count", range(2, 9))
@pytest.mark.parametrize("method", ["range", "modulo"])
def test_h28_every_bucket_is_spread_over_the_owners(owner_count, method):
    """Counted here anew, from ids: no bucket's partitions are more than one off an even spread."""
    owner_of = _range_owner if method == "range" else lambda partition, count: partition % count
    for bucket in range(DEFAULT.ring):
        homes = {DEFAULT.home(ids.anonymous_id(bucket * 60_000, n)) for n in range(200)}
        assert len(homes) == DEFAULT.shards
        loads = Counter(owner_of(home, owner_count) for home in homes)
        even = DEFAULT.shards / owner_count
        assert max(loads.values()) <= -(-even // 1) + 1
        assert min(loads[owner] for owner in range(owner_count)) >= even // 1 - 1


def _range_owner(partition, count):
    """Kafka's RangeAssignor: the first P mod n members own one more."""
    share, more = divmod(DEFAULT.partitions, count)
    return partition // (share + 1) if partition < more * (share + 1) else (partition - more) // share


def test_the_obvious_skew_puts_a_whole_bucket_on_one_of_seven():
    assert unevenness((0, 1, 2, 3), 6, list(assignments(24)))[0] == 3


def test_an_idle_owner_is_as_uneven_as_a_busy_one():
    """Eight partitions on owners 4, 4, 0: one over the even 3, two under the even 2."""
    assert unevenness((0,) * 8, 1, [(3, [0, 1] * 4)]) == (2, 32)


@pytest.mark.parametrize(("shards", "ring"), [*SIZES, (8, 6)])
def test_the_search_leaves_every_bucket_within_one_of_even(shards, ring):
    skew = search_skew(shards, ring)
    dealt = list(assignments(shards * ring))
    assert unevenness(skew, ring, dealt)[0] <= 1
    assert search_skew(shards, ring) == skew


def test_the_recorded_default_is_as_even_as_the_search():
    dealt = list(assignments(24))
    assert unevenness(DEFAULT_SKEW, 6, dealt)[0] == unevenness(search_skew(4, 6), 6, dealt)[0] == 1
    assert DEFAULT.skew == DEFAULT_SKEW


@pytest.mark.parametrize(("shards", "ring", "field"), [(0, 6, "shards"), (4, 0, "ring")])
def test_there_is_no_skew_for_no_partitions(shards, ring, field):
    with pytest.raises(InvalidInput, match=f"^{field}: 0 is less than 1"):
        search_skew(shards, ring)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("partitions", {"partitions": 23}),
        ("shards", {"shards": 0, "partitions": 0, "skew": ()}),
        ("ring", {"ring": -6}),
        ("bucket_width_ms", {"bucket_width_ms": 0}),
        ("skew", {"skew": (0, 0, 5)}),
        ("skew", {"skew": (0, 0, 5, 6)}),
        ("skew", {"skew": (0, 0, 5, -1)}),
        ("queue", {"queues": {"Bad": 1}}),
        ("queue mail", {"queues": {"mail": 0}}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(field, change):
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        replace(DEFAULT, **change)


@pytest.mark.parametrize("change", [{"hash": "crc32"}, {"version": 2}])
def test_a_layout_of_another_kind_asks_for_an_upgrade(change):
    with pytest.raises(Refused, match="upgrade it"):
        replace(DEFAULT, **change)


PLACEMENT = [
    {"skew": (0, 0, 5, 4)},
    {"bucket_width_ms": 1_000},
    {"shards": 6, "ring": 4, "skew": (0,) * 6},
    {"partitions": 28, "ring": 7},
]


@pytest.mark.parametrize("change", PLACEMENT, ids=str)
def test_identity_changes_with_placement(change):
    assert replace(DEFAULT, **change).identity() != DEFAULT.identity()


def test_identity_stays_with_everything_else():
    other = replace(DEFAULT, queues={"mail": 3}, fingerprints=("00",), product_version="9")
    assert other.identity() == DEFAULT.identity() == "5e02fa729bcd4cd3"


def test_differences_are_exact():
    here = replace(DEFAULT, queues={"default": 12, "mail": 3})
    there = replace(
        DEFAULT, skew=(0, 1, 2, 3), bucket_width_ms=1_000, queues={"default": 6}, product_version="9"
    )
    assert here.differences(there) == [
        "skew: 0,0,5,5 here, 0,1,2,3 there",
        "bucket_width_ms: 60000 here, 1000 there",
        "queue default: 12 here, 6 there",
        "queue mail: 3 here, none there",
    ]
    assert here.differences(here) == []


def test_an_unknown_queue_is_the_users_mistake():
    with pytest.raises(InvalidInput, match=r"^queue: 'mail' is unknown"):
        DEFAULT.work_partition("mail", "j")


def test_a_given_size_gets_its_own_layout():
    layout = default_layout(shards=2, ring=3, queues={"mail": 5}, fingerprints=("ab",), product_version="1.0")
    assert layout == Layout(
        partitions=6,
        shards=2,
        ring=3,
        skew=search_skew(2, 3),
        bucket_width_ms=60_000,
        queues={"mail": 5},
        fingerprints=("ab",),
        product_version="1.0",
    )


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 80) - 1))
def test_a_route_is_the_home_and_the_work_partition_of_one_hash(due, random):
    layout, id_ = default_layout(queues={"default": 12, "mail": 5}), ids.anonymous_id(due, random)
    for queue in layout.queues:
        assert layout.route(id_.encode(), queue) == (layout.home(id_), layout.work_partition(queue, id_))


def test_a_route_needs_an_id_and_a_queue():
    layout = default_layout()
    with pytest.raises(Undecodable):
        layout.route(b"j" + b"!" * 26, "default")
    with pytest.raises(KeyError):
        layout.route(ids.anonymous_id(0, 0).encode(), "nowhere")
