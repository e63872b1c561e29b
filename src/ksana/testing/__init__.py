"""What tests of programs built on Ksana may use: the virtual clock. Never imported by the rest."""

from ksana.base.clock import VirtualClock

__all__ = ["VirtualClock"]
