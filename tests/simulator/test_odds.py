"""The loss rate of a configuration: each fault takes what it must, nothing else, and the sums are right."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gapless import cli
from gapless.errors import UsageError
from gapless.simulator.odds.configuration import USUAL, Acks, Configuration, FlushPolicy
from gapless.simulator.odds.estimate import POISSON, Estimate, estimate
from gapless.simulator.odds.figures import figure, span, told
from gapless.simulator.odds.kinds import DAY, KINDS, YEAR
from gapless.simulator.odds.measuring import measure
from gapless.simulator.odds.model import PARTITIONS, Model
from gapless.simulator.odds.plot import Row, as_page, draw
from gapless.simulator.odds.stage import Taken

MODEL = Model()
SAFE = Configuration(Acks.ALL, 3, 2)
LEADER = Configuration(Acks.LEADER, 3, idempotent=False)
NONE = Configuration(Acks.NONE, 3, idempotent=False)
ONE_COPY = Configuration(Acks.LEADER, 1, idempotent=False)
DAY_MS = 86_400_000


def window_ms(
    configuration: Configuration, kind: str, *, plays: int = 4, model: Model = MODEL, what: str = "lost"
) -> float:
    """What a partition loses (or has doubled) while everybody has the fault once."""
    (samples,) = measure([configuration], [kind], model, plays=plays, seed=3, workers=1)
    return KINDS[kind].count * sum(getattr(taken, f"{what}_ms") for taken in samples[kind]) / plays


# ---------------------------------------------------------------------------------- what faults take


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("rack", "producer")])
def test_with_two_in_sync_and_idempotence_no_single_fault_loses_or_doubles(kind: str) -> None:
    (samples,) = measure([SAFE], [kind], MODEL, plays=4, seed=3, workers=1)
    assert [(taken.lost_ms, taken.doubled_ms) for taken in samples[kind]] == [(0, 0)] * 4


def test_a_killed_leader_takes_what_it_acknowledged_alone_which_grows_with_the_way_to_its_followers() -> None:
    near = window_ms(LEADER, "crash", plays=12)
    far = window_ms(LEADER, "crash", plays=12, model=replace(MODEL, latency_ms=4))
    assert 0.3 < near < 8
    assert 1.5 * near < far < 40


def test_a_leader_cut_off_with_its_producers_acknowledges_what_is_lost_unless_all_must_have_it() -> None:
    assert 200 < window_ms(LEADER, "partition") < 5_000  # until it finds itself alone
    assert window_ms(Configuration(idempotent=False), "partition") == 0


def test_without_acknowledgements_a_broken_connection_loses_and_with_them_it_does_not() -> None:
    assert 0.5 < window_ms(NONE, "reset") < 10
    assert window_ms(LEADER, "reset") == 0


def test_a_lost_acknowledgement_doubles_but_for_the_idempotent_and_for_those_that_want_none() -> None:
    plain = Configuration(idempotent=False)
    assert 1 < window_ms(plain, "reset", what="doubled") < 30
    assert window_ms(replace(plain, idempotent=True), "reset", what="doubled") == 0
    assert window_ms(NONE, "reset", what="doubled") == 0


def test_a_power_cut_takes_one_copy_s_page_cache_and_nothing_that_was_flushed_before_acknowledging() -> None:
    assert 8_000 < window_ms(ONE_COPY, "power", plays=8) < 24_000  # half of 30 s
    quicker = replace(MODEL, writeback_ms=3_000)
    assert 800 < window_ms(ONE_COPY, "power", plays=8, model=quicker) < 2_400
    assert window_ms(replace(ONE_COPY, flush=FlushPolicy.BEFORE_ACK), "power") == 0


def test_copies_do_not_help_if_all_lose_their_power_but_flushing_does() -> None:
    assert window_ms(SAFE, "rack") > 5_000
    assert window_ms(replace(SAFE, flush=FlushPolicy.BEFORE_ACK), "rack") == 0


def test_a_lost_disk_takes_all_that_the_log_holds_unless_there_is_another_copy() -> None:
    week_ms = window_ms(replace(ONE_COPY, flush=FlushPolicy.BEFORE_ACK), "disk")
    assert week_ms == pytest.approx(7 * DAY_MS, rel=0.01)
    assert window_ms(Configuration(), "disk") == 0


def test_an_unclean_election_loses_what_the_last_in_sync_had_alone() -> None:
    waiting = Configuration(min_insync=1)
    assert window_ms(waiting, "alone") == 0
    assert window_ms(replace(waiting, unclean=True), "alone") == pytest.approx(10_000, rel=0.05)


def test_an_in_sync_set_of_one_is_no_better_than_one_copy_and_a_floor_of_two_is() -> None:
    assert window_ms(Configuration(min_insync=1), "alone-power") > 3_000
    assert window_ms(SAFE, "alone-power") == 0


def test_idempotence_ends_with_the_process_so_what_is_sent_again_is_doubled_and_else_it_is_lost() -> None:
    assert window_ms(SAFE, "producer") == 0
    assert window_ms(SAFE, "producer", what="doubled") > 1
    forgetful = replace(MODEL, resend=False)
    assert window_ms(SAFE, "producer", model=forgetful) > 1
    assert window_ms(SAFE, "producer", model=forgetful, what="doubled") == 0


def test_the_same_seed_gives_the_same_samples_whoever_plays_them() -> None:
    alone, together = (
        measure([LEADER], ["reset"], MODEL, plays=6, seed=5, workers=workers) for workers in (1, 2)
    )
    assert alone == together
    assert measure([LEADER], ["reset"], MODEL, plays=6, seed=6, workers=1) != alone


# ------------------------------------------------------------------------------------------- sums


def taken(lost_ms: Sequence[float], doubled_ms: float = 0.0) -> list[Taken]:
    return [Taken(each, doubled_ms, 0.0) for each in lost_ms]


def test_what_is_lost_is_the_window_over_the_time_between_faults() -> None:
    samples = {"rack": taken([1_000.0] * 10)}  # a second of the stream
    odds = estimate(LEADER, samples, {"rack": 1_000_000.0}, MODEL, seed=1)
    assert odds.lost == pytest.approx(Estimate(1, 1, 1))  # a second in a million
    assert odds.per_year(odds.lost, 2.0).mean == pytest.approx(2 * YEAR / 1_000_000)


def test_a_fault_of_each_broker_comes_as_often_as_there_are_brokers() -> None:
    odds = estimate(LEADER, {"crash": taken([100.0] * 10)}, {"crash": DAY}, MODEL, seed=1)
    assert odds.shares[0].lost_ms.mean == pytest.approx(300)


def test_intervals_hold_the_mean_and_shrink_with_more_plays() -> None:
    few, many = (
        estimate(LEADER, {"rack": taken([0.0, 50.0] * plays)}, {"rack": YEAR}, MODEL, seed=1).lost
        for plays in (5, 200)
    )
    assert few.low < few.mean < few.high
    assert many.high - many.low < (few.high - few.low) / 3


def test_what_was_never_seen_is_bounded_by_the_rule_of_three_and_never_zero() -> None:
    odds = estimate(SAFE, {"rack": taken([0.0] * 30)}, {"rack": 1_000.0}, MODEL, seed=1)
    assert (odds.lost.mean, odds.lost.seen) == (0, False)
    batch_ms = MODEL.linger_ms / PARTITIONS
    assert odds.lost.high == pytest.approx(3 / 30 * batch_ms)  # in a thousand seconds: per million as it is
    assert told(odds.lost).startswith("< ")


@pytest.mark.parametrize(("plays", "high"), [(5, 5.57), (30, 5.57)])
def test_what_was_seen_once_has_the_interval_of_a_count(plays: int, high: float) -> None:
    """A bootstrap over plays ends at three windows or so, whatever it draws."""
    samples = {"rack": taken([60.0] + [0.0] * (plays - 1))}
    odds = estimate(LEADER, samples, {"rack": 1_000.0}, MODEL, seed=1)
    (share,) = odds.shares
    assert share.lost_ms == pytest.approx(
        Estimate(60 / plays, 0.0253 * 60 / plays, high * 60 / plays), rel=1e-3
    )
    assert odds.lost == pytest.approx(share.lost_ms)  # in a thousand seconds: per million as it is


def test_the_intervals_of_few_hits_are_those_of_poisson() -> None:
    """The ends are where so few, or so many, come with a chance of 2.5 %."""

    def at_most(count: int, mean: float) -> float:
        return sum(math.exp(-mean) * mean**each / math.factorial(each) for each in range(count + 1))

    for count, (low, high) in enumerate(POISSON, start=1):
        assert 1 - at_most(count - 1, low) == pytest.approx(0.025, rel=1e-3)
        assert at_most(count, high) == pytest.approx(0.025, rel=1e-3)


def test_what_was_seen_seldom_widens_the_sum_of_what_was_seen_often() -> None:
    mtbf_s = {"rack": 1_000.0, "reset": 1_000.0}
    samples = {"rack": taken([7.0] * 30), "reset": taken([30.0] + [0.0] * 29)}
    odds = estimate(SAFE, samples, mtbf_s, MODEL, seed=1)
    resets = odds.shares[1].lost_ms
    assert odds.lost == pytest.approx(Estimate(7 + resets.mean, 7 + resets.low, 7 + resets.high))


def test_the_upper_end_counts_what_was_seen_and_the_bounds_of_what_was_not() -> None:
    mtbf_s = {"rack": 1_000.0, "reset": 1_000.0}
    odds = estimate(SAFE, {"rack": taken([7.0] * 30), "reset": taken([0.0] * 30)}, mtbf_s, MODEL, seed=1)
    assert odds.lost.mean == pytest.approx(7)
    assert odds.lost.high == pytest.approx(7 + 3 / 30 * MODEL.linger_ms / PARTITIONS)


def test_figures_have_the_digits_that_count() -> None:
    assert [figure(number) for number in (0, 0.0000321, 0.0154, 1.75, 12.3, 383.4, 604_803_184)] == [
        *("0", "3.2e-5", "0.015", "1.8", "12", "383", "605,000,000")
    ]
    assert [span(ms) for ms in (0.4, 1.75, 16_200, 7 * DAY_MS)] == ["0.40 ms", "1.8 ms", "16 s", "7 d"]


# ----------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"replicas": 5}, "5 replicas"),
        ({"min_insync": 3, "replicas": 2}, "min.insync.replicas 3"),
        ({"min_insync": 0}, "min.insync.replicas 0"),
        ({"acks": Acks.LEADER, "idempotent": True}, "idempotence needs acks=all"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replace(Configuration(), **wrong)


def test_the_usual_configurations_are_all_different() -> None:
    assert len({str(each) for each in USUAL}) == len(USUAL)


# ----------------------------------------------------------------------------------------- the command

ONLY_RESET = ",".join(f"{kind}=never" for kind in KINDS if kind != "reset")
QUICK = ("simulate", "odds", "--plays", "5", "--workers", "1", "--mtbf", ONLY_RESET)


def test_the_command_tells_which_fault_loses_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*QUICK, "--acks", "0", "--rate", "50/m"]) == 0
    said = capsys.readouterr().out
    assert "acks=0, RF 3, page cache" in said
    assert "1 d per connection" in said
    assert "100 %" in said
    assert "records per million; at 0.83/s" in said
    assert "doubled: < " in said  # nothing is sent twice


def test_the_command_s_json_and_picture_hold_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "odds.svg"
    assert cli.run([*QUICK, "--idempotence", "off", "--json", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    (configuration,) = found["configurations"]
    assert (found["plays"], found["mtbf_s"]) == (5, {"reset": DAY})
    assert (configuration["acks"], configuration["idempotence"]) == ("all", False)
    assert configuration["doubled_per_million"]["seen"]
    assert not configuration["lost_per_million"]["seen"]
    assert configuration["lost_per_million"]["high"] > 0
    reset = configuration["faults"]["reset"]
    assert reset["doubled_per_million"]["mean"] == pytest.approx(1_000 * reset["doubled_ms"]["mean"] / DAY)
    drawn = ET.fromstring(picture.read_text(encoding="utf-8"))  # noqa: S314 -- our own
    assert "reset, once in 1 d per connection" in "".join(drawn.itertext())


def test_a_picture_shows_every_row_within_its_edges_and_as_a_page(tmp_path: Path) -> None:
    rows = [
        Row("a <b>", Estimate(0, 0, 2e-7), Estimate(400.0, 0, 700.0)),
        Row("c", Estimate(0.5, 0.1, 0.9), Estimate(0, 0, 1e-3)),
    ]
    svg = draw("Odds", "of everything", rows)
    drawn = ET.fromstring(svg)  # noqa: S314 -- our own
    text = "".join(drawn.itertext())
    assert all(row.label in text and told(row.lost) in text for row in rows)
    width = float(drawn.attrib["width"])
    ends = [float(line.attrib[end]) for line in drawn.iter() if "x1" in line.attrib for end in ("x1", "x2")]
    assert all(0 <= x <= width for x in ends)
    assert svg in as_page("Odds", svg)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mtbf", "flood=1d"], "'flood=1d' is not FAULT=TIME with a fault of crash, power"),
        (["--mtbf", "crash=soon"], "--mtbf crash: 'soon' is not a time such as 90s"),
        (["--mtbf", ",".join(f"{kind}=never" for kind in KINDS)], "nothing to measure"),
        (["--rate", "many"], "'many' is not a rate such as 1000/s"),
        (["--retention", "0d"], "--retention: '0d' is not a time"),
        (["--writeback", "0.0001s"], "--writeback: '0.0001s' is not between 0.001s and 1000000y"),
        (["--mtbf", "crash=0.0009s"], "--mtbf crash: '0.0009s' is not between"),
        (["--retention", f"{'9' * 400}d"], f"--retention: '{'9' * 40}...' is not between"),
        (["--mtbf", f"disk={'9' * 400}y"], "--mtbf disk: '9999"),
        (["--rate", f"{'9' * 400}/s"], f"--rate: '{'9' * 40}...' is not between 1e-09/s and 1e+12/s"),
        (["--rate", "0.0000000001/d"], "is not between 1e-09/s"),
        (["--plot", "odds.png"], "name a file that ends in .svg or .html"),
        (["--plot", "nowhere/odds.svg"], "there is no folder nowhere"),
        (["--acks", "1", "--idempotence", "on"], "idempotence needs acks=all"),
        (["--table", "--rf", "1"], "--table shows the usual configurations: leave out --rf"),
    ],
)
def test_bad_options_are_told_in_one_line(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["simulate", "odds", *options]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1
