"""What the user can fix: the CLI prints it as one line, exit code 2."""

__all__ = ["MediaError", "MissingExtra", "NotFinite", "UserError"]


class UserError(Exception):
    """A mistake in a config, a data file or a command.

    The message names the file, row and key, says what was found, and what is allowed.
    """


class MissingExtra(Exception):
    """An optional package that is not installed; the message says how to get it.

    No `UserError`, because it is about no row: a row that needs the package is not bad.
    """


class MediaError(UserError):
    """An image, video or audio that cannot be read; the message names the file and the reason."""


class NotFinite(UserError):
    """A NaN or an infinity in weights, logits or rewards; the message names what is not finite."""
