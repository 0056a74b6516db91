"""Commands that say to which queues who asks is limited."""

import pytest

from pipeline.core.errors import NotAllowed
from pipeline.core.job import Command
from pipeline.core.limited import bare, is_limited, limited, require_queue

PLAIN = Command(command_id="c", verb="schedule.pause", schedule_id="nightly", detail={"note": "why"})


def test_a_limit_stands_in_the_verb_and_in_the_detail():
    command = limited(PLAIN, {"b", "a"})
    assert command.verb == "limited.schedule.pause"
    assert command.detail == {"note": "why", "queues": "a b"}


def test_the_bare_command_has_the_plain_verb_and_its_limit():
    command = bare(limited(PLAIN, {"a", "b"}))
    assert (command.verb, command.schedule_id, is_limited(command)) == ("schedule.pause", "nightly", True)
    require_queue(command, "a")
    for other in ("c", "a b", "", None):
        with pytest.raises(NotAllowed):
            require_queue(command, other)


def test_one_that_is_not_limited_stays_what_it_is():
    assert bare(PLAIN) is PLAIN
    assert not is_limited(PLAIN)
    require_queue(PLAIN, None)


def test_one_that_does_not_say_to_which_queues_it_is_limited_is_allowed_none():
    command = bare(Command(command_id="c", verb="limited.cancel", job_id="j"))
    assert is_limited(command)
    with pytest.raises(NotAllowed):
        require_queue(command, "default")
