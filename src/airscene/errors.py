"""The one exception that users see: what is wrong and what was expected, in one line."""


class AirsceneError(Exception):
    """Bad input. The command line prints its message as one line and exits with status 2."""


class Diverged(AirsceneError):
    """No seed of a run has a finite ELBO any more."""
