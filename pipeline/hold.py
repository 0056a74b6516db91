"""Whether the dispatch is held: by a restore, until an operator releases it (pipeline.backup.restore).

`meta` is asked after each takeover record is in the log, and only then: a restore makes its hold readable before it
looks for such records, so one of the two sees the other. While there is a hold it is asked once a second.
"""

from __future__ import annotations

from pipeline.core.backup import Hold
from pipeline.core.errors import StoreUnreachable
from pipeline.core.site import Site
from pipeline.ports import Events

ASK_MS = 1_000


class Gate:
    """Of one dispatcher. Used by its thread only. What it learns of the era goes to the site."""

    def __init__(self, site: Site, events: Events) -> None:
        self._site = site
        self._events = events
        self._hold: Hold | None = None
        self._ask_at = 0

    @property
    def closed(self) -> bool:
        """Whether there was a hold when it was last looked for."""
        return self._hold is not None

    def look(self, monotonic: int) -> None:
        """Look for a hold: partitions were taken over, and none of them may be settled before. StoreUnreachable;
        Refused for one that nobody can read."""
        if self._site.read_standing is None:
            return
        self._ask_at = monotonic + ASK_MS
        self._site.era, hold = self._site.read_standing()
        if hold != self._hold:
            self._hold = hold
            self._tell(hold)

    def held(self, monotonic: int) -> bool:
        """Whether nothing may be settled now."""
        if self.closed and monotonic >= self._ask_at:
            try:
                self.look(monotonic)
            except StoreUnreachable as error:
                self._events.on("hold_unknown", reason=str(error))
        return self.closed

    def _tell(self, hold: Hold | None) -> None:
        if hold is None:
            self._events.on("dispatch_released")
        else:
            reason = "nothing fires before `dueline release`"
            self._events.on("dispatch_held", backup=hold.id, state=str(hold.state), reason=reason)
