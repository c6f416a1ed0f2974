"""The shell around nodes in virtual time. Nothing here knows a rule of the brokers.

`agenda` is time, `hosts` what outlives a process, `journal` the coordination service, `network` every
connection, and `world` carries out what nodes ask for. The same calls give the same run, always.
"""

from gapless.simulator.world.hosts import Host
from gapless.simulator.world.network import Channel
from gapless.simulator.world.world import World

__all__ = ["Channel", "Host", "World"]
