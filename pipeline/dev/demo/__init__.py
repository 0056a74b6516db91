"""`dueline demo`: one night of a company that bills customers in several zones, played on a real store.

`inputs` reads what is planned, `play` plays it with the processes of `cast`, `watch` waits on the topics
meanwhile, `evidence` reads back what happened, `report` judges it. `handlers` is what the workers run; `smtp`
and `mailbox` are the outside world that it acts upon.
"""
