"""Everything facelink raises on purpose, in one tree.

A message says what was expected, what came and what to do. Errors about what
the user passed in are also ``ValueError``, so code that does not know facelink
can still catch them.
"""


class FacelinkError(Exception):
    """The base of everything facelink raises on purpose."""


class InputError(FacelinkError, ValueError):
    """The data or an option cannot be used as it is."""


class TooLargeError(InputError):
    """A collection is too large for what is asked of it."""


class ModelError(InputError):
    """A model file cannot be read, or does not fit the embeddings."""


class FileError(InputError):
    """A file is missing, unreadable or not what its name says."""


class ResultExistsError(FacelinkError, FileExistsError):
    """The result would overwrite one that is already there."""


class MissingExtraError(FacelinkError, ImportError):
    """An optional dependency is needed; the message names the command that installs it."""
