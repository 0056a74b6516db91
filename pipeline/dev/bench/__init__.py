"""`dueline bench`: what the product does on this machine, each figure beside a bare loop of the same run.

`load` makes the jobs, `bare` the loops that the parts alone give, `observer` is the consumer that waits on the
work topic, `site` an installation of its own with its dispatcher processes. `throughput`, `lateness`, `faults`
and `commands` hold the shapes; `figures` and `plot` what becomes of what they measured; `play` runs them.
"""
