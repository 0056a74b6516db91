"""What a handler is given."""

from sides import Quiet

from pipeline.core.context import Context
from pipeline.core.times import aware


def test_a_handler_sees_when_it_should_stop():
    side = Quiet()
    context = Context(
        job_id="j",
        occurrence_id="j",
        handler="email.send",
        payload={},
        due_at=aware(0),
        nominal_at=aware(0),
        fired_at=aware(0),
        run=1,
        attempt=1,
        idempotency_key="j",
        token=1,
        side=side,
    )
    assert not context.cancelled
    side.end = True
    assert context.cancelled
