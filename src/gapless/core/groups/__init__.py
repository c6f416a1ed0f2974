"""Consumer groups of the classic protocol, and the offsets that groups commit. Begin with `state`."""

from gapless.core.coordinators import CONSUMER_OFFSETS, coordinates
from gapless.core.groups.state import GroupsState

coordinates(CONSUMER_OFFSETS, GroupsState)
