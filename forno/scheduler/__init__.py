"""Who computes what in the next step. Ids and counts only; knows no tensor, text or thread."""

from forno.scheduler.scheduler import Scheduler
from forno.scheduler.sequence import Sequence, State, Update

__all__ = ["Scheduler", "Sequence", "State", "Update"]
