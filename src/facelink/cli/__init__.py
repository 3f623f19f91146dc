"""The command line: one verb per command, each a shell over the library.

Results go to files, progress to stderr, a summary (or JSON) to stdout. What is
wrong with the input is said in a line or two, with exit code 2; Ctrl-C is 130.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from facelink import __version__
from facelink.cli.bench import bench
from facelink.cli.cluster import cluster, demo
from facelink.cli.evaluate import evaluate
from facelink.cli.interrupts import heard_in_time
from facelink.cli.train import train
from facelink.errors import FacelinkError

BAD_INPUT, INTERRUPTED = 2, 130


class Commands(click.Group):
    """A group that turns errors into plain lines and exit codes, and keeps its order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        try:
            with heard_in_time():
                code = super().main(*args, **kwargs)
        except click.ClickException as error:  # usage
            error.show()
            code = BAD_INPUT
        except FacelinkError as error:
            _complain(str(error))
            code = BAD_INPUT
        except MemoryError:
            _complain("out of memory. Try fewer items at a time.")
            code = BAD_INPUT
        except (click.Abort, KeyboardInterrupt) as interruption:
            said = str(interruption.__cause__ or interruption)  # click makes an Abort of Ctrl-C
            _complain(said or "interrupted; nothing was left half-written.")
            code = INTERRUPTED
        except OSError as error:  # a full disk, a file that has gone: nothing we could foresee
            _complain(f"{error.strerror or error}: {error.filename or 'standard output'}")
            code = BAD_INPUT
        sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    # A file's name may hold bytes that are no text.
    click.echo("facelink: " + message.encode("utf-8", "replace").decode(), err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="facelink")
def main() -> None:
    """Group faces by identity: embeddings in, people out.

    Start with: facelink demo
    """


for command in (demo, cluster, train, evaluate, bench):
    main.add_command(command)
