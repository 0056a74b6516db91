"""`dueline bench`: what the product does on this machine, each figure beside a bare loop of the same run.

`load` makes the jobs, `bare` the loops that the parts alone give, `observer` is the consumer that waits on the
work topic, `site` an installation of its own with its dispatcher and worker processes. `throughput`, `lateness`,
`faults` and `commands` hold the shapes of dispatchers; `figures` and `plot` what becomes of what they measured; `play`
runs them.

Of workers: `burst` puts runs on the work topic, `handlers` is the application that runs them, `marks` says when they
began, `acks` what the log says became of them; `workers`, `starts` and `crew` hold the shapes, `bare_worker` the loops.
"""
