"""The one exception that means "the user can fix this": the CLI prints it as one line, exit code 2."""


class UserError(Exception):
    """A mistake in a config, a data file or a command.

    The message names the file, row and key, says what was found, and what is allowed.
    """


class MediaError(UserError):
    """An image, video or recording that cannot be read; the message names the file and the reason."""
