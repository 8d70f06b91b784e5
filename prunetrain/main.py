"""The command line: flags -> Config -> experiment.

    python -m prunetrain.main --flagfile=scripts/flagfiles/quickstart.flags

Flags are parsed and checked before TensorFlow is imported, so that help and mistakes
are answered at once. Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130
interrupted, 143 terminated.
"""

import signal

if __name__ == "__main__":
    # While the rest is loaded, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import dataclasses
import functools
import io
import os
import re
import shlex
import sys
import tempfile
import textwrap
import warnings

from absl import flags

from prunetrain import (
    analysis,
    check_device,
    commands,
    dry_run,
    experiment,
    flagfiles,
    registry,
    strategies,
)
from prunetrain import config as config_lib
from prunetrain.config import Config, ConfigError
from prunetrain.errors import InputError, RunError
from prunetrain.runs import signals
from prunetrain.runs import workdir as workdirs

_USAGE = """\
Finds winning lottery tickets: trains, prunes, rewinds and repeats, with the masks on
the device and the whole loop compiled.

Usage: python -m prunetrain.main [--flagfile=FILE] [--flag=value ...]

Try it: python -m prunetrain.main --train_steps=1000 --rounds=3 --controls=reinit
"""
_MOST_CHARACTERS = 2000
# What takes the place of the run, and what it does.
_INSTEAD = {
    "dry_run": "Tells what it would prune and how long it would take; writes nothing.",
    "check_device": "Runs some steps and tells whether the device is used as it should "
    "be, in lines to send with a bug report; writes nothing.",
}


def main(argv=None):
    """Runs a command line (by default the process's) and returns the exit code."""
    argv = sys.argv if argv is None else argv
    to_go_on, see = "repeat the command", "See --help"
    try:
        warnings.showwarning = _show_warning
        if commands.run(argv[1:], _start_quietly):
            return 0
        if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
            print(help_text())
            return 0
        argv, instead = _without_instead(argv)
        config = parse(argv)
        _check_backend()
        start = functools.partial(_start_quietly, config.strategy)
        if instead:
            _check_one(config, instead)
        if instead == "dry_run":
            start()
            dry_run.print_forecast(config)
            return 0
        if instead == "check_device":
            with check_device.dumped_programs() as programs:
                start()
                return 0 if check_device.print_check(config, programs) else 1
        if strategies.follows(config.strategy):
            # The first worker settles what stands in the folder, and then joins.
            start()
        directory = experiment.open_directory(config)
        flagfile = directory.path / "flags.txt"
        workdir = config.workdir if config.only else directory.path
        to_go_on = (
            f"to go on: python -m prunetrain.main "
            f"--flagfile={shlex.quote(str(flagfile))} "
            f"--workdir={shlex.quote(str(workdir))}"
        )
        if not strategies.follows(config.strategy):
            where = f"all settings and results: {directory.path}"
            print(f"{_described(config)}; {where}", flush=True)
        experiment.run(config, directory, start=start)
        if not strategies.follows(config.strategy):
            analysis.print_results(directory.path)
            if config.only:
                whole = shlex.quote(config.workdir)
                print(f"A part of {whole}; to join them: prunetrain merge {whole}")
        return 0
    except ConfigError as error:
        return _fail(2, f"--{error.field}={error.received}: {error.rule}. {see}")
    except InputError as error:
        return _fail(2, error)
    except RunError as error:
        return _fail(1, error)
    except BrokenPipeError:
        # Python would stumble over it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(1, f"nobody reads the output any more; {to_go_on}")
    except OSError as error:
        problem = error.strerror or error
        return _fail(1, f"{error.filename or 'input or output'}: {problem}")
    except signals.Stopped as stopped:
        how = "terminated" if stopped.number == signal.SIGTERM else "interrupted"
        return _fail(128 + stopped.number, f"{how}; {to_go_on}")
    except KeyboardInterrupt:
        return _fail(130, f"interrupted; {to_go_on}")


def console():
    """The process that a user starts."""
    signals.handle(signal.SIGTERM, signal.SIGINT)
    # For --model=my_models:net, behind what is installed; -m has it in front already.
    sys.path.append(os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        # A console that lacks a character gets its escape, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())


def _without_instead(argv):
    """The command line without what stands for something else than a run, and that."""
    found = [word[2:] for word in argv[1:] if word in [f"--{x}" for x in _INSTEAD]]
    rest = [argv[0], *(word for word in argv[1:] if word[2:] not in found)]
    for name in _INSTEAD:
        for word in rest:
            if re.fullmatch(f"--?(no)?{name.replace('_', '_?')}(=.*)?", word):
                raise InputError(f"--{name} takes no value. Received: {word}")
    if len(set(found)) > 1:
        raise InputError(f"{' and '.join(f'--{x}' for x in found)} exclude each other")
    return rest, found[0] if found else ""


def parse(argv):
    """`Config` from a command line.

    Raises:
        InputError: a flag is unknown, has no valid value, or words are left over.
    """
    words = [f"{word}=on" if word in _switches() else word for word in argv[1:]]
    values, words = _flag_values(), flagfiles.expand(words)
    try:
        # What it passes over without a word is refused as any other stray word.
        words = [
            *values([argv[0], *words])[1:],
            *(x for x in words if x.lstrip("-").partition("=")[0] in ("", "undefok")),
        ]
    except flags.Error as error:
        # absl's own words, less its shouting.
        text = str(error).removeprefix("ERROR:: ").rstrip(".")
        raise InputError(f"{text}. See --help for all flags") from None
    if words:
        raise InputError(
            f"{words[0]!r} is not a flag. Write settings as --name=value; see --help"
        )
    return Config(
        **{
            field.name: _typed(field, values[field.name].value)
            for field in _fields()
            if values[field.name].present
        }
    )


def _switches():
    """Words that stand alone: --name is --name=on."""
    names = [x.name for x in _fields() if x.metadata["choices"] is config_lib.SWITCH]
    return {f"{dashes}{name}" for name in names for dashes in ("-", "--")}


def _typed(field, text):
    """A number where that is what the text is and the field wants, else the text."""
    if field.type in (int, float):
        with contextlib.suppress(ValueError):
            return field.type(text)
    return text


def _described(config):
    """What differs from the defaults, as it would be typed."""
    defaults = workdirs.as_flags(Config().as_dict()).splitlines()
    given = workdirs.as_flags(config.as_dict()).splitlines()
    return " ".join(flag for flag in given if flag not in defaults) or "defaults"


def _fields():
    return dataclasses.fields(Config)


def _flag_values():
    """The flags, one per field of `Config`; made anew, so that `main` can run twice."""
    values = flags.FlagValues()
    for field in _fields():
        # Text for everything: Config knows what each must be, and says so.
        flags.DEFINE_string(
            field.name, None, field.metadata["help"], flag_values=values
        )
    return values


def help_text():
    """Every flag, by group, with default, unit and the names it takes."""
    lines, group = [_USAGE], None
    wrap = textwrap.TextWrapper(width=88, initial_indent=" " * 6)
    wrap.subsequent_indent = wrap.initial_indent
    for field in _fields():
        meta = field.metadata
        if meta["group"] != group:
            group = meta["group"]
            lines.append(f"{group}:")
        default = ",".join(field.default) if field.type not in (
            int, float, str
        ) else field.default  # fmt: skip
        unit = f" [{meta['unit']}]" if meta["unit"] else ""
        lines.append(f"  --{field.name}={default}{unit}")
        lines.extend(wrap.wrap(f"{meta['help'][0].upper()}{meta['help'][1:]}."))
        lines.extend(_choice_lines(meta["choices"] or {}, wrap))
    lines.append(
        "Files:\n  --flagfile=FILE\n      Reads flags from a file, one a line; in it, "
        "FILE counts from its folder.\nInstead of the run:"
    )
    for name, what in _INSTEAD.items():
        lines += [f"  --{name}", *wrap.wrap(what)]
    for name, (_, what) in commands.COMMANDS.items():
        lines.append(f"  prunetrain {name} …\n      {what}.")
    return "\n".join(lines)


def _choice_lines(choices, wrap):
    """The names a flag takes, each with what it means where that is known."""
    texts = {
        name: what if isinstance(what, str) else what.__doc__.splitlines()[0]
        for name, what in registry.shown(choices).items()
    }
    if not any(texts.values()):
        return wrap.wrap(", ".join(texts))
    return [
        line for name, text in texts.items() for line in wrap.wrap(f"  {name}: {text}")
    ]


def _check_one(config, instead):
    """Raises InputError if what is asked for instead of the run is not for several."""
    if instead == "dry_run":
        several, what = config.strategy == strategies.MULTIWORKER, "process"
    else:
        several, what = config.strategy != "none", "device"
    if several:
        raise InputError(
            f"--{instead} tells of one {what}, --strategy={config.strategy} has "
            "several. Leave one of the two out"
        )


def _check_backend():
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise InputError(
            f"KERAS_BACKEND={backend}: prunetrain runs on TensorFlow only. Unset "
            "KERAS_BACKEND, or set it to tensorflow"
        )


def _start_quietly(strategy="none"):
    """Loads TensorFlow, and keeps what it writes off the screen unless it fails.

    Raises:
        InputError: another backend is asked for, or there are no such devices.
    """
    _check_backend()
    # TensorFlow tells the loss of a worker several times over; so does what is raised.
    level = "3" if strategy == strategies.MULTIWORKER else "2"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            import tensorflow as tf

            # What devices there are has to be said before they are looked for.
            strategies.make(strategy)
            # That is done at first use, with messages of their own.
            tf.config.list_logical_devices()
        except InputError:
            raise
        except Exception:
            file.seek(0)
            os.write(screen, file.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(screen, 2)
            os.close(screen)


def _show_warning(message, *_, **__):
    _say(f"prunetrain: warning: {message}")


def _fail(code, message):
    _say(f"prunetrain: {message}")
    return code


def _say(message):
    """One line on standard error, whatever was received and is quoted in it."""
    line = "".join(
        x if x.isprintable() else x.encode("unicode_escape").decode() for x in message
    )
    if len(line) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        line = f"{line[:half]} … {line[-half:]}"
    print(line, file=sys.stderr)


if __name__ == "__main__":
    console()
