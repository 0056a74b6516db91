"""What happened in a window of due time, read from the topics (DESIGN §9): the base of `outage`, `verify` and `replay`.

    for part in parts(ground, wanted):                      # (queue, work partition), in a fixed order
        for seen in survey_part(ground, part, window, wanted):
            ...                                             # one `Seen` for each occurrence that fired
    for seen in unfired(ground, window, wanted):
        ...                                                 # pending and skipped ones
    survey(ground, window, wanted)                          # all of it, one after the other, and what was buried

`work` and `acks` are read once, from the offset of the window's beginning to their ends as they are now. Memory does
not follow the window: one work partition at a time, and of that at most `spill.ROWS` records beside nine bytes a
record in a file without a name. Which runs are meant is told by offsets, so whoever needs their payloads reads the
partition once more, in order:

    offsets = array("q", sorted(seen.offset for seen in survey_part(...)))
    for emitted in runs_at(ground, part, offsets):
        emitted.run, emitted.offset, emitted.at

Every read raises StoreUnreachable if the store does not answer, NotFound for a topic that is gone.
"""

from __future__ import annotations

from pipeline.survey.ground import Ground, Part
from pipeline.survey.kept import check_kept
from pipeline.survey.origin import Origin, origin
from pipeline.survey.reading import Emitted, parts, runs_at, survey, survey_part
from pipeline.survey.seen import Seen, State
from pipeline.survey.unfired import unfired
from pipeline.survey.window import Filter, Window, in_order, window

__all__ = [
    "Emitted",
    "Filter",
    "Ground",
    "Origin",
    "Part",
    "Seen",
    "State",
    "Window",
    "check_kept",
    "in_order",
    "origin",
    "parts",
    "runs_at",
    "survey",
    "survey_part",
    "unfired",
    "window",
]
