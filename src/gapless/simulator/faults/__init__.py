"""All that can go wrong. Each fault is a named option with a rate; what it hits is chosen with the case.

A broker is given by its number, or by a role that is looked up when the fault happens: `leader t 0`,
`follower t 0`, `controller`. A fault that takes more than a topic is made to bear excuses that topic: what it
loses then, it loses by rights.
"""

from gapless.simulator.faults import (  # noqa: F401  each registers its own
    admin,
    brokers,
    clients,
    leadership,
    machines,
    network,
)
from gapless.simulator.faults.fault import FAULTS, Arguments, Fault, a_while, fault, resolve

__all__ = ["FAULTS", "Arguments", "Fault", "a_while", "fault", "resolve"]
