"""`probe`: an installation looked at from outside, through whatever stands before it."""

from app.cli.probe.run import probe

__all__ = ["probe"]
