"""What an HTTP call says of the effect that it asks for."""

import pytest
from sides import Quiet

from pipeline.core.context import Context
from pipeline.core.effect import headers_of, visible
from pipeline.core.times import aware


def test_headers_are_key_token_and_attempt():
    now = aware(0)
    context = Context(
        job_id="j", occurrence_id="j", handler="pay", payload=None, due_at=now, nominal_at=now, fired_at=now,
        run=1, attempt=2, idempotency_key="Ü 1", token=2**60, side=Quiet(),
    )  # fmt: skip
    assert headers_of(context) == {
        "Idempotency-Key": "%C3%9C%201",
        "X-Fence-Token": "1152921504606846976",
        "X-Job-Attempt": "2",
    }


@pytest.mark.parametrize(
    ("text", "seen"), [("invoice-55/2027:1", "invoice-55/2027:1"), ("a%20", "a%2520"), ("a\r\n", "a%0D%0A")]
)
def test_what_is_no_visible_ascii_is_written_in_it(text, seen):
    assert visible(text) == seen
