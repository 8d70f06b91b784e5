"""Results: results.csv, a row for each training that is finished."""

import csv
import dataclasses
import io
import pathlib
import re

from prunetrain.runs import files


@dataclasses.dataclass(frozen=True)
class Row:
    """The outcome of one training: a row of results.csv.

    `weights_remaining` is a count; `sparsity` the pruned fraction of the prunable
    weights. The losses and accuracies up to `test_accuracy` are those at `best_step`,
    the step of the lowest validation loss (the paper's early stop); `final_…` those of
    the last step. Accuracies are fractions, None for a task that has none;
    `test_class_accuracy` holds those of all classes, if they are asked for.
    """

    replicate: int
    branch: str
    round: int
    weights_remaining: int
    sparsity: float
    best_step: int
    val_loss: float
    val_accuracy: float | None
    test_loss: float
    test_accuracy: float | None
    train_seconds: float
    final_val_loss: float
    final_val_accuracy: float | None
    final_test_loss: float
    final_test_accuracy: float | None
    test_class_accuracy: str = ""

    @property
    def key(self):
        return self.replicate, self.branch, self.round


def joined(numbers):
    """Numbers as a text, with a space in between and - for None."""
    return " ".join("-" if x is None else repr(x) for x in numbers or ())


def as_csv(rows):
    """Rows as the text of the file."""
    text = io.StringIO()
    names = [field.name for field in dataclasses.fields(Row)]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(dataclasses.asdict, rows))
    return text.getvalue()


def read_rows(path):
    """The rows of a work directory's results.csv, as `Row`s; none if there is no file.

    Raises:
        InputError: the file is damaged.
    """
    file = pathlib.Path(path) / "results.csv"
    if not file.exists():
        return []
    content = files.read(file.parent, file.name)
    try:
        reader = csv.DictReader(io.StringIO(content.decode(), newline=""))
        if not _needed() <= {*(reader.fieldnames or ())}:
            raise ValueError("it lacks columns")
        rows = [_row(line) for line in reader]
        if len({row.key for row in rows}) < len(rows):
            raise ValueError("a training has two rows")
        return rows
    except (ValueError, csv.Error) as error:
        raise files.damaged(file, error) from error


def _needed():
    """The columns that every file has: those without a default."""
    missing = dataclasses.MISSING
    return {x.name for x in dataclasses.fields(Row) if x.default is missing}


def _row(line):
    """`Row` from the texts by column, or ValueError."""
    if None in line or None in line.values():
        raise ValueError("a row is shorter or longer than the header")
    row = Row(
        **{
            x.name: _value(x.type, line[x.name])
            for x in dataclasses.fields(Row)
            if x.name in line
        }
    )
    for name, value in vars(row).items():
        if name == "test_class_accuracy":
            valid = all(x == "-" or 0 <= float(x) <= 1 for x in value.split(" ") if x)
        elif isinstance(value, str):
            valid = re.fullmatch(r"\w+", value)
        elif value is None:
            continue
        elif isinstance(value, int):
            valid = 0 <= value < 2**63
        else:
            # A loss may be whatever it was.
            valid = not name.endswith(("accuracy", "sparsity")) or 0 <= value <= 1
        if not valid:
            raise ValueError(f"{name} cannot be {line[name]!r}")
    return row


def _value(type, text):
    if type in (int, float, str):
        return type(text)
    return float(text) if text else None
