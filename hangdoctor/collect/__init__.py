"""What can be read of the target's processes without stopping them."""

from hangdoctor.collect.plan import Plan
from hangdoctor.collect.schedule import Interrupted, RollingCapture, take_capture
from hangdoctor.collect.tree import Member, Tree

__all__ = ["Interrupted", "Member", "Plan", "RollingCapture", "Tree", "take_capture"]
