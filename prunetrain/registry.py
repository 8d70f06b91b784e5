"""Named alternatives: a flag value, its help and its error message come from here."""

import ast
import difflib
import importlib
import re

from prunetrain.errors import InputError, told

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def nearest(received, names):
    """` (did you mean 'x'?)` for a name that is not among `names`, or nothing."""
    near = difflib.get_close_matches(str(received), names, n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def is_import_path(name):
    """Whether `name` has the form package.module:function."""
    return bool(_IMPORT_PATH.fullmatch(name))


def imported(kind, path):
    """What `package.module:function` names. Importing runs the module's code.

    Raises:
        InputError: there is no such module, or nothing of that name in it.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise _not_imported(kind, path, error) from error
    # Whatever the module's own code raises, or a script that ends itself.
    except (Exception, SystemExit) as error:
        raise _not_imported(kind, path, told(error)) from error
    return found


def _not_imported(kind, path, problem):
    return InputError(
        f"`{kind}` must name a function that can be imported, as "
        f"package.module:function ({problem}). Received: {kind}={path!r}"
    )


def parse_arguments(text):
    """Keyword arguments as they are typed, `name=value,…`, as a dict.

    Values are Python literals, or words, which stand for themselves: nothing is run.

    Raises:
        ValueError: the text is something else.
    """
    rule = "must be name=value,… with literals or words as values"
    try:
        source = f"f({text})"
        call = ast.parse(source, mode="eval").body
        plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        # What follows is a comment.
        plain = plain and call.end_col_offset == len(source.encode())
        names = [word.arg for word in call.keywords] if plain else [None]
        if None in names or call.args or len(set(names)) < len(names):
            raise ValueError(rule)
        return {word.arg: _literal(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = f" ({error})" if str(error).endswith(("True", "False")) else ""
        raise ValueError(rule + hint) from error


def _literal(node):
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    # As a word, false would count as true.
    if node.id.lower() in ("true", "false"):
        raise ValueError(f"{node.id} must be {node.id.title()}")
    return node.id


def shown(choices):
    """`choices`, and the forms of names that a registry makes functions for."""
    return {**choices, **getattr(choices, "forms", {})}


class Registry(dict):
    """Functions by name; one of the user's own goes by package.module:function.

    Args:
        kind: what the functions are, as the argument that selects one is called.
    """

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.forms = {}

    def register(self, name):
        """Decorator: file the function under `name`."""

        def add(function):
            self[name] = function
            return function

        return add

    def register_form(self, form, expression):
        """Decorator: file a maker of functions whose names hold numbers, such as 2:4.

        Args:
            form: how such names look, for help and messages.
            expression: regular expression for the whole name. Its groups, as whole
                numbers, are the maker's arguments; it returns the function, or None if
                the numbers make no sense.
        """

        def add(maker):
            maker.expression = expression
            self.forms[form] = maker
            return maker

        return add

    def __contains__(self, name):
        return super().__contains__(name) or self._made(name) is not None

    def __missing__(self, name):
        function = self._made(name)
        if function is not None:
            return function
        if is_import_path(str(name)):
            return imported(self.kind, name)
        raise ValueError(
            f"`{self.kind}` must be one of {', '.join(shown(self))}"
            f"{nearest(name, self)}, or package.module:function. "
            f"Received: {self.kind}={name!r}"
        )

    def _made(self, name):
        for maker in self.forms.values():
            match = re.fullmatch(maker.expression, str(name))
            if match:
                return maker(*map(int, match.groups()))
        return None
