"""`python -m benchmarks.clients JOB`: do one job (see `jobs`) and print its numbers as one line of JSON."""

from __future__ import annotations

import json
import sys

from benchmarks.clients import jobs


def main() -> None:
    """Only the client that the job needs is imported."""
    job = jobs.decode(sys.argv[1])
    if isinstance(job, jobs.Connections):
        from benchmarks.clients import connections

        answer = connections.run(job)
    elif isinstance(job, jobs.Consume):
        from benchmarks.clients import consuming

        answer = consuming.run(job)
    elif isinstance(job, jobs.Transactions | jobs.Transform):
        from benchmarks.clients import transactions

        answer = transactions.run(job)
    elif isinstance(job, jobs.Commits):
        from benchmarks.clients import commits

        answer = commits.run(job)
    elif isinstance(job, jobs.Rebalance):
        from benchmarks.clients import rebalance

        answer = rebalance.run(job)
    elif isinstance(job, jobs.KillLeader):
        from benchmarks.clients import failover

        answer = failover.run(job)
    elif isinstance(job, jobs.FirstAck):
        from benchmarks.clients import first_ack

        answer = first_ack.run(job)
    else:
        from benchmarks.clients import producing

        answer = producing.run(job) if isinstance(job, jobs.Produce) else producing.run_one_at_a_time(job)
    print(json.dumps(answer), flush=True)


main()
