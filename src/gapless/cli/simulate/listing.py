"""What there is: profiles, faults, promises and mutants."""

from __future__ import annotations

import gapless.simulator.run  # noqa: F401  all faults and checkers register themselves
from gapless.cli.output import say, say_json, say_table
from gapless.simulator.checkers import CHECKERS
from gapless.simulator.faults import FAULTS
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES


def show_list(*, as_json: bool) -> int:
    """Show all names with their meanings."""
    if as_json:
        say_json(
            {
                "profiles": {
                    each.name: {"meaning": each.meaning, "rates": dict(each.rates)}
                    for each in PROFILES.values()
                },
                "faults": {each.name: each.meaning for each in FAULTS.values()},
                "promises": {each.name: each.meaning for each in CHECKERS.values()},
                "mutants": {
                    each.name: {"ticket": each.ticket, "story": each.story, "profile": each.profile}
                    for each in MUTANTS.values()
                },
            }
        )
        return 0
    say_table(("profile", "meaning"), [(each.name, each.meaning) for each in PROFILES.values()])
    say("")
    say_table(("fault", "meaning"), [(each.name, each.meaning) for each in FAULTS.values()])
    say("")
    say_table(("promise", "meaning"), [(each.name, each.meaning) for each in CHECKERS.values()])
    say("")
    say_table(
        ("mutant", "ticket", "story"), [(each.name, each.ticket, each.story) for each in MUTANTS.values()]
    )
    return 0
