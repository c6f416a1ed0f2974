"""Many seeds: the same result however many processes play them, and a number for what they exercise."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.errors import GaplessError
from gapless.simulator.campaign import Tally, campaign, play_seeds, pool
from gapless.simulator.case import Case, ClientPlan, Step, TopicPlan
from gapless.simulator.coverage import ROLES, Coverage, Expected
from gapless.simulator.covering import Covering
from gapless.simulator.faults import FAULTS
from gapless.simulator.hunting import find
from gapless.simulator.profiles import PROFILES, Profile
from gapless.simulator.run import CRASH, play

SEEDS = range(20, 32)
PROFILE = "elections"
MUTANT = "early-acknowledgement"
_HELD = ("SigBlk", "SigIgn")


def played(workers: int, mutant: str | None = None) -> Tally:
    tally = Tally()
    for each in campaign(PROFILES[PROFILE], SEEDS, workers=workers, mutant=mutant):
        tally.add(each)
    return tally


def test_two_processes_come_to_the_same_as_one() -> None:
    alone, together = played(1, MUTANT), played(2, MUTANT)
    assert alone == together
    assert alone.seeds == len(SEEDS)
    assert alone.failures, "an early acknowledgement loses records"
    assert [failure.seed for failure in alone.failures] == sorted(failure.seed for failure in alone.failures)


def test_a_mistake_is_made_only_where_it_is_asked_for() -> None:
    assert played(1, MUTANT).failures
    assert not played(1).failures


def test_the_first_seed_that_finds_a_mutant_is_the_same_for_any_number_of_processes() -> None:
    alone, together = find(MUTANT, range(40)), find(MUTANT, range(40), workers=2)
    assert alone == together
    assert alone.failure is not None
    assert alone.played == alone.failure.seed + 1


def test_ctrl_c_is_an_interrupt_wherever_it_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_and_be_struck_inside_the_lock() -> None:
        with pool(1) as processes:
            waited_for = processes.submit(time.sleep, 60)
            lock = waited_for._condition
            release = lock._release_save  # type: ignore[attr-defined]

            def struck() -> object:
                released = release()
                signal.raise_signal(signal.SIGINT)
                return released

            monkeypatch.setattr(lock, "_release_save", struck)
            waited_for.result()

    handler_before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        wait_and_be_struck_inside_the_lock()
    assert signal.getsignal(signal.SIGINT) is handler_before


def test_a_process_that_starts_does_not_die_of_the_ctrl_c_that_is_for_its_parent() -> None:
    with pool(1) as processes:
        begun = processes.submit(os.getpid)
        (child,) = multiprocessing.active_children()
        status = Path(f"/proc/{child.pid}/status")
        while not begun.done():  # from its first moment on
            held = [line.split()[1] for line in status.read_text().splitlines() if line[:6] in _HELD]
            assert any(int(signals, 16) >> signal.SIGINT - 1 & 1 for signals in held)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_worker_that_somebody_killed_is_an_error_that_says_what_to_do() -> None:
    def kill_one() -> None:
        with pool(1) as processes:
            pid = processes.submit(os.getpid).result()
            asleep = processes.submit(time.sleep, 60)
            os.kill(pid, signal.SIGKILL)
            asleep.result()

    with pytest.raises(GaplessError, match="try again with fewer --workers"):
        kill_one()


def test_workers_end_with_a_parent_that_was_killed() -> None:
    script = (
        "import os, time\n"
        "from gapless.simulator.campaign import pool\n"
        "if __name__ == '__main__':\n"
        "    with pool(1) as processes:\n"
        "        print(processes.submit(os.getpid).result(), flush=True)\n"
        "        processes.submit(time.sleep, 60).result()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = Path(f"/proc/{int(parent.stdout.readline())}")
        parent.kill()
    deadline = time.monotonic() + 20
    while worker.exists() and "State:\tZ" not in (worker / "status").read_text():
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.02)


def test_a_rule_that_cannot_go_on_is_a_finding_and_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise IndexError("too far")

    monkeypatch.setitem(FAULTS, "crash", replace(FAULTS["crash"], inject=broken))
    case = Case(1, "by hand", 3, (TopicPlan("t", 1, 3),), (), (Step(0, "crash", ()),), jitter=False)
    violation = play(case).violation
    assert violation is not None
    assert violation.anomaly == CRASH
    assert "IndexError: too far" in violation.text


# ------------------------------------------------------------------------------------------- coverage


def covered(*steps: Step, clients: tuple[ClientPlan, ...] = (), **configs: str) -> Coverage:
    """What a case with one topic on brokers 1 to 3 of four exercises."""
    topic = TopicPlan("t", 1, 3, {"min.insync.replicas": "2", **configs})
    case = Case(1, "by hand", 4, (topic,), clients, steps, jitter=False)
    coverage = Coverage()
    assert play(case, Covering(coverage)).violation is None
    return coverage


def test_a_fault_is_counted_with_the_roles_of_the_broker_that_it_hits() -> None:
    coverage = covered(Step(0, "crash", ("leader t 0", 100)), Step(500, "pause", (4, 10)))
    assert coverage.hits["crash", "leader"] == 1
    assert coverage.hits["crash", "follower"] == 0
    assert {role for fault, role in coverage.hits if fault == "pause"} <= {"bystander", "coordinator"}


def test_a_fault_that_does_not_come_to_pass_is_not_counted() -> None:
    coverage = covered(Step(0, "crash", (1, 1_000)), Step(10, "crash", (1, 10)))
    assert coverage.hits["crash", "leader"] == 1


@pytest.mark.parametrize(
    ("fault", "arguments"),
    [("lose-answer", ("shop", 2)), ("late-request", ("shop", 2, 100)), ("crash-elected", ("t", 0, 10, 100))],
)
def test_a_fault_that_waits_for_its_moment_is_counted_when_that_has_come(
    fault: str, arguments: tuple[object, ...]
) -> None:
    """Broker 2 is elected soon, and then the client talks to it; or never."""
    shop = ClientPlan("shop", "producer", {"acks": -1, "idempotent": True})
    armed = Step(100, fault, arguments)
    assert not [hit for hit in covered(armed, clients=(shop,)).hits if hit[0] == fault]
    steps = (armed, Step(200, "crash", (1, 1_000)), Step(900, "send", ("shop", "t", 0, 1)))
    coverage = covered(*steps, Step(2_500, "partition", (1, 4, 1)), clients=(shop,))
    assert coverage.hits[fault, "leader"] == 1


def test_a_fault_between_brokers_hits_who_sends_and_who_receives() -> None:
    for fault in (Step(100, "lose-message", (2, 1)), Step(100, "double-connection", (2, 1, 100))):
        coverage = covered(fault, Step(2_500, "partition", (1, 4, 1)))
        assert coverage.hits[fault.what, "leader"] == coverage.hits[fault.what, "follower"] == 1


def test_a_floor_that_was_changed_counts_from_then_on() -> None:
    crash, below = Step(500, "crash", (1, 300)), "in sync: below the floor"
    assert not covered(crash).seen[below]
    assert covered(Step(0, "change-floor", ("t", 3)), crash).seen[below]


def test_faults_that_never_came_are_named() -> None:
    profile = Profile("by hand", "", {"crash": 1, "client-pause": 0.1, "unclean-election": 1, "pause": 0})
    assert Expected.of(profile).never_came(Counter(crash=3)) == ["client-pause", "unclean-election"]


def test_elections_and_in_sync_sets_are_counted_by_the_journal() -> None:
    coverage = covered(Step(0, "crash", (1, 1_000)))
    for rule in (
        "leader: in sync",
        "in sync: fewer",
        "in sync: more",
        "broker: fenced",
        "controller: fails over",
    ):
        assert coverage.seen[rule], rule
    assert not coverage.seen["leader: unclean"]


def test_a_duplicate_is_counted_when_it_is_recognised() -> None:
    producer = ClientPlan("shop", "producer", {"acks": -1, "idempotent": True})
    send = Step(0, "send", ("shop", "t", 0, 1))
    lost = (send, Step(100, "lose-answer", ("shop", "leader t 0")), Step(200, "send", ("shop", "t", 0, 1)))
    assert not covered(send, clients=(producer,)).seen["producer: duplicate recognised"]
    assert covered(*lost, clients=(producer,)).seen["producer: duplicate recognised"] == 1


def test_what_never_came_is_named() -> None:
    profile = Profile("by hand", "", {"crash": 1, "lose-message": 1, "pause": 0}, brokers=(4,), unclean=0.1)
    expected = Expected.of(profile)
    assert set(expected.pairs) == {(fault, role) for fault in ("crash", "lose-message") for role in ROLES}
    rules, pairs = expected.blind_spots(covered(Step(0, "crash", ("leader t 0", 100))))
    assert "leader: in sync" not in rules
    assert "leader: unclean" in rules
    assert ("crash", "leader") not in pairs
    assert ("lose-message", "leader") in pairs
    told = expected.as_json(Coverage())
    assert told["pairs"] == {"expected": 10, "seen": 0, "never": [f"{f} of a {r}" for f, r in expected.pairs]}


def test_what_cannot_come_is_not_expected() -> None:
    """With three brokers, each has a replica of some partition; nobody is elected uncleanly by default."""
    expected = Expected.of(Profile("by hand", "", {"crash": 1}, brokers=(3,)))
    assert {role for _, role in expected.pairs} == set(ROLES) - {"bystander"}
    assert not {"leader: unclean", "log: compacted", "partition: added"} & set(expected.rules)


def test_what_an_administrator_does_is_counted() -> None:
    retention = {"log.retention.check.interval.ms": "500"}
    sends = [Step(at_ms, "send", ("shop", "t", 0, 2)) for at_ms in range(0, 3_000, 100)]
    steps = (*sends, Step(500, "change-retention", ("t", 300)), Step(600, "add-partition", ("t", "shop", 2)))
    topic = TopicPlan("t", 1, 3, {"min.insync.replicas": "2", "segment.bytes": "1024"})
    shop = ClientPlan("shop", "producer", {"acks": -1, "idempotent": True})
    case = Case(1, "by hand", 3, (topic,), (shop,), steps, jitter=False, settings=retention)
    coverage = Coverage()
    assert play(case, Covering(coverage)).violation is None
    assert coverage.seen["log: records expired"]
    assert not coverage.seen["log: records deleted"]
    assert coverage.seen["partition: added"]


def test_coverage_adds_up_over_seeds() -> None:
    one, other = play_seeds(PROFILES[PROFILE], [1]), play_seeds(PROFILES[PROFILE], [2])
    both = play_seeds(PROFILES[PROFILE], [1, 2])
    one.add(other)
    assert one == both
    assert both.coverage.seen["leader: in sync"]
