"""Backup and restore of an installation: everything it still owes, taken while it runs (docs/backup.md).

What is taken: the live records of `jobs`, the layout and era of `meta`, and the *open* runs, those that were emitted
and are not known to have ended. Not taken: what is over (acks, dead letters, events, results).

**The cut.** Every change that matters is one transaction that removes something from one place and adds what follows
from it to another:

    what                          removes                                adds
    a job fires                   its record on `jobs` (a tombstone)     its run on `work`
    a run ends                    itself (the group's offset passes it)  `r/`, `d/` on `jobs`
    a record is moved home        its record on one partition            the same on another partition
    a command is executed, ...    on one partition of `jobs`, where order is given anyway

Topics cannot be read at one instant. So the cut has two edges, taken one after the other: up to the first, removals
count; up to the second, additions do.

    1. the workers' offsets are read, and the end of every partition of `acks` (`acked`) and of `work` (`sure`)
    2. the end of every partition of `jobs` (`settled`)
    3. the end of every partition of `jobs` again (`end`), and of `work` (`end`)

Each end is waited for until no transaction is open below it.

A transaction whose removal counts was committed before step 3, so what it adds stands below the second edge: **nothing
can be missing**. The other way round something may be there twice: a transaction in between, whose removal does not
count and whose addition does. Each such pair is recognised by the occurrence's id and its run, and the removed half is
kept, as it was at the first edge (`runs.still_open`, `jobs.JobsState`); a run below `sure` is in no such pair. Records
that only the owner of a partition writes (`k/ s/ h/ x/`) are taken as of the first edge: each replaces the one before.

So a restore may run again what ended after step 1, with the same idempotency key, and nothing else: that time is the
*loss window*, from `created_at` of the backup on.

**The fired memory** is not taken. It tells a late copy of a record from a new one: a producer that sends again what it
had sent before. A copy of a job that fired before the cut could only come into the restored topics from a client that
was still sending it then; it gives up within two minutes, and the owner buries what is older than 15 minutes. A restore
that begins 15 minutes after its backup or later can therefore meet none.
"""
